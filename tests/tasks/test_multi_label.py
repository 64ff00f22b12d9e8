"""Several labels per text: reading, training, decisions and metrics."""

import json

import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf
from scipy.special import expit

from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import ReadReport, TextExample
from bert_tf.inputs.datasets.sources import Source
from bert_tf.tasks.multi_label import MultiLabel, MultiLabelConfig
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model.small import PIECES


def examples_of(*labels):
    return [TextExample(str(row), ("a b",), label, f"file:{row}") for row, label in enumerate(labels)]


def create(*labels, **config):
    return MultiLabel.learn(Tokenizer(PIECES), MultiLabelConfig(**config), ExampleData(), examples_of(*labels), None)


@pytest.mark.parametrize(
    "name, content, separator",
    [
        ("a.tsv", "sentence\tlabel\na\tfun, sad\nb\t\nc\tsad\nd\tsad,sad\n", ","),
        ("a.csv", 'sentence,label\na,"fun;sad"\nb,\nc,sad\nd,sad;;sad\n', ";"),
        (
            "a.jsonl",
            "".join(
                json.dumps({"sentence": text, "label": labels}) + "\n"
                for text, labels in (("a", ["fun", "sad"]), ("b", []), ("c", "sad"), ("d", ["sad", "sad"]))
            ),
            ",",
        ),
    ],
)
def test_labels_are_lists_in_json_and_separated_in_tables(tmp_path, name, content, separator):
    (tmp_path / name).write_text(content)
    examples = list(Source(ExampleData(), str(tmp_path / name), TextExample).examples(ReadReport(), "train"))
    config = MultiLabelConfig(separator=separator)
    task = MultiLabel.learn(Tokenizer(PIECES), config, ExampleData(), examples, None)
    assert task.state.labels == ("fun", "sad")
    columns = task.codec.to_tensors(examples, labelled=True)
    np.testing.assert_array_equal(columns["labels"], [[1, 1], [0, 0], [0, 1], [0, 1]])


def test_an_unknown_label_is_an_error_in_training_and_counts_as_a_missed_one_in_evaluation():
    with pytest.raises(DataError) as raised:
        create("x", "x,z", labels=("x", "y"))
    assert str(raised.value) == "file:1: label 'z' is not one of the model's: 'x', 'y'; correct it"
    task, examples, read_report = create("x,y"), examples_of("x", "x,z", "y"), ReadReport()
    task.check(examples, read_report)
    assert read_report.lines() == ["never predicted: label 'z', not in the training data: 1 (file:1)"]
    np.testing.assert_array_equal(task.codec.to_tensors(examples, labelled=True)["labels"], [[1, 0], [1, 0], [0, 1]])
    predictions = [{"labels": list(label), "probabilities": {"x": 0.5, "y": 0.5}} for label in "xxy"]
    scores = task.benchmark.official_metrics(examples, predictions)
    gold, found = np.array([[1, 0, 0], [1, 0, 1], [0, 1, 0]]), np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    assert scores["micro_f1"] == pytest.approx(sklearn.metrics.f1_score(gold, found, average="micro"))
    assert scores["macro_f1"] == pytest.approx(2 / 3) and scores["exact_match"] == pytest.approx(2 / 3)
    analysis = task.benchmark.error_analysis(examples, predictions)
    assert len(analysis.confidences) == len(analysis.correct) == 6
    assert [row[0] for row in analysis.table.rows] == ["x", "y", "z"]
    assert [(error.expected, error.answered) for error in analysis.errors] == [("x, z", "x")]


def test_a_number_is_not_a_label():
    with raises(DataError, "file:1", "0.5"):
        create("x,y", 0.5)


def test_a_label_from_json_that_would_be_read_as_two_is_refused():
    with raises(ConfigError, "'x,y'", "task.separator", "','"):
        create(("x,y", "z"), ("z",))
    assert create(("x,y", "z"), ("z",), separator="|").state.labels == ("x,y", "z")


def test_training_examples_without_any_label_are_refused():
    with raises(DataError, "file:0"):
        create("", "")


@pytest.mark.parametrize(
    "fields, message",
    [({"threshold": 1.0}, "task.threshold is 1.0; expected a number"), ({"separator": ""}, "separator is empty")],
)
def test_invalid_settings_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        MultiLabelConfig(**fields).check()


def test_the_loss_is_the_mean_cross_entropy_of_the_labels_and_may_be_balanced():
    task = create("x,y", "y", "y", "y", "", "y", balanced=True)  # x once in six, y five times
    assert task.state.class_weights == (5.0, 0.2)
    given = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    logits = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    rows = {"labels": tf.constant(given), "truncated": tf.constant([False, True, False])}
    rows["window"] = tf.zeros(3, tf.int64)
    sums = task.objective.loss_and_metrics(rows, {"logits": tf.constant(logits)})
    by_hand = -(np.array([5.0, 0.2]) * given * np.log(expit(logits)) + (1 - given) * np.log(expit(-logits)))
    np.testing.assert_allclose(sums["loss"], [by_hand.mean(1).sum(), 3], rtol=1e-5)
    np.testing.assert_allclose(sums["truncated_share"], [1, 3])
    assert float(task.objective.weights(rows)["loss"]) == 3.0
    plain = create("x,y").objective.loss_and_metrics(rows, {"logits": tf.constant(logits)})["loss"][0] / 3
    assert float(plain) == pytest.approx(sklearn.metrics.log_loss(given.ravel(), expit(logits).ravel()), rel=1e-5)
    assert set(sums) == {*task.objective.losses, *task.objective.metric_names}


