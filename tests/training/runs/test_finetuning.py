"""Fine-tuning from a model that was fine-tuned before."""

import numpy as np
import pytest

import bert_tf
from bert_tf.training.loop import Trainer
from tests.tasks.harness import CLASSES, TEXTS, fitted
from tests.training.small import Stop
from tests.zoo import LENGTH

SETTINGS = {"epochs": 1, "batch_size": 6, "verbose": False, "dtype": "float32"}


@pytest.fixture
def first():
    return fitted("classification")


@pytest.fixture
def begun(first, monkeypatch):
    """A function that starts to fit on other classes: the weights before the first update, and the labels."""

    def begun(classes, **settings):
        def run(trainer, *_, **__):
            found.append(({one.path: one.numpy() for one in trainer.model.weights}, trainer.task.state.labels))
            raise Stop

        found = []
        monkeypatch.setattr(Trainer, "run", run)
        with pytest.raises(Stop):
            bert_tf.TextClassifier.from_pretrained(first.folder, **settings).fit(TEXTS, classes, **SETTINGS)
        return found[0]

    return begun


def test_a_model_of_the_same_task_and_labels_continues_with_its_head(first, begun):
    weights, labels = begun(CLASSES)
    assert list(labels) == list(first.model.task.state.labels) and len(weights) == len(first.model.model.weights)
    for one in first.model.model.weights:
        np.testing.assert_array_equal(weights[one.path], one.numpy(), err_msg=one.path)


@pytest.mark.parametrize("classes", [["x", "y", "x", "x", "y", "w"], ["x", "y", "x", "x", "y", "y"]])
def test_other_labels_get_a_new_head(first, begun, classes):
    weights, labels = begun(classes, max_length=LENGTH)
    assert list(labels) == sorted(set(classes))
    old = next(one.numpy() for one in first.model.model.weights if one.path == "classifier/kernel")
    assert np.abs(old[:, :2] - weights["classifier/kernel"][:, :2]).max() > 0.01
