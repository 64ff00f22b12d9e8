"""Exact match and F1 of answers, equal to the official scripts of SQuAD 1.1 and 2.0 and KorQuAD 1.0."""

import collections
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_tf.errors import DataError
from bert_tf.metrics.checks import Values
from bert_tf.types import Array, Metrics

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_KORQUAD_MARKS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def squad_1_scores(answers: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> Metrics:
    """Computes the metrics of evaluate-v1.1.py, which ignores punctuation, articles and case.

    F1 is of words; the best of a question's answers counts.

    Args:
        answers: question id -> correct answers, at least one.
        predictions: question id -> answer; a missing question scores 0, unknown ids are ignored.

    Returns:
        dict: "exact_match", "f1", means over the questions, from 0 to 1.
    """
    return _means(*question_scores(answers, predictions))


def korquad_scores(answers: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> Metrics:
    """Computes the metrics of KorQuAD 1.0's evaluate-v1.0.py. Args and returns as for `squad_1_scores`.

    Quotes, brackets and angle brackets become spaces, other ASCII punctuation is deleted, there are no articles, and F1
    is of characters without spaces.
    """
    return _means(*question_scores(answers, predictions, korean=True))


def question_scores(
    answers: Mapping[str, Sequence[str]], predictions: Mapping[str, str], *, korean: bool = False
) -> tuple[Array, Array]:
    """Computes exact match and F1 of each question; `squad_1_scores` and `korquad_scores` return the means.

    Args:
        answers, predictions: as for `squad_1_scores`.
        korean: follow the rules of KorQuAD.

    Returns:
        (exact match, F1): float64 [questions], in the order of `answers`.
    """
    _check_questions(answers)
    normalize: Callable[[str], str] = _normalize_korean if korean else _normalize_english
    split: Callable[[str], Sequence[str]] = _characters if korean else str.split
    scores = []
    for name, golds in answers.items():
        if not golds:
            raise DataError(
                f"question {name!r} has no answer; expected one, as in SQuAD 1.1: evaluate this data as SQuAD 2.0"
            )
        if name not in predictions:
            scores.append((0.0, 0.0))
            continue
        prediction = normalize(predictions[name])
        golds = [normalize(gold) for gold in golds]
        scores.append((float(prediction in golds), max(_f1(split(gold), split(prediction)) for gold in golds)))
    exact, f1 = np.array(scores).T
    return exact, f1


def squad_2_scores(
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_scores: Mapping[str, float],
    threshold: float,
) -> Metrics:
    """Computes the metrics of evaluate-v2.0.py: a question may have no answer; then "" is the correct prediction.

    Args:
        answers: question id -> correct answers, empty if there is no answer.
        predictions: question id -> best answer, or "", for every question.
        null_scores: question id -> probability of no answer, or the null odds of google-research/bert: higher if an
            answer is less likely.
        threshold: questions with a higher null score count as answered with "".

    Returns:
        dict: "exact", "f1", "total"; the same with the prefixes "HasAns_" and "NoAns_" for the questions with and
        without an answer, if there are any; "best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh" from
        `best_threshold`. Exact match and F1 are from 0 to 1.
    """
    scores = squad_2_question_scores(answers, predictions)
    metrics: Metrics = {}
    for prefix, (exact, f1) in squad_2_parts(answers, scores, null_scores, threshold).items():
        metrics |= {f"{prefix}exact": float(exact.mean()), f"{prefix}f1": float(f1.mean())}
        metrics[f"{prefix}total"] = float(len(exact))
    for name, values in zip(("exact", "f1"), scores, strict=True):
        best, best_at = best_threshold(answers, predictions, values, null_scores)
        metrics |= {f"best_{name}": best, f"best_{name}_thresh": best_at}
    return metrics


def squad_2_question_scores(
    answers: Mapping[str, Sequence[str]], predictions: Mapping[str, str]
) -> tuple[Array, Array]:
    """Computes exact match and F1 of each question, before any threshold.

    Args:
        answers, predictions: as for `squad_2_scores`.

    Returns:
        (exact match, F1): float64 [questions], in the order of `answers`.
    """
    _check_questions(answers)
    scores = []
    for name, golds in answers.items():
        if name not in predictions:
            raise DataError(
                f"question {name!r} has no prediction; expected one for each question, empty if it has no answer"
            )
        prediction = _normalize_english(predictions[name])
        # A gold answer with only articles and punctuation counts as no answer.
        golds = [gold for gold in map(_normalize_english, golds) if gold] or [""]
        f1 = max(
            _f1(gold.split(), prediction.split()) if gold and prediction else float(gold == prediction)
            for gold in golds
        )
        scores.append((float(prediction in golds), f1))
    exact, best_f1 = np.array(scores).T
    return exact, best_f1


def squad_2_parts(
    answers: Mapping[str, Sequence[str]],
    scores: tuple[Array, Array],
    null_scores: Mapping[str, float],
    threshold: float,
) -> dict[str, tuple[Array, Array]]:
    """Applies the threshold to the scores of each question; `squad_2_scores` returns their means.

    Args:
        answers, null_scores, threshold: as for `squad_2_scores`.
        scores: from `squad_2_question_scores`.

    Returns:
        dict of (exact match, F1), float64 [questions] each: "" for all questions, in the order of `answers`; "HasAns_"
        and "NoAns_" for those with and without an answer, if there are any.
    """
    has_answer = np.array([bool(golds) for golds in answers.values()])
    exact, f1 = np.where(_null_scores(answers, null_scores) > threshold, ~has_answer, scores)
    parts = {"": np.ones_like(has_answer), "HasAns_": has_answer, "NoAns_": ~has_answer}
    return {prefix: (exact[chosen], f1[chosen]) for prefix, chosen in parts.items() if chosen.any()}


def best_threshold(
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    scores: Values,
    null_scores: Mapping[str, float],
) -> tuple[float, float]:
    """Finds the null threshold with the best mean score, as find_best_thresh of evaluate-v2.0.py does.

    It starts with all questions unanswered, at a threshold of 0, and answers them one by one in the order of their
    null scores; among equal means the lowest threshold wins. Like the script it can stop between questions with equal
    null scores, which no threshold separates: `squad_2_scores` at that threshold then differs from the best mean.

    Args:
        answers, predictions: as for `squad_2_scores`.
        scores: float [questions] in the order of `answers`, from `squad_2_question_scores`.
        null_scores: as for `squad_2_scores`.

    Returns:
        (best mean score, threshold).
    """
    _check_questions(answers)
    _null_scores(answers, null_scores)
    score_of = dict(zip(answers, scores, strict=True))
    best = current = float(sum(not golds for golds in answers.values()))
    threshold = 0.0
    for name in sorted((name for name in null_scores if name in score_of), key=lambda name: null_scores[name]):
        if answers[name]:
            current += score_of[name]
        elif predictions[name]:
            current -= 1
        if current > best:
            best, threshold = current, null_scores[name]
    return float(best / len(score_of)), float(threshold)


def best_of_resamples(
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    scores: Values,
    null_scores: Mapping[str, float],
) -> Callable[[Array], Array]:
    """Computes the best mean score of many resamples of the questions, each at its own best threshold.

    Args:
        answers, predictions, scores, null_scores: as for `best_threshold`.

    Returns:
        function of int [resamples, questions], the count of each question, to float64 [resamples].
    """
    order = np.argsort(_null_scores(answers, null_scores), kind="stable")
    has_answer = np.array([bool(golds) for golds in answers.values()])
    gains = np.where(has_answer, scores, [-bool(predictions[name]) for name in answers])  # from answering

    def best(counts: Array) -> Array:
        answered = (counts * gains)[:, order].cumsum(1).max(1)
        return (counts @ ~has_answer + np.maximum(answered, 0)) / counts.sum(1)

    return best


def _check_questions(answers: Mapping[str, Sequence[str]]) -> None:
    if not answers:
        raise DataError("no questions: nothing to measure; expected at least one")


def _null_scores(answers: Mapping[str, Sequence[str]], null_scores: Mapping[str, float]) -> Array:
    for name in answers:
        if math.isnan(null_scores.get(name, math.nan)):  # infinity is allowed: the null answer was the only one
            null_score = null_scores.get(name)
            raise DataError(f"question {name!r} has null score {null_score}; expected a number for each question")
    return np.array([null_scores[name] for name in answers], np.float64)


def _means(exact: Array, f1: Array) -> Metrics:
    return {"exact_match": float(exact.mean()), "f1": float(f1.mean())}


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