def test_labels_are_assigned_from_the_threshold_on():
    task = create("x,y", threshold=0.3)
    logits = np.log([[0.29 / 0.71, 0.31 / 0.69], [0.9 / 0.1, 0.1 / 0.9], [0.1 / 0.9, 0.2 / 0.8]]).astype(np.float32)
    answers = task.codec.aggregate_windows(
        {"text": tf.constant(["a"] * 3)}, tf.range(3), {"logits": tf.constant(logits)}
    )
    predictions = task.codec.predictions(
        examples_of(None, None, None), {name: a.numpy() for name, a in answers.items()}
    )
    assert [one["labels"] for one in predictions] == [["y"], ["x"], []]
    assert predictions[0]["probabilities"] == pytest.approx({"x": 0.29, "y": 0.31})
    json.dumps(predictions, default=dict)
    half = {"logits": tf.zeros([1, 2])}
    answers = create("x,y", threshold=0.5).codec.aggregate_windows({"text": tf.constant(["a"])}, tf.range(1), half)
    assert answers["given"].numpy().tolist() == [[True, True]]


def test_predictions_are_written_as_a_table(tmp_path):
    task = create("x,y")
    predicted = [(None, {"labels": ["x", "y"], "probabilities": {"x": 0.75, "y": 0.5}})]
    predicted += [(None, {"labels": [], "probabilities": {"x": 0.25, "y": 0.125}})]
    task.writers()[".tsv"](tmp_path / "a.tsv", iter(predicted))
    expected = "labels\tx\ty\nx,y\t0.750000\t0.500000\n\t0.250000\t0.125000\n"
    assert (tmp_path / "a.tsv").read_text() == expected


def test_labels_with_line_breaks_do_not_break_the_table(tmp_path):
    task = create(("a\tb", "c\r\nd"), ())
    predicted = [(None, {"labels": ["a\tb"], "probabilities": {"a\tb": 0.75, "c\r\nd": 0.5}})]
    task.writers()[".tsv"](tmp_path / "a.tsv", iter(predicted))
    with open(tmp_path / "a.tsv", newline="") as file:
        assert file.read() == "labels\ta b\tc  d\na b\t0.750000\t0.500000\n"


def test_metrics_intervals_and_baseline():
    random, labels = np.random.default_rng(1), np.array(["x", "y", "z"])
    gold, found = random.random((150, 3)) < [0.2, 0.6, 0.4], random.random((150, 3)) < [0.2, 0.6, 0.4]
    examples = examples_of(*[tuple(labels[row]) for row in gold])
    shares = 0.5 * found + 0.5 * random.random((150, 3))  # those from 0.5 on are assigned
    predictions = [
        {"labels": labels[row].tolist(), "probabilities": dict(zip(labels, share, strict=True))}
        for row, share in zip(found, shares, strict=True)
    ]
    task = create("x,y,z")
    scores = task.benchmark.official_metrics(examples, predictions)
    assert scores["micro_f1"] == pytest.approx(sklearn.metrics.f1_score(gold, found, average="micro"))
    assert scores["macro_f1"] == pytest.approx(sklearn.metrics.f1_score(gold, found, average="macro"))
    assert scores["exact_match"] == pytest.approx(sklearn.metrics.accuracy_score(gold, found))
    error_analysis = task.benchmark.error_analysis(examples, predictions)
    assert error_analysis.intervals.keys() == scores.keys()
    assert all(low < scores[name] < high for name, (low, high) in error_analysis.intervals.items())
    # Each label of each example is a decision: assigned with its probability, or not assigned with the complement.
    np.testing.assert_allclose(error_analysis.confidences, [max(share, 1 - share) for share in shares.ravel()])
    assert np.mean(error_analysis.correct) == pytest.approx((gold == found).mean())
    name, precision, recall, f1, count = error_analysis.table.rows[0]
    assert (name, count) == ("x", gold[:, 0].sum())
    assert (precision, recall, f1) == pytest.approx(
        sklearn.metrics.precision_recall_fscore_support(gold[:, 0], found[:, 0], average="binary")[:3]
    )
    assert (gold[int(error_analysis.errors[0].location[5:])] != found[int(error_analysis.errors[0].location[5:])]).all()
    assert task.benchmark.baseline(examples_of("", ""))["exact_match"] == 1.0  # of examples without any label
    assert task.benchmark.baseline(examples_of("z", "", "y", "z", ""))["exact_match"] == 2 / 5  # z alone, the commonest
    assert (
        task.benchmark.baseline(examples_of("x,y", "x", "", "y"))["exact_match"] == 1 / 4
    )  # both, of half of the examples
    # y is assigned more often than not, the others are not.
    assert task.benchmark.baseline(examples)["exact_match"] == pytest.approx(
        (gold == [False, True, False]).all(1).mean()
    )
