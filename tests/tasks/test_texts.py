"""Common behaviour of all tasks on texts: long texts, one text or two, class weights."""

import json

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax

from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.formats import SIMILARITY
from bert_tf.tasks import TASKS
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.multi_label import MultiLabel, MultiLabelConfig
from bert_tf.tasks.regression import Regression, RegressionConfig
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model.small import PIECES

A = PIECES.index("a")
TEXT_TASKS = {"classification": Classification, "regression": Regression, "multi_label_classification": MultiLabel}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(PIECES)


def examples_of(*labels, texts=("a b",)):
    return [TextExample(str(row), texts, label, f"file:{row}") for row, label in enumerate(labels)]


def create(tokenizer, config, examples, labels=None, data=None):
    kind = next(kind for kind in TEXT_TASKS.values() if type(config) is kind.Config)
    return kind.learn(tokenizer, config, data or ExampleData(), examples, labels)


@pytest.mark.parametrize("config", [ClassificationConfig, RegressionConfig, MultiLabelConfig])
def test_an_unknown_treatment_of_long_texts_is_refused(config):
    with raises(ConfigError, "task.long_texts", "'middle'"):
        config(long_texts="middle").check()
    with raises(ConfigError, "task.max_length", "7", "8"):
        config(max_length=7).check()


def test_each_window_of_a_pair_has_the_first_text_and_none_of_the_second_is_lost(tokenizer):
    task = Classification(
        tokenizer, ClassificationConfig(max_length=11, long_texts="window"), labels=("x", "y"), pair=True
    )
    first, second = ["a b", "a", "a b c d e"], ["c d e f g h i j", "", "f g h i j"]
    features = task.codec.preprocess({"text": tf.constant(first), "second_text": tf.constant(second)})
    letters = [
        " ".join({2: "[CLS]", 3: "[SEP]"}.get(piece, PIECES[piece]) for piece in row)
        for row in features["input_word_ids"].to_list()
    ]
    assert letters == [  # 8 are left for both texts; the first gets at most half
        "[CLS] a b [SEP] c d e f g h [SEP]",
        "[CLS] a b [SEP] i j [SEP]",
        "[CLS] a [SEP] [SEP]",
        "[CLS] a b c d [SEP] f g h i [SEP]",
        "[CLS] a b c d [SEP] j [SEP]",
    ]
    assert features["row"].numpy().tolist() == [0, 0, 1, 2, 2]
    assert features["truncated"].numpy().tolist() == [False, False, False, True, True]
    types = features["input_type_ids"].to_list()
    assert types[0] == [0] * 4 + [1] * 7 and types[2] == [0, 0, 0, 1]


@pytest.mark.parametrize("name", TEXT_TASKS)
def test_a_converted_checkpoint_has_labels_and_length_only_and_accepts_pairs(tokenizer, name):
    settings = {"labels": ["x"] if name == "regression" else ["x", "y"], "max_length": 16}
    assert TASKS[name] is TEXT_TASKS[name]
    task = TASKS[name].from_settings(settings, tokenizer)
    assert [spec.name for spec in task.codec.inputs()] == ["text"]
    columns = task.codec.to_tensors(examples_of(None, None, texts=("a", "b")), labelled=False)
    assert columns.keys() == {"text", "second_text"}
    with raises(DataError, "file:0", "1 text", "2", "data.text", "data.second_text"):
        task.codec.to_tensors(examples_of(None), labelled=False)
    again = TASKS[name].from_settings(json.loads(json.dumps(task.settings())), tokenizer)
    assert again.settings() == json.loads(json.dumps(task.settings())) | {"labels": again.state.labels}


