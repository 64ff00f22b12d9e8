"""Exact match and F1 of answers, equal to the official scripts of SQuAD 1.1 and 2.0 and of KorQuAD 1.0."""

import collections
import math
import re
import string

import numpy as np

from bert_tf.errors import DataError

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_KORQUAD_MARKS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def squad_1_scores(answers, predictions):
    """As evaluate-v1.1.py: without punctuation, articles and case, F1 of words, the best of a question's answers.

    Args:
        answers: dict question id -> list of str, never empty.
        predictions: dict question id -> str; a question that is missing scores 0, other ids are passed over.

    Returns:
        dict: "exact_match", "f1", means over the questions, from 0 to 1.

    Raises:
        DataError: no questions, or a question without an answer.
    """
    return _means(*question_scores(answers, predictions))


def korquad_scores(answers, predictions):
    """As KorQuAD 1.0's evaluate-v1.0.py: quotes, brackets and angles are spaces, F1 of characters but spaces.

    Further ASCII punctuation is deleted; there are no articles. The rest is as in `squad_1_scores`.
    """
    return _means(*question_scores(answers, predictions, korean=True))


def question_scores(answers, predictions, *, korean=False):
    """The scores of which `squad_1_scores` and `korquad_scores` are the means.

    Args:
        answers, predictions: as for `squad_1_scores`.
        korean: by the rules of KorQuAD.

    Returns:
        (exact match, F1): float64 [questions], in the order of `answers`.

    Raises:
        DataError: as `squad_1_scores`.
    """
    _check_questions(answers)
    normalize, split = (_normalize_korean, _characters) if korean else (_normalize_english, str.split)
    scores = []
    for name, golds in answers.items():
        if not golds:
            raise DataError(
                f"question {name!r} has no answer; expected one, as in SQuAD 1.1: score this data as SQuAD 2.0"
            )
        if name not in predictions:
            scores.append((0.0, 0.0))
            continue
        found = normalize(predictions[name])
        golds = [normalize(gold) for gold in golds]
        scores.append((float(found in golds), max(_f1(split(gold), split(found)) for gold in golds)))
    return tuple(np.array(scores).T)


def squad_2_scores(answers, predictions, null_scores, threshold):
    """As evaluate-v2.0.py: a question may have no answer, and then "" is the right prediction.

    Args:
        answers: dict question id -> list of str, empty where there is no answer.
        predictions: dict question id -> str, one for each question: the best answer, or "".
        null_scores: dict question id -> float, higher where an answer is less likely: a probability or the null odds of
            google-research/bert.
        threshold: a question whose null score is above it counts as answered with "".

    Returns:
        dict: "exact", "f1", "total"; the same with "HasAns_" and "NoAns_" before them, of the questions with and
        without an answer, if there are any; "best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh", as
        `best_threshold` finds them. Scores from 0 to 1.

    Raises:
        DataError: no questions, or a question without prediction or null score.
    """
    scores = squad_2_question_scores(answers, predictions)
    measured = {}
    for prefix, (exact, f1) in squad_2_parts(answers, scores, null_scores, threshold).items():
        measured |= {f"{prefix}exact": float(exact.mean()), f"{prefix}f1": float(f1.mean())}
        measured[f"{prefix}total"] = float(len(exact))
    for name, values in zip(("exact", "f1"), scores, strict=True):
        best, found = best_threshold(answers, predictions, values, null_scores)
        measured |= {f"best_{name}": best, f"best_{name}_thresh": found}
    return measured


def squad_2_question_scores(answers, predictions):
    """The scores of `squad_2_parts`, before any threshold.

    Args:
        answers, predictions: as for `squad_2_scores`.

    Returns:
        (exact match, F1): float64 [questions], in the order of `answers`.

    Raises:
        DataError: no questions, or a question without prediction.
    """
    _check_questions(answers)
    scores = []
    for name, golds in answers.items():
        if name not in predictions:
            raise DataError(
                f"question {name!r} has no prediction; expected one for each, empty where there is no answer"
            )
        found = _normalize_english(predictions[name])
        # A gold answer of articles and punctuation only is none.
        golds = [gold for gold in map(_normalize_english, golds) if gold] or [""]
        f1 = max(_f1(gold.split(), found.split()) if gold and found else float(gold == found) for gold in golds)
        scores.append((float(found in golds), f1))
    return tuple(np.array(scores).T)


