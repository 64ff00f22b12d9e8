"""Answers of a damaged model are refused, whatever the task does with its outputs; a run that made it has a report."""

import math
import types

import pytest
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import (
    Answer,
    ChoiceExample,
    QuestionExample,
    ReadReport,
    TaggedExample,
    TextExample,
    tagged,
)
from bert_tf.report.pages import evaluation_page
from bert_tf.tasks.classification import Classification
from bert_tf.tasks.multi_label import MultiLabel
from bert_tf.tasks.multiple_choice import MultipleChoice
from bert_tf.tasks.question_answering import QuestionAnswering, QuestionAnsweringConfig
from bert_tf.tasks.regression import Regression
from bert_tf.tasks.tagging import Tagging, TaggingConfig
from bert_tf.text import Tokenizer
from tests.model.small import PIECES

WHERE = [f"rows:{number}" for number in range(3)]
TEXTS = [TextExample("0", ("a b",), None, where) for where in WHERE]
QUESTIONS = [QuestionExample("0", "a", "b c", None, where) for where in WHERE]
CHOICES = [ChoiceExample("0", "a", "", ("b", "c"), None, where) for where in WHERE]
SENTENCES = [tagged("0", ["a", "b"], None, number, where) for number, where in enumerate(WHERE)]
NO_ANSWER = QuestionAnsweringConfig(unanswerable=True)
SCALE = {"labels": ("value",), "scale": (0.0, 5.0)}
TAGS = {"labels": ("O", "B-X"), "unit": "words"}
# Task, its settings and state, examples, names of the model's outputs, and their shape for a number of tokens.
TASKS = {
    "classification": (Classification, None, {"labels": ("x", "y")}, TEXTS, ("logits",), lambda tokens: [2]),
    "multi-label": (MultiLabel, None, {"labels": ("x", "y")}, TEXTS, ("logits",), lambda tokens: [2]),
    "regression": (Regression, None, SCALE, TEXTS, ("logits",), lambda tokens: [1]),
    "tagging": (Tagging, None, TAGS, SENTENCES, ("logits",), lambda tokens: [tokens, 2]),
    "documents": (Tagging, TaggingConfig(context="document"), TAGS, SENTENCES, ("logits",), lambda tokens: [tokens, 2]),
    "choices": (MultipleChoice, None, {}, CHOICES, ("logits",), lambda tokens: [2]),
    "questions": (QuestionAnswering, None, {}, QUESTIONS, ("start_logits", "end_logits"), lambda tokens: [tokens]),
    "no answer": (QuestionAnswering, NO_ANSWER, {}, QUESTIONS, ("start_logits", "end_logits"), lambda tokens: [tokens]),
}
LABELS = {
    TextExample: {"label": "x"},
    TaggedExample: {"tags": ("O", "B-X")},
    ChoiceExample: {"label": 0},
    QuestionExample: {"answers": (Answer("b", 0),)},
}


def of_kind(kind, examples=None):
    """A task; and a function from whether the last row of the model's outputs is NaN to the predictions."""
    task_class, config, state, unlabelled, names, shape = TASKS[kind]
    task, examples = task_class(Tokenizer(PIECES), config, **state), examples or unlabelled
    columns = task.codec.to_tensors(examples, labelled=False)
    features = task.codec.pad(task.codec.preprocess(columns))

    def predicted(damaged, **how):
        outputs = tf.zeros([3, *shape(features["input_word_ids"].shape[-1])])
        if damaged:
            outputs = tf.tensor_scatter_nd_update(outputs, [[2]], tf.fill([1, *outputs.shape[1:]], math.nan))
        decoded = task.codec.postprocess(features, dict.fromkeys(names, outputs))
        answers = task.codec.aggregate_windows(columns, features["row"], decoded)
        return task.codec.predictions(examples, {name: answer.numpy() for name, answer in answers.items()}, **how)

    return task, predicted


@pytest.mark.parametrize("kind", TASKS)
def test_an_answer_that_is_not_finite_is_refused_with_its_location(kind):
    _, predicted = of_kind(kind)
    assert len(predicted(False)) == 3
    with pytest.raises(DataError, match=r"^rows:2: the model computes '\w+' as NaN or infinity; its weights are"):
        predicted(True)
    assert len(predicted(True, finite=False)) == 3  # in evaluations during training


@pytest.mark.parametrize("kind", TASKS)
def test_a_run_whose_model_has_diverged_ends_with_a_report(kind):
    examples = [one._replace(**LABELS[type(one)]) for one in TASKS[kind][3]]
    if kind == "regression":
        examples = [one._replace(label="3") for one in examples]
    if kind == "choices":
        examples[2] = examples[2]._replace(choices=("b",))
    task, predicted = of_kind(kind, examples)
    predictions = predicted(True, finite=False)
    task.benchmark.tune(examples, predictions)
    metrics = {"loss": math.nan} | task.benchmark.official_metrics(examples, predictions)
    split = types.SimpleNamespace(where="rows", examples=examples, read_report=ReadReport())
    page = evaluation_page(task, split, predictions, metrics)
    has_nan = any(
        not math.isfinite(value) for value in task.benchmark.error_analysis(examples, predictions).confidences
    )
    assert ("Left out, because confidences are NaN or infinite" in page) == has_nan


def test_the_metrics_of_a_diverged_regression_are_nan():
    examples = [example._replace(label=float(row)) for row, example in enumerate(TEXTS)]
    task = Regression(Tokenizer(PIECES), **SCALE)
    metrics = task.benchmark.official_metrics(examples, [{"value": value} for value in (1.0, math.nan, 3.0)])
    assert all(map(math.isnan, metrics.values()))


def test_a_diverged_model_answers_no_question():
    answers = (Answer("b", 0),), (), (Answer("c", 2),)
    examples = [
        example._replace(id=str(row), answers=found)
        for row, (example, found) in enumerate(zip(QUESTIONS, answers, strict=True))
    ]
    task = QuestionAnswering(Tokenizer(PIECES), NO_ANSWER)
    predictions = [{"id": example.id, "nbest": [], "null_odds": math.nan} for example in examples]
    task.benchmark.tune(examples, predictions)
    metrics = task.benchmark.official_metrics(examples, predictions)
    assert metrics["f1"] == metrics["NoAns_f1"] / 3 == 1 / 3
