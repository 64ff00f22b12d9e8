"""Classification from few labels: a logistic regression on vectors that have learned the classes."""

import numpy as np
import pytest
import tensorflow as tf
from sklearn.linear_model import LogisticRegression

import bert_tf
from bert_tf.config import ClassificationConfig, EmbeddingConfig
from bert_tf.errors import ConfigError, DataError
from tests.errors import raises
from tests.zoo import pretrained

TEXTS = ["the good a", "good good", "a good", "the d c", "d d", "a d c", "b b", "the b", "b a the"]
LABELS = ["plus"] * 3 + ["minus"] * 3 + ["none"] * 3
SETTINGS = {"steps": 30, "batch_size": 9, "learning_rate": 5e-3, "dtype": "float32", "verbose": False, "seed": 1}


@pytest.fixture(scope="module")
def trained():
    model = bert_tf.TextClassifier.from_pretrained(pretrained(), max_length=16)
    return model, model.fit(TEXTS, LABELS, few_labels=True, validation_data=(TEXTS, LABELS), **SETTINGS)


def vectors_of(model, path):
    """Vectors of the texts by the encoder of a saved classifier."""
    model.save(path)
    vectors = bert_tf.SentenceEncoder.from_pretrained(path, pool="mean").encode(TEXTS)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_probabilities_are_those_of_a_logistic_regression_on_the_vectors(trained, tmp_path):
    model, history = trained
    vectors = vectors_of(model, tmp_path / "model")
    expected = LogisticRegression(max_iter=1000).fit(vectors, LABELS)
    for path in (None, tmp_path / "model"):
        found = (model if path is None else bert_tf.TextClassifier.from_pretrained(path)).predict(TEXTS)
        shares = [[one["probabilities"][name] for name in expected.classes_] for one in found]
        np.testing.assert_allclose(shares, expected.predict_proba(vectors), atol=1e-3)
    assert history.history["val_accuracy"][-1] == expected.score(vectors, LABELS)
    assert model.evaluate(TEXTS, LABELS)["accuracy"] == expected.score(vectors, LABELS)


def test_texts_of_a_class_get_nearer(trained, tmp_path):
    def nearness(vectors):
        cosines, same = vectors @ vectors.T, np.equal.outer(LABELS, LABELS)
        return cosines[same & ~np.eye(len(TEXTS), dtype=bool)].mean() - cosines[~same].mean()

    before = bert_tf.SentenceEncoder.from_pretrained(pretrained(), pool="mean").encode(TEXTS)
    before /= np.linalg.norm(before, axis=1, keepdims=True)
    assert nearness(vectors_of(trained[0], tmp_path / "model")) > nearness(before) + 0.1


def test_it_is_served_like_other_classifiers(trained, tmp_path):
    served = tf.saved_model.load(trained[0].export(tmp_path / "served", check=False).path)
    found = served.signatures["serving_default"](tf.constant(TEXTS))
    expected = trained[0].predict(TEXTS)
    assert [label.decode() for label in found["label"].numpy()] == [one["label"] for one in expected]
    np.testing.assert_allclose(
        found["probabilities"], [list(one["probabilities"].values()) for one in expected], atol=1e-5
    )


def test_two_labels_and_one_without_examples():
    model = bert_tf.TextClassifier.from_pretrained(pretrained(), max_length=16, labels=("minus", "never", "plus"))
    model.fit(TEXTS[:6], LABELS[:6], few_labels=True, **SETTINGS | {"steps": 1, "learning_rate": 1e-9})
    before = bert_tf.SentenceEncoder.from_pretrained(pretrained(), pool="mean").encode(TEXTS)
    before /= np.linalg.norm(before, axis=1, keepdims=True)
    expected = LogisticRegression(max_iter=1000).fit(before[:6], LABELS[:6]).predict_proba(before)
    found = [[one["probabilities"][name] for name in ("minus", "never", "plus")] for one in model.predict(TEXTS)]
    np.testing.assert_allclose(np.array(found)[:, [0, 2]], expected, atol=1e-3)
    assert np.max(found, 0)[1] < 1e-6


def test_what_cannot_be_learned_from():
    model = bert_tf.TextClassifier.from_pretrained(pretrained(), max_length=16, labels=("minus", "plus"))
    with raises(DataError, "'plus'", "two labels"):
        model.fit(TEXTS[:3], LABELS[:3], few_labels=True, **SETTINGS)
    with raises(ConfigError, "train.batch_size is 1", "2"):
        model.fit(TEXTS[:6], LABELS[:6], few_labels=True, **SETTINGS | {"batch_size": 1})
    with raises(ConfigError, "task.vectors", "task.head=vector"):
        ClassificationConfig(vectors=EmbeddingConfig()).check()