def test_balanced_classes_have_equal_total_weights_and_the_loss_is_the_weighted_mean(tokenizer):
    examples = examples_of(*"xxxxxxyyz")
    task = create(tokenizer, ClassificationConfig(labels=("x", "y", "z", "unseen"), balanced=True), examples)
    weights = dict(zip(task.state.labels, task.state.class_weights, strict=True))
    assert weights == pytest.approx({"x": 3 / 6, "y": 3 / 2, "z": 3 / 1, "unseen": 1.0})
    labels = np.array([0, 1, 2, 0, 3], np.int32)
    logits = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    features = {"labels": tf.constant(labels), "truncated": tf.zeros(5, tf.bool)}
    features["window"] = tf.zeros(5, tf.int64)
    total, weight = task.objective.loss_and_metrics(features, {"logits": logits})["loss"]
    own = np.array(task.state.class_weights)[labels]
    np.testing.assert_allclose(total, (own * -log_softmax(logits, -1)[range(5), labels]).sum(), rtol=1e-5)
    np.testing.assert_allclose(weight, own.sum(), rtol=1e-6)
    assert float(task.objective.weights(features)["loss"]) == pytest.approx(float(weight))
    # evaluate gives the same loss for the saved model.
    again = Classification.from_settings(json.loads(json.dumps(task.settings())), tokenizer)
    np.testing.assert_array_equal(
        again.objective.loss_and_metrics(features, {"logits": logits})["loss"], [total, weight]
    )


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"class_weights": (1.0, 2.0)},
            r"has 2 weights for 0 task.labels; list all labels, and one weight for each",
        ),
        (
            {"class_weights": (1.0, 0.0), "labels": ("1", "2")},
            r"class_weights\[1\] is 0.0; expected a number above 0",
        ),
        ({"class_weights": (1.0, 2.0), "labels": ("1", "2"), "balanced": True}, "both set; leave one of them out"),
    ],
)
@pytest.mark.parametrize("config", [ClassificationConfig, MultiLabelConfig])
def test_class_weights_of_unknown_labels_are_refused(config, fields, message):
    with pytest.raises(ConfigError, match=message):
        config(**fields).check()


@pytest.mark.parametrize(
    "labels, message",
    [
        (
            (0, 1),
            ("task.labels[0]", "0", '--config.task.labels="(', "'neg'"),
        ),
        (("neg", ""), ("task.labels", "('neg', '')")),
        (("neg", "pos", "neg"), ("task.labels", "'neg'", "'pos'")),
    ],
)
@pytest.mark.parametrize("config", [ClassificationConfig, MultiLabelConfig])
def test_the_error_for_invalid_labels_says_how_to_write_them(config, labels, message):
    with raises(ConfigError, *message):
        config(labels=labels).check()


def test_labels_that_were_not_split_are_refused():
    with raises(ConfigError, "task.labels", "'neg,pos'"):
        ClassificationConfig(labels=("neg,pos",)).check()
    with raises(ConfigError, "'neg,pos'", "task.separator", "','", "task.labels"):
        MultiLabelConfig(labels=("neg,pos",)).check()
    assert MultiLabelConfig(labels=("toxic",)).check().labels == ("toxic",)


@pytest.mark.parametrize(
    "config", [ClassificationConfig(), ClassificationConfig(labels=("x", "y")), RegressionConfig()]
)
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_label_means_none_of_several_and_is_an_error_with_location_otherwise(tokenizer, config, empty):
    number = type(config) is RegressionConfig
    good = examples_of(*("12" if number else "xy"))
    bad = [example._replace(location=f"dev:{example.id}") for example in examples_of("x", empty)[1:]]
    with raises(DataError, "dev:1"):
        create(tokenizer, config, good + bad)
    with raises(DataError, "dev:1"):
        create(tokenizer, config, good).codec.to_tensors(bad * 2, labelled=True)
    several = create(tokenizer, MultiLabelConfig(), examples_of("x", empty, "y"))
    np.testing.assert_array_equal(several.codec.to_tensors(bad, labelled=True)["labels"], [[0, 0]])


def test_classes_and_numbers_are_not_confused(tokenizer):
    with raises(ConfigError, "0", "5", "RegressionConfig"):
        create(tokenizer, ClassificationConfig(), examples_of(1.0, 2.0), SIMILARITY)
    with raises(ConfigError, "'no'", "ClassificationConfig"):
        create(tokenizer, RegressionConfig(), examples_of("no", "yes"), ("no", "yes"))
    with raises(DataError, "file:1", "MultiLabelConfig"):
        create(tokenizer, ClassificationConfig(), examples_of("no", ("no", "yes")))
