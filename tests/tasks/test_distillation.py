"""Soft targets against their definitions, and how the answers of windows and words are matched."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

import bert_tf
from bert_tf.config import TaskDistillation
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import tagged
from bert_tf.tasks.classification import ClassificationObjective
from bert_tf.tasks.distillation import Answers, Distilled, SoftTargets, collect, soft_loss
from bert_tf.tasks.labels import LabelsState
from bert_tf.tasks.objective import SoftOutput
from bert_tf.tasks.tagging import Tagging
from tests.errors import raises
from tests.tasks import harness

KINDS = ("softmax", "sigmoid", "number")


def _binary(p, q):
    return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))


def defined(kind, student, teacher, temperature):
    """The loss of Hinton et al., section 2, as a divergence, and its gradient by the student's logits, in float64."""
    width, student, teacher = student.shape[-1], student.astype(np.float64), teacher.astype(np.float64)
    if kind == "number":
        return np.mean((student - teacher) ** 2, -1), 2 * (student - teacher) / width
    if kind == "softmax":
        p, q = special.softmax(teacher / temperature, -1), special.softmax(student / temperature, -1)
        return temperature**2 * (p * np.log(p / q)).sum(-1), temperature * (q - p)
    p, q = special.expit(teacher / temperature), special.expit(student / temperature)
    return temperature**2 * _binary(p, q).mean(-1), temperature * (q - p) / width


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_soft_loss_and_its_gradient_are_those_of_the_definition(kind, temperature):
    student, teacher = np.random.default_rng(1).normal(0, 3, (2, 5, 7)).astype(np.float32)
    logits = tf.Variable(student)
    with tf.GradientTape() as tape:
        loss = soft_loss(SoftOutput(kind), logits, tf.constant(teacher), temperature)
    expected, gradient = defined(kind, student, teacher, temperature)
    np.testing.assert_allclose(loss, expected, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(tape.gradient(loss, logits), gradient, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_the_gradient_of_a_soft_loss_does_not_vanish_with_the_temperature(kind):
    """Hinton et al., section 2.1: at high temperatures it is that of the difference of centred logits / number."""
    student, teacher = np.random.default_rng(2).normal(0, 1, (2, 1, 4)).astype(np.float32)
    logits = tf.Variable(student)
    with tf.GradientTape() as tape:
        loss = soft_loss(SoftOutput(kind), logits, tf.constant(teacher), 300.0)
    gap = student - teacher
    expected = (gap - gap.mean()) / 4 if kind == "softmax" else gap / 4 / 4
    np.testing.assert_allclose(tape.gradient(loss, logits), expected, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_sure_answers_have_a_finite_loss_and_gradient(kind):
    logits = tf.Variable([[100.0, -100.0, 0.0]])
    with tf.GradientTape() as tape:
        loss = soft_loss(SoftOutput(kind), logits, tf.constant([[-100.0, 100.0, -1e9]]), 1.0)
    assert np.isfinite(loss).all() and np.isfinite(tape.gradient(loss, logits)).all() and loss[0] > 30


def test_the_answers_of_windows_are_their_mean_and_parts_without_an_answer_are_unknown():
    windows = np.array([[1.0, 3.0], [5.0, 1.0], [0.0, 2.0]], np.float32)
    found = collect([(windows[:2], np.zeros(2, np.int32), np.array([0, 0])),
                     (windows[2:], np.zeros(1, np.int32), np.array([1]))], 2, str)  # fmt: skip
    np.testing.assert_array_equal(found.values, [[3.0, 2.0], [0.0, 2.0]])
    words = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    found = collect([(words, np.array([[-1, 0, 3], [-1, -1, 0]]), np.array([1, 0]))], 3, str)
    assert found.counts.tolist() == [1, 4, 0]
    np.testing.assert_array_equal(found.values[[0, 1, 4]], [[10, 11], [2, 3], [4, 5]])
    assert np.isnan(found.values[2:4]).all()


def test_a_teacher_that_answers_nan_is_refused_with_the_text():
    outputs = np.array([[0.0, 1.0], [np.nan, 1.0]], np.float32)
    with raises(DataError, "file:3", "teacher"):
        collect([(outputs, np.zeros(2, np.int32), np.array([2, 3]))], 4, "file:{}".format)


def test_texts_without_labels_have_no_class_weight():
    state = LabelsState(labels=("p", "q"), class_weights=(5.0, 0.5))
    distilled = Distilled(ClassificationObjective("classification", state), TaskDistillation(), labelled=False)
    features = {"row": tf.range(4), "labels": tf.constant([0, 1, 0, 0])}
    answers = {"logits": Answers(np.zeros([4, 2], np.float32), np.ones(4, np.int64))}
    rows = SoftTargets(ClassificationObjective("classification", state), answers, 2)(features)
    assert float(distilled.weights(rows)["label_loss"]) == 5.0 + 0.5 + 1 + 1


def test_words_are_compared_where_student_and_teacher_split_them_otherwise():
    words = [["unbelievable", "stories", "."], ["a", "\u200b", "good"]]
    teacher = bert_tf.Tokenizer([*harness.VOCABULARY, "unbelievable", "stories"])
    student = bert_tf.Tokenizer(harness.VOCABULARY)
    examples = [tagged(str(row), one, None, None, f"x[{row}]") for row, one in enumerate(words)]
    tasks = [Tagging(tokenizer, labels=("O", "N")) for tokenizer in (teacher, student)]
    features = [
        next(iter(task.codec.rows.batches(task.codec.to_tensors(examples, labelled=False), 10))) for task in tasks
    ]
    answers = Answers(np.array([[1, 0], [2, 0], [3, 0], [4, 0], [np.nan, np.nan], [5, 0]], np.float32),
                      np.array([3, 3]))  # fmt: skip
    for one, task in zip(features, tasks, strict=True):
        rows = SoftTargets(task.objective, {"logits": answers}, 2)(one)
        order = np.argsort(rows["row"])  # batches are sorted by length
        values = rows["teacher/logits"].numpy()[order, :, 0]
        assert [row[row > 0].tolist() for row in values] == [[1, 2, 3], [4, 5]]
        np.testing.assert_array_equal(rows["teacher_known/logits"].numpy()[order] > 0, values > 0)
    assert features[0]["word"].shape[1] < features[1]["word"].shape[1]
