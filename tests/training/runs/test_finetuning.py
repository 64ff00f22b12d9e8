"""Fine-tuning from a model that was fine-tuned before."""

import numpy as np
import pytest

import bert_tf
from tests.tasks.harness import CLASSES, TEXTS, fitted
from tests.zoo import LENGTH

STILL = {"epochs": 1, "batch_size": 6, "learning_rate": 1e-12, "verbose": False, "dtype": "float32"}


@pytest.fixture
def first():
    return fitted("classification")


def probabilities(model):
    return [list(one["probabilities"].values()) for one in model.predict(TEXTS)]


def test_a_model_of_the_same_task_and_labels_continues_with_its_head(first):
    again = bert_tf.TextClassifier.from_pretrained(first.folder)
    again.fit(TEXTS, CLASSES, **STILL)
    np.testing.assert_allclose(probabilities(again), probabilities(first.model), atol=1e-5)


@pytest.mark.parametrize(
    "classes", [["x", "y", "x", "x", "y", "w"], pytest.param(["x", "y", "x", "x", "y", "y"], marks=pytest.mark.slow)]
)
def test_other_labels_get_a_new_head(first, classes):
    again = bert_tf.TextClassifier.from_pretrained(first.folder, max_length=LENGTH)
    again.fit(TEXTS, classes, **STILL)
    assert list(again.predict(["a"])[0]["probabilities"]) == sorted(set(classes))
    old, new = (
        next(one.numpy() for one in model.model.weights if one.path == "classifier/kernel")
        for model in (first.model, again)
    )
    assert np.abs(old[:, :2] - new[:, :2]).max() > 0.01
