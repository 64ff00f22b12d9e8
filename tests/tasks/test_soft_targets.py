"""Soft targets against their definitions, and what each row of a student is compared with."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

import bert_tf
from bert_tf.config import TaskDistillation
from bert_tf.errors import DataError
from bert_tf.inputs.batching import _numbered, microbatch
from bert_tf.inputs.datasets.examples import tagged
from bert_tf.tasks.classification import ClassificationObjective
from bert_tf.tasks.labels import LabelsState
from bert_tf.tasks.objective import SoftOutput
from bert_tf.tasks.soft_targets import Answers, Distilled, SoftTargets, collect, soft_loss
from bert_tf.tasks.tagging import Tagging
from tests import zoo
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


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            name, marks=[pytest.mark.slow] * (name not in ("intent and slots", "questions", "multiple choice"))
        )
        for name in harness.ROWS
    ],
)
def fitted(request):
    return harness.fitted(request.param)


@pytest.fixture(scope="module")
def batch(fitted):
    """The features of the row's examples, the model's outputs, and these as the answers of a teacher."""
    task, model = fitted.model.task, fitted.model.model
    columns = task.codec.to_tensors(harness.examples_of(fitted.model, fitted.row.x, fitted.row.y), labelled=True)
    features = task.codec.pad(_numbered(task.codec.preprocess(columns)))
    outputs = model({name: features[name] for name in model.input}, training=False)
    about = task.objective.answered(features)
    answers = {
        name: collect([(one.read(outputs[name]).numpy(), about[name].numpy(), features["row"].numpy())], 6, str)
        for name, one in task.objective.soft_outputs.items()
    }
    return features, outputs, answers


def test_the_answers_of_a_teacher_are_its_predictions(fitted, batch):
    answers, rows = batch[2], fitted.asked[: len(fitted.row.x)]

    def of(name, row):
        values, counts = answers[name]
        return values[counts[:row].sum() : counts[: row + 1].sum()].astype(np.float64)

    for row, prediction in enumerate(rows):
        kind = fitted.model.task.name
        if kind == "regression":
            low, high = fitted.model.task.state.scale or (-np.inf, np.inf)
            assert prediction["value"] == pytest.approx(np.clip(of("logits", row)[0, 0], low, high), abs=1e-5)
        elif kind == "multi_label_classification":
            shares = special.expit(of("logits", row)[0])
            assert list(prediction["probabilities"].values()) == pytest.approx(shares, abs=1e-5)
        elif kind == "classification":
            shares = special.softmax(of("logits", row)[0])
            assert list(prediction["probabilities"].values()) == pytest.approx(shares, abs=1e-5)
        elif kind == "multiple_choice":
            assert prediction["probabilities"] == pytest.approx(special.softmax(of("logits", row)[:, 0]), abs=1e-5)
        elif kind == "question_answering":
            best = np.nanmax(of("start_logits", row)) + np.nanmax(of("end_logits", row))
            assert prediction["nbest"][0]["score"] <= best + 1e-5
        else:
            slots = special.softmax(of("slot_logits" if kind == "intent_and_slots" else "logits", row), -1).max(-1)
            if fitted.model.task.state.unit == "words":
                known = ~np.isnan(slots)
                np.testing.assert_allclose(np.array(prediction["scores"])[: len(slots)][known], slots[known], atol=1e-5)
            if kind == "intent_and_slots":
                shares = special.softmax(of("intent_logits", row)[0])
                assert list(prediction["intent_probabilities"].values()) == pytest.approx(shares, abs=1e-5)


def test_a_student_that_is_its_teacher_has_no_soft_loss_and_another_one_has(fitted, batch):
    (features, outputs, answers), objective = batch, fitted.model.task.objective
    distilled = Distilled(objective, TaskDistillation(temperature=3.0, weight=1.0), labelled=True)
    rows = SoftTargets(objective, answers, 6)(features)
    assert set(distilled.losses) == set(distilled.weights(rows))
    in_windows = len(np.unique(features["row"])) < len(features["row"])
    for name, (total, weight) in distilled.loss_and_metrics(rows, outputs).items():
        # The windows of a text learn the mean of its windows' answers; words and tokens have one of their own.
        if not (in_windows and fitted.model.task.name in ("classification", "intent_and_slots")):
            assert float(total) == pytest.approx(0, abs=1e-4)
        assert float(weight) == pytest.approx(float(distilled.weights(rows)[name])) and weight > 0
    draws = np.random.default_rng(0)
    others = {name: draws.normal(size=output.shape).astype(np.float32) for name, output in outputs.items()}
    assert all(total > 1e-4 for total, _ in distilled.loss_and_metrics(rows, others).values())


def test_labels_of_rows_without_labels_are_not_learned(fitted, batch):
    (features, outputs, answers), objective = batch, fitted.model.task.objective
    distilled = Distilled(objective, TaskDistillation(weight=0.5), labelled=False)
    rows = SoftTargets(objective, answers, 2)(features)
    hard = [name for name in distilled.losses if name.startswith("label_")]
    variables = {name: tf.Variable(output) for name, output in outputs.items()}
    with tf.GradientTape() as tape:
        made = distilled.loss_and_metrics(rows, {name: tf.identity(one) for name, one in variables.items()})
        loss = sum(made[name][0] for name in hard)
    is_labelled = features["row"].numpy() < 2
    alone = objective.loss_and_metrics(
        *({name: value[is_labelled] for name, value in part.items()} for part in (features, outputs))
    )
    for name in objective.losses:
        assert float(made[f"label_{name}"][0]) == pytest.approx(float(alone[name][0]), rel=1e-5)
    whole = objective.loss_and_metrics(features, outputs)
    for logged, weights in ((made, distilled.weights(rows)), (whole, objective.weights(features))):
        for name, weight in weights.items():  # what is logged is minimized
            assert float(logged[name][1]) == pytest.approx(float(weight), rel=1e-5)
    for name in objective.metric_names:  # and the share of right answers is one of answers that are known
        assert float(made[name][1]) == pytest.approx(float(alone[name][1]), rel=1e-6)
    for gradient in tape.gradient(loss, list(variables.values())):
        gradient = tf.convert_to_tensor(gradient).numpy()
        assert not gradient[~is_labelled].any() and gradient[is_labelled].any()


def test_the_losses_of_the_parts_of_a_batch_add_up_to_those_of_the_batch(fitted, batch):
    (features, outputs, answers), objective = batch, fitted.model.task.objective
    distilled = Distilled(objective, TaskDistillation(), labelled=False)
    rows = SoftTargets(objective, answers, 3)(features)
    made, weights = distilled.loss_and_metrics(rows, outputs), distilled.weights(rows)
    parts = [[microbatch(dict(part), index, 3) for part in (rows, outputs)] for index in range(3)]
    for name in distilled.losses:
        totals = [distilled.loss_and_metrics(*part)[name] for part in parts]
        np.testing.assert_allclose(np.sum(totals, 0), made[name], rtol=1e-4, atol=1e-5)
        assert sum(float(distilled.weights(part)[name]) for part, _ in parts) == pytest.approx(
            float(weights[name]), rel=1e-6
        )


def test_the_loss_that_is_logged_is_the_one_that_is_minimized_where_texts_have_no_labels():
    """15 of 24 texts have labels: the label loss of the others is 0, in the gradient and in the curves."""
    draws = np.random.default_rng(3)
    student, teacher = draws.normal(0, 2, (2, 24, 3))
    labels = draws.integers(0, 3, 24)
    objective = ClassificationObjective("classification", LabelsState(labels=("p", "q", "r")))
    distilled = Distilled(objective, TaskDistillation(temperature=3.0, weight=0.7), labelled=False)
    features = {"row": tf.range(24), "labels": tf.constant(labels, tf.int32), "truncated": tf.zeros(24, tf.int32),
                "window": tf.zeros(24, tf.int32)}  # fmt: skip
    answers = {"logits": Answers(teacher.astype(np.float32), np.ones(24, np.int64))}
    rows = SoftTargets(objective, answers, 15)(features)
    made = distilled.loss_and_metrics(rows, {"logits": tf.constant(student, tf.float32)})
    logged = distilled.total({name: float(made[name][0] / made[name][1]) for name in distilled.losses})
    hard = -special.log_softmax(student, -1)[np.arange(15), labels[:15]].sum() / 24
    soft = defined("softmax", student, teacher, 3.0)[0].mean()
    assert logged == pytest.approx(0.3 * hard + 0.7 * soft, rel=1e-5)


def test_texts_without_labels_have_no_class_weight():
    state = LabelsState(labels=("p", "q"), class_weights=(5.0, 0.5))
    distilled = Distilled(ClassificationObjective("classification", state), TaskDistillation(), labelled=False)
    features = {"row": tf.range(4), "labels": tf.constant([0, 1, 0, 0])}
    answers = {"logits": Answers(np.zeros([4, 2], np.float32), np.ones(4, np.int64))}
    rows = SoftTargets(ClassificationObjective("classification", state), answers, 2)(features)
    assert float(distilled.weights(rows)["label_loss"]) == 5.0 + 0.5 + 1 + 1


def test_words_are_compared_where_student_and_teacher_split_them_otherwise():
    words = [["unbelievable", "stories", "."], ["a", "\u200b", "good"]]
    teacher = bert_tf.Tokenizer([*zoo.VOCABULARY, "unbelievable", "stories"])
    student = bert_tf.Tokenizer(zoo.VOCABULARY)
    examples = [tagged(str(row), one, None, None, f"x[{row}]") for row, one in enumerate(words)]
    tasks = [Tagging(tokenizer, labels=("O", "N")) for tokenizer in (teacher, student)]
    features = [
        task.codec.pad(task.codec.preprocess(task.codec.to_tensors(examples, labelled=False))) for task in tasks
    ]
    answers = Answers(np.array([[1, 0], [2, 0], [3, 0], [4, 0], [np.nan, np.nan], [5, 0]], np.float32),
                      np.array([3, 3]))  # fmt: skip
    for one, task in zip(features, tasks, strict=True):
        rows = SoftTargets(task.objective, {"logits": answers}, 2)(one)
        values = rows["teacher/logits"].numpy()[..., 0]
        assert [row[row > 0].tolist() for row in values] == [[1, 2, 3], [4, 5]]
        np.testing.assert_array_equal(rows["teacher_known/logits"].numpy() > 0, values > 0)
    assert features[0]["word"].shape[1] < features[1]["word"].shape[1]