def squad_2_parts(answers, scores, null_scores, threshold):
    """The scores of which `squad_2_scores` takes the means.

    Args:
        answers, null_scores, threshold: as for `squad_2_scores`.
        scores: of `squad_2_question_scores`.

    Returns:
        dict of (exact match, F1), float64 [questions] each: "" of all questions, in the order of `answers`; "HasAns_"
        and "NoAns_" of those with and without an answer, if there are any.

    Raises:
        DataError: a question without null score.
    """
    has_answer = np.array([bool(golds) for golds in answers.values()])
    kept = np.where(_null_scores(answers, null_scores) > threshold, ~has_answer, scores)
    parts = {"": np.ones_like(has_answer), "HasAns_": has_answer, "NoAns_": ~has_answer}
    return {prefix: tuple(kept[:, chosen]) for prefix, chosen in parts.items() if chosen.any()}


def best_threshold(answers, predictions, scores, null_scores):
    """The null threshold that gives the best mean score, as find_best_thresh of evaluate-v2.0.py finds it.

    It starts with every question unanswered, at a threshold of 0, and answers them one by one in the order of their
    null scores; of equal means the lowest threshold wins. Like the script it can stop between questions of equal null
    score, which no threshold tells apart: `squad_2_scores` at that threshold is then not the mean that was found.

    Args:
        answers, predictions: as for `squad_2_scores`.
        scores: float [questions] in the order of `answers`, from `squad_2_question_scores`.
        null_scores: dict question id -> float.

    Returns:
        (best mean score, threshold).

    Raises:
        DataError: no questions, or a question without prediction or null score.
    """
    _check_questions(answers)
    _null_scores(answers, null_scores)
    scores = dict(zip(answers, scores, strict=True))
    best = current = sum(not golds for golds in answers.values())
    threshold = 0.0
    for name in sorted((name for name in null_scores if name in scores), key=null_scores.get):
        if answers[name]:
            current += scores[name]
        elif predictions[name]:
            current -= 1
        if current > best:
            best, threshold = current, null_scores[name]
    return float(best / len(scores)), float(threshold)


def best_of_resamples(answers, predictions, scores, null_scores):
    """The best mean score of resamples of the questions, each at its own best threshold.

    Args:
        answers, predictions, scores, null_scores: as for `best_threshold`.

    Returns:
        function of int [resamples, questions], how often each is drawn, to float64 [resamples].
    """
    order = np.argsort(_null_scores(answers, null_scores), kind="stable")
    has_answer = np.array([bool(golds) for golds in answers.values()])
    gains = np.where(has_answer, scores, [-bool(predictions[name]) for name in answers])  # of answering

    def best(counts):
        answered = (counts * gains)[:, order].cumsum(1).max(1)
        return (counts @ ~has_answer + np.maximum(answered, 0)) / counts.sum(1)

    return best


def _check_questions(answers):
    if not answers:
        raise DataError("no questions: nothing to measure; expected at least one")


def _null_scores(answers, null_scores):
    for name in answers:
        if math.isnan(null_scores.get(name, math.nan)):  # infinite may be: there was nothing but the null answer
            found = null_scores.get(name)
            raise DataError(f"question {name!r} has null score {found}; expected a number for each question")
    return np.array([null_scores[name] for name in answers], np.float64)


def _means(exact, f1):
    return {"exact_match": float(exact.mean()), "f1": float(f1.mean())}


def _normalize_english(text):
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _normalize_korean(text):
    return " ".join(text.translate(_KORQUAD_MARKS).lower().translate(_PUNCTUATION).split())


def _characters(text):
    return text.replace(" ", "")


def _f1(gold, found):
    """F1 of two bags of units; 0 if they share none, empty ones included."""
    shared = (collections.Counter(gold) & collections.Counter(found)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(found), shared / len(gold)
    return 2 * precision * recall / (precision + recall)
