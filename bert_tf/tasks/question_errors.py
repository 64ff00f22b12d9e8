"""Error analysis of question answering."""

import math

import numpy as np

from bert_tf.inputs.datasets.examples import QuestionExample
from bert_tf.metrics import bootstrap
from bert_tf.metrics.answer_spans import (
    Squad2Questions,
    question_scores,
    squad_1_scores,
    squad_2_questions,
    squad_2_scores,
)
from bert_tf.tasks.error_analysis import LISTED, ErrorAnalysis, ErrorExample
from bert_tf.types import Json, Metrics

# Of the examples shown: how many, the characters of context around the answer, and the text for "no answer".
_SHOWN, _AROUND, _NOTHING = 20, 200, "(no answer)"


def scoring_inputs(
    examples: list[QuestionExample], predictions: list[Json]
) -> tuple[list[list[str]], list[str], list[float]]:
    """Gold texts, text of the best span ("" if there is none) and null odds (if the task has them) of each question.

    A diverged model, whose odds are NaN, has no answer.
    """
    gold = [_gold(example) for example in examples]
    predicted = [one["nbest"][0]["answer"] if one["nbest"] else "" for one in predictions]
    odds = [one["null_odds"] for one in predictions if "null_odds" in one]
    return gold, predicted, [math.inf if value != value else value for value in odds]


def _gold(example: QuestionExample) -> list[str]:
    assert example.answers is not None  # labelled
    return [answer.text for answer in example.answers]


def question_errors(
    examples: list[QuestionExample], predictions: list[Json], threshold: float | None, *, korean: bool
) -> ErrorAnalysis:
    """Analyses answers to questions.

    Args:
        examples, predictions: as for `Benchmark.error_analysis`.
        threshold: null odds above which the prediction is "no answer"; None if every question has an answer.
        korean: whether to score by KorQuAD's rules.
    """
    gold, predicted, odds = scoring_inputs(examples, predictions)
    if threshold is None:
        exact, f1 = question_scores(gold, predicted, korean=korean)
        intervals = bootstrap.intervals(squad_1_scores, exact, f1)
    else:
        questions = squad_2_questions(gold, predicted, odds, korean=korean)
        exact, f1 = np.where(questions.null_scores > threshold, ~questions.has_answer, questions[:2])
        intervals = bootstrap.intervals(
            lambda *columns: _shares(squad_2_scores(Squad2Questions(*columns), threshold)), *questions
        )
        predicted = ["" if null > threshold else text for text, null in zip(predicted, odds, strict=True)]
    answered = [index for index, text in enumerate(predicted) if text]
    confidences = [predictions[index]["nbest"][0]["probability"] for index in answered]

    def shown(index: int, confidence: float | None = None) -> ErrorExample:
        one = examples[index]
        texts = one.question, _excerpt(one)
        expected = " / ".join(dict.fromkeys(gold[index])) or _NOTHING
        return ErrorExample(texts, expected, predicted[index] or _NOTHING, one.location, confidence)

    # A wrong answer is worse than none, and a confident one is the worst.
    wrong = [(confidence, index) for confidence, index in zip(confidences, answered, strict=True) if not f1[index]]
    wrong.sort(key=lambda pair: -pair[0])
    sample = range(0, len(examples), max(1, len(examples) // _SHOWN))
    return ErrorAnalysis(
        intervals=intervals,
        confidences=confidences,
        correct=[bool(exact[index]) for index in answered],
        errors=[shown(index, confidence) for confidence, index in wrong[:LISTED]],
        examples=[shown(index) for index in sample][:_SHOWN],
    )


def _shares(metrics: Metrics) -> Metrics:
    """The metrics without counts and thresholds, whose intervals mean nothing."""
    return {name: value for name, value in metrics.items() if not name.endswith(("total", "thresh"))}


def _excerpt(example: QuestionExample) -> str:
    """The context around the first answer, or its beginning."""
    answer = example.placed
    first, last = 0, 2 * _AROUND
    if answer and answer.start is not None:
        first, last = max(0, answer.start - _AROUND), answer.start + len(answer.text) + _AROUND
    context = example.context
    return ("…" if first else "") + context[first:last] + ("…" if last < len(context) else "")
