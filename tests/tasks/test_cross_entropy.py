"""The cross-entropy of a large vocabulary against the definition in float64."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.mode import Mode, computing
from bert_tf.tasks.masked_lm import sparse_cross_entropy


def reference(logits, labels):
    """Losses and their gradients by the logits, float64."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    one_hot = np.arange(logits.shape[-1]) == labels[..., np.newaxis]
    return -(logs * one_hot).sum(-1), np.exp(logs) - one_hot


# A model that is nearly certain, or certain and wrong, has probabilities that float32 cannot represent.
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("compiled", [False, True])
def test_losses_and_gradients_are_those_of_the_definition(scale, compiled):
    random = np.random.default_rng(0)
    logits = (scale * random.normal(size=[3, 5, 701])).astype("float32")
    labels = random.integers(0, 701, [3, 5]).astype("int32")
    weights = random.uniform(size=[3, 5]).astype("float32")
    with computing(Mode(fusion="static" if compiled else "none")), tf.GradientTape() as tape:
        watched = tf.constant(logits)
        tape.watch(watched)
        losses, best = sparse_cross_entropy(watched, tf.constant(labels))
        loss = tf.reduce_sum(losses * weights)
    expected, gradients = reference(logits, labels)
    np.testing.assert_array_equal(best, logits.argmax(-1))
    np.testing.assert_allclose(losses, expected, rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(tape.gradient(loss, watched), gradients * weights[..., np.newaxis], atol=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_not_finite_have_a_loss_that_is_not_finite(wrong):
    # So that the step is skipped.
    logits = np.zeros([2, 7], "float32")
    logits[1, 3] = wrong
    losses = sparse_cross_entropy(tf.constant(logits), tf.constant([0, 0]))[0].numpy()
    np.testing.assert_allclose(losses[0], np.log(7), rtol=1e-6)
    assert not np.isfinite(losses[1])
