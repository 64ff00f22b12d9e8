"""Regression: numbers of texts, their scale, their metrics."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.formats import SIMILARITY
from bert_tf.tasks.regression import Regression, RegressionConfig
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model.small import PIECES, features, small_config


def examples_of(*labels):
    return [TextExample(str(row), ("a b",), label, f"file:{row}") for row, label in enumerate(labels)]


def create(labels, *, scale=None, **data):
    return Regression.learn(Tokenizer(PIECES), RegressionConfig(), ExampleData(**data), examples_of(*labels), scale)


def test_the_loss_is_the_squared_error_and_labels_may_be_written_as_text():
    task = create(["1.5", "-2", "3e1"])
    columns = task.codec.to_tensors(examples_of("1.5", "-2", "3e1"), labelled=True)
    np.testing.assert_array_equal(columns["labels"], [1.5, -2.0, 30.0])
    rows = {"labels": columns["labels"], "truncated": tf.constant([True, False, False])}
    rows["window"] = tf.zeros(3, tf.int64)
    metrics = task.objective.loss_and_metrics(rows, {"logits": tf.constant([[1.0], [0.0], [30.0]])})
    np.testing.assert_allclose(metrics["loss"], [0.25 + 4.0, 3.0])
    np.testing.assert_allclose(metrics["truncated_share"], [1, 3])
    assert float(task.objective.weights(rows)["loss"]) == 3.0
    assert set(metrics) == {*task.objective.losses, *task.objective.metric_names}


@pytest.mark.parametrize("label", ["many", "nan", "inf", "", ("1", "2")])
def test_a_label_that_is_not_a_number_is_reported_with_its_location(label):
    with pytest.raises(DataError) as raised:
        create(["1", label])
    found = f"label {label!r}" if label else "the label is empty"
    assert str(raised.value) == f"file:1: {found}; expected a number"


def test_a_single_example_is_refused_before_training():
    with raises(DataError, "file:0"):
        create([1.0, 2.0]).codec.to_tensors(examples_of(1.0), labelled=True)


@pytest.mark.parametrize("scale, expected", [(None, [-3.0, 7.0, 2.5]), (SIMILARITY, [0.0, 5.0, 2.5])])
def test_answers_are_means_over_windows_clipped_to_the_scale_of_the_format(scale, expected):
    task = create([0.0, 5.0], scale=scale)
    values = tf.constant([[-3.0], [7.0], [2.0], [3.0]])
    answers = task.codec.aggregate_windows(
        {"text": tf.constant(["a", "b", "c"])}, tf.constant([0, 1, 2, 2]), {"values": values}
    )
    np.testing.assert_allclose(answers["value"], expected)
    again = Regression.from_settings(task.settings(), task.tokenizer)
    assert again.settings() == task.settings()


def test_a_new_head_predicts_the_mean_and_deviation_of_the_training_examples():
    """Numbers around 1000 would take thousands of updates to reach from 0."""
    encoder = BertEncoder(small_config(num_layers=1))
    rows = features(lengths=(24, 7, 1, 13) * 50)
    for labels in ([1000.0, 1100.0, 900.0], [7.0, 7.0]):
        model = create(labels).build(encoder)
        values = model(rows)["logits"].numpy()
        unit = create([-1.0, 1.0]).build(encoder).get_layer("classifier").kernel.numpy().std()  # mean 0, deviation 1
        spread = model.get_layer("classifier").kernel.numpy().std() / unit
        assert abs(values.mean() - np.mean(labels)) < (np.std(labels) or 1.0)
        assert spread == pytest.approx(np.std(labels) or 1.0, rel=0.6)  # two resamples of 32 values


def test_metrics_are_the_correlations_and_those_of_glue_and_klue():
    random = np.random.default_rng(0)
    gold = random.uniform(0, 5, 60)
    found = np.clip(gold + random.normal(0, 1, 60), 0, 5)
    examples, predictions = examples_of(*gold), [{"value": value} for value in found]
    pearson, spearman = scipy.stats.pearsonr(gold, found)[0], scipy.stats.spearmanr(gold, found)[0]
    expected = {"pearson": pytest.approx(pearson), "spearman": pytest.approx(spearman)}
    own, glue, klue = create(gold), create(gold, format="glue/stsb"), create(gold, format="klue/sts")
    tfds = create(gold, source="tfds:glue/stsb")
    assert own.benchmark.official_metrics(examples, predictions) == expected
    mean = {"score": pytest.approx((pearson + spearman) / 2)}
    assert (
        glue.benchmark.official_metrics(examples, predictions)
        == tfds.benchmark.official_metrics(examples, predictions)
        == expected | mean
    )
    right, wrong = ((gold >= 3) & (found >= 3)).sum(), ((gold >= 3) != (found >= 3)).sum()
    assert klue.benchmark.official_metrics(examples, predictions) == expected | {
        "f1": pytest.approx(2 * right / (2 * right + wrong))
    }
    assert (own.monitor, glue.monitor, tfds.monitor) == ("spearman", "score", "score")
    assert (klue.monitor, klue.mode) == ("pearson", "max")  # its authors' first metric
    for task in (own, glue, klue):
        assert task.monitor in task.benchmark.official_metrics(examples, predictions)
        assert task.benchmark.baseline(examples)[task.monitor] == 0.0
    assert (
        klue.benchmark.error_analysis(examples, predictions).errors[0].location
        == f"file:{np.abs(gold - found).argmax()}"
    )


@pytest.mark.parametrize("format", ["glue/stsb", "klue/sts"])
def test_every_metric_lies_within_its_interval(format):
    random = np.random.default_rng(1)
    gold = random.uniform(0, 5, 60).round(1)
    predictions = [{"value": value} for value in np.clip(gold + random.normal(0, 1, 60), 0, 5)]
    task, examples = create(gold, format=format), examples_of(*gold)
    scores, intervals = (
        task.benchmark.official_metrics(examples, predictions),
        task.benchmark.error_analysis(examples, predictions).intervals,
    )
    assert intervals.keys() == scores.keys()
    for name, (low, high) in intervals.items():
        assert low < scores[name] < high, name


@pytest.mark.parametrize(
    "name, function",
    [
        ("linear", lambda x: x),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("tanh", np.tanh),
        ("relu", lambda x: np.maximum(x, 0)),
        ("erf_gelu", lambda x: x * scipy.stats.norm.cdf(x)),
    ],
)
def test_the_number_of_a_published_model_is_its_activation_of_the_output(name, function):
    task = Regression(Tokenizer(PIECES), RegressionConfig(), labels=("value",), activation=name)
    logits = np.array([[-3.0], [0.0], [0.5], [3.0]], np.float32)
    values = task.codec.postprocess({}, {"logits": tf.constant(logits)})["values"]
    np.testing.assert_allclose(values, function(logits), rtol=1e-5, atol=1e-6)
    again = Regression.from_settings(task.settings(), task.tokenizer)
    assert again.state.activation == name


def test_an_unknown_activation_is_refused():
    settings = create([1.0, 2.0]).settings() | {"activation": "mish"}
    with raises(DataError, "activation", "'mish'", "sigmoid"):
        Regression.from_settings(settings, Tokenizer(PIECES))


def apart(labels, *, scale=None, texts=("a b", "b"), **config):
    examples = [TextExample(str(row), texts, label, f"file:{row}") for row, label in enumerate(labels)]
    config = RegressionConfig(head="cosine", **config)
    return Regression.learn(Tokenizer(PIECES), config.check(), ExampleData(), examples, scale), examples


def test_a_cosine_is_mapped_to_the_scale_or_the_range_of_the_training_examples():
    for scale, expected in ((None, [2.0, 4.0, 3.0, 2.0]), (SIMILARITY, [0.0, 5.0, 2.5, 0.0])):
        task, _ = apart([2.0, 4.0], scale=scale)
        outputs = {"logits": tf.constant([[0.0], [1.0], [0.5], [-0.5]])}
        columns = {"text": tf.constant(["a"] * 4)}
        answers = task.codec.aggregate_windows(columns, tf.range(4), task.codec.postprocess({}, outputs))
        np.testing.assert_allclose(answers["value"], expected)
        rows = {"labels": tf.constant([expected[1]] * 4), "truncated": tf.constant([False] * 4)}
        rows["window"] = tf.zeros(4, tf.int64)
        low, high = expected[0], expected[1]
        losses = [(low + (high - low) * cosine - high) ** 2 for cosine in (0, 1, 0.5, -0.5)]
        np.testing.assert_allclose(task.objective.loss_and_metrics(rows, outputs)["loss"], [sum(losses), 4])
        assert Regression.from_settings(task.settings(), task.tokenizer).settings() == task.settings()


@pytest.mark.parametrize("keep, kept", [("head", "abcdef"), ("tail", "cdefgh"), ("head_tail", "abcfgh")])
def test_the_two_texts_are_encoded_separately_each_with_its_own_length(keep, kept):
    task, _ = apart([2.0, 4.0], max_length=8, long_texts=keep)
    long = "a b c d e f g h"
    pairs = [("b", long), (long, "b"), ("b", "b")]
    examples = [TextExample("", pair, label, "") for label, pair in enumerate(pairs)]
    features = task.codec.preprocess(task.codec.to_tensors(examples, labelled=True))
    ids = {piece: number for number, piece in enumerate(PIECES)}
    short, cut = ([ids[piece] for piece in ("[CLS]", *text, "[SEP]")] for text in ("b", kept))
    assert features["input_word_ids"].to_list() == [[short, cut], [cut, short], [short, short]]
    assert not np.any(features["input_type_ids"].flat_values)
    assert features["truncated"].numpy().tolist() == [True, True, False]
    assert features["labels"].numpy().tolist() == [0.0, 1.0, 2.0]


def test_equal_texts_have_the_highest_similarity_and_order_does_not_matter():
    task, examples = apart([0.0, 4.0])
    texts = [("a b", "a b"), ("a", "b a b"), ("b a b", "a")]
    examples = [TextExample("", pair, None, "") for pair in texts]
    asked = task.codec.to_tensors(examples, labelled=False)
    serve = task.signatures(task.build(BertEncoder(small_config(num_layers=1))))["serving_default"]
    answers = serve(*asked.values())["value"].numpy()
    assert answers[0] == pytest.approx(4.0) and answers[1] == pytest.approx(answers[2])
    assert answers[1] < 3.99


@pytest.mark.parametrize(
    "config, texts, message",
    [
        ({"long_texts": "window"}, ("a", "b"), "task.long_texts=window"),
        ({}, ("a",), "data.second_text"),
    ],
)
def test_a_cosine_needs_two_texts_of_one_vector_each(config, texts, message):
    with raises(ConfigError, "task.head", message):
        apart([1.0, 2.0], texts=texts, **config)


def test_a_cosine_needs_labels_that_differ():
    with raises(DataError, "file:0", "3"):
        apart([3.0, 3.0])


def test_an_unknown_head_is_refused():
    with raises(ConfigError, "task.head", "'dot'"):
        RegressionConfig(head="dot").check()


def test_a_converted_model_with_several_outputs_is_refused():
    with raises(DataError, "2 numbers"):
        Regression.from_settings({"labels": ["x", "y"], "max_length": 16}, Tokenizer(PIECES))


def test_the_metrics_of_a_diverged_model_are_nan():
    metrics = create("123").benchmark.official_metrics(
        examples_of(*"123"), [{"value": value} for value in (1.0, np.nan, 3.0)]
    )
    assert np.isnan(list(metrics.values())).all()
