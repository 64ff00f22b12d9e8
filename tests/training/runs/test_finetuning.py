"""Fine-tuning from a model that was fine-tuned before."""

import numpy as np
import pytest

import bert_tf
from tests.tasks.harness import CLASSES, TEXTS, fitted
from tests.zoo import LENGTH

SETTINGS = {"epochs": 1, "batch_size": 6, "verbose": False, "dtype": "float32"}


@pytest.fixture
def first():
    return fitted("classification")


def test_a_model_of_the_same_task_and_labels_continues_with_its_head(first, begun):
    trainer = begun(bert_tf.TextClassifier.from_pretrained(first.folder).fit, TEXTS, CLASSES, **SETTINGS)
    weights = {one.path: one.numpy() for one in trainer.model.weights}
    assert list(trainer.task.state.labels) == list(first.model.task.state.labels)
    assert len(weights) == len(first.model.model.weights)
    for one in first.model.model.weights:
        np.testing.assert_array_equal(weights[one.path], one.numpy(), err_msg=one.path)


@pytest.mark.parametrize("classes", [["x", "y", "x", "x", "y", "w"], ["x", "y", "x", "x", "y", "y"]])
def test_other_labels_get_a_new_head(first, begun, classes):
    again = bert_tf.TextClassifier.from_pretrained(first.folder, max_length=LENGTH)
    trainer = begun(again.fit, TEXTS, classes, **SETTINGS)
    assert list(trainer.task.state.labels) == sorted(set(classes))
    old, new = (
        next(one.numpy() for one in model.weights if one.path == "classifier/kernel")
        for model in (first.model.model, trainer.model)
    )
    assert np.abs(old[:, :2] - new[:, :2]).max() > 0.01
