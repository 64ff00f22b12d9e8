"""Exact match and F1 of answers, equal to the official scripts of SQuAD 1.1 and 2.0 and KorQuAD 1.0."""

import collections
import math
import re
import string
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.errors import DataError
from bert_tf.types import Array, Metrics

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_KORQUAD_MARKS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def squad_1_scores(exact: Array, f1: Array) -> Metrics:
    """Computes the metrics of evaluate-v1.1.py, and of KorQuAD 1.0's evaluate-v1.0.py.

    Args:
        exact, f1: from `question_scores`.

    Returns:
        dict: "exact_match", "f1", means over the questions, from 0 to 1.
    """
    return {"exact_match": float(exact.mean()), "f1": float(f1.mean())}


def question_scores(
    answers: Sequence[Sequence[str]], predictions: Sequence[str], *, korean: bool = False
) -> tuple[Array, Array]:
    """Computes exact match and F1 of each question.

    SQuAD's script ignores punctuation, articles and case; F1 is of words. In KorQuAD's, quotes, brackets and angle
    brackets become spaces, other ASCII punctuation is deleted, there are no articles, and F1 is of characters without
    spaces. The best of a question's answers counts.

    Args:
        answers: correct answers to each question, at least one.
        predictions: answer to each question.
        korean: follow the rules of KorQuAD.

    Returns:
        (exact match, F1): float64 [questions].
    """
    _check_questions(answers)
    normalize, split = _rules(korean)
    scores = []
    for number, (golds, prediction) in enumerate(zip(answers, predictions, strict=True), 1):
        if not golds:
            raise DataError(
                f"question {number} has no answer; expected one, as in SQuAD 1.1: evaluate this data as SQuAD 2.0"
            )
        prediction = normalize(prediction)
        golds = [normalize(gold) for gold in golds]
        scores.append((float(prediction in golds), max(_f1(split(gold), split(prediction)) for gold in golds)))
    exact, f1 = np.array(scores).T
    return exact, f1


class Squad2Questions(NamedTuple):
    """Questions of SQuAD 2.0 with their scores before any threshold, [questions] each.

    Attributes:
        exact: bool, whether the best answer is a correct one.
        f1: float, of the best answer.
        has_answer: bool, whether there is a correct answer.
        is_answered: bool, whether the best answer is not "".
        null_scores: float, from `squad_2_questions`.
    """

    exact: Array
    f1: Array
    has_answer: Array
    is_answered: Array
    null_scores: Array


def squad_2_questions(
    answers: Sequence[Sequence[str]],
    predictions: Sequence[str],
    null_scores: Sequence[float],
    *,
    korean: bool = False,
) -> Squad2Questions:
    """Scores each question of SQuAD 2.0.

    Args:
        answers: correct answers to each question, empty if there is no answer.
        predictions: best answer to each question, or "".
        null_scores: probability of no answer to each question, or the null odds of google-research/bert: higher if an
            answer is less likely.
        korean: compare texts by the rules of KorQuAD.

    Returns:
        The questions in their order, which decides between equal null scores.
    """
    _check_questions(answers)
    normalize, split = _rules(korean)
    rows = []
    for number, (texts, answer, null_score) in enumerate(zip(answers, predictions, null_scores, strict=True), 1):
        if math.isnan(null_score):  # infinity is allowed: the null answer was the only one
            raise DataError(f"question {number} has null score {null_score}; expected a number for each question")
        prediction = normalize(answer)
        # A gold answer with only articles and punctuation counts as no answer.
        golds = [gold for gold in map(normalize, texts) if gold] or [""]
        f1 = max(
            _f1(split(gold), split(prediction)) if gold and prediction else float(gold == prediction) for gold in golds
        )
        rows.append((prediction in golds, f1, bool(texts), bool(answer), null_score))
    return Squad2Questions(*map(np.array, zip(*rows, strict=True)))


def squad_2_scores(questions: Squad2Questions, threshold: float) -> Metrics:
    """Computes the metrics of evaluate-v2.0.py: a question may have no answer; then "" is the correct prediction.

    Args:
        questions: from `squad_2_questions`.
        threshold: questions with a higher null score count as answered with "".

    Returns:
        dict: "exact", "f1", "total"; the same with the prefixes "HasAns_" and "NoAns_" for the questions with and
        without an answer, if there are any; "best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh" from
        `best_threshold`. Exact match and F1 are from 0 to 1.
    """
    exact, f1, has_answer, _, null_scores = questions
    scores = np.where(null_scores > threshold, ~has_answer, (exact, f1))
    metrics: Metrics = {}
    for prefix, part in (("", np.ones_like(has_answer)), ("HasAns_", has_answer), ("NoAns_", ~has_answer)):
        if part.any():
            of_exact, of_f1 = scores[:, part]
            metrics |= {f"{prefix}exact": float(of_exact.mean()), f"{prefix}f1": float(of_f1.mean())}
            metrics[f"{prefix}total"] = float(len(of_exact))
    for name, values in (("exact", exact), ("f1", f1)):
        metrics[f"best_{name}"], metrics[f"best_{name}_thresh"] = best_threshold(questions, values)
    return metrics


def best_threshold(questions: Squad2Questions, scores: Array) -> tuple[float, float]:
    """Finds the null threshold with the best mean score, as find_best_thresh of evaluate-v2.0.py does.

    It starts with all questions unanswered, at a threshold of 0, and answers them one by one in the order of their
    null scores; among equal means the lowest threshold wins. Like the script it can stop between questions with equal
    null scores, which no threshold separates: `squad_2_scores` at that threshold then differs from the best mean.

    Args:
        questions: from `squad_2_questions`.
        scores: `questions.exact` or `questions.f1`.

    Returns:
        (best mean score, threshold).
    """
    order = np.argsort(questions.null_scores, kind="stable")
    gains = np.where(questions.has_answer, scores, -1.0 * questions.is_answered)[order]  # from answering
    sums = np.cumsum(np.append(np.sum(~questions.has_answer), gains))
    best = int(np.argmax(sums))
    threshold = questions.null_scores[order[best - 1]] if best else 0.0
    return float(sums[best] / len(scores)), float(threshold)


def _check_questions(answers: Sequence[Sequence[str]]) -> None:
    if not answers:
        raise DataError("no questions: nothing to measure; expected at least one")


def _rules(korean: bool) -> tuple[Callable[[str], str], Callable[[str], Sequence[str]]]:
    """How a text is normalized, and split into what F1 counts."""
    return (_normalize_korean, _characters) if korean else (_normalize_english, str.split)


def _normalize_english(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _normalize_korean(text: str) -> str:
    return " ".join(text.translate(_KORQUAD_MARKS).lower().translate(_PUNCTUATION).split())


def _characters(text: str) -> str:
    return text.replace(" ", "")


def _f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """F1 of two bags of words or characters; 0 if they share none, also if both are empty."""
    shared = (collections.Counter(gold) & collections.Counter(predicted)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(gold)
    return 2 * precision * recall / (precision + recall)
