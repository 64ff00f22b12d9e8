"""Normalization and clipping of losses against gradients computed here, one micro-batch at a time."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.training.phases import Input
from tests.training.small import epochs, loop_of, trainer, with_nan
from tests.zoo import VOCABULARY

MICROBATCHES = 4


def gradient(model, rows, weight):
    """Gradient of the regression's loss on these rows, its sum divided by `weight`."""
    with tf.GradientTape() as tape:
        outputs = model({"input_word_ids": rows["input_word_ids"]})[:, 0]
        errors = outputs - tf.cast(rows["input_word_ids"][:, 0], tf.float32) / len(VOCABULARY)
        loss = tf.reduce_sum(tf.reduce_sum(rows["masked_lm_weights"], 1) * errors**2) / weight
    return [tf.convert_to_tensor(one) for one in tape.gradient(loss, [v.value for v in model.trainable_variables])]


def total(gradients):
    return [sum(parts) for parts in zip(*gradients, strict=True)]


def expected(model, microbatches, normalization, clip_on, clip):
    weights = [tf.reduce_sum(microbatch["masked_lm_weights"]) for microbatch in microbatches]
    assert len({float(weight) for weight in weights}) > 1
    if normalization == "global":
        parts = [gradient(model, microbatch, sum(weights)) for microbatch in microbatches]
    else:
        share = MICROBATCHES if normalization == "replica_mean" else 1
        parts = [
            gradient(model, microbatch, weight * share)
            for microbatch, weight in zip(microbatches, weights, strict=True)
        ]
    norms = [float(tf.linalg.global_norm(part)) for part in (*parts, total(parts))]
    if clip_on == "replica":
        assert min(norms[:-1]) < clip < max(norms[:-1])
        return total([tf.clip_by_global_norm(part, clip)[0] for part in parts])
    assert norms[-1] > clip
    if clip == 0:
        return total(parts)
    return tf.clip_by_global_norm(total(parts), clip)[0]


@pytest.mark.parametrize(
    "normalization, clip_on, clip",
    [
        ("global", "global", 0.3),
        ("global", "global", 0),  # not clipped
        ("replica_mean", "global", 0.3),
        ("replica_sum", "global", 0.3),
        ("replica_sum", "replica", 1.0),
        ("replica_mean", "replica", 0.25),
    ],
)
def test_the_gradient_is_normalised_reduced_and_clipped_as_configured(normalization, clip_on, clip):
    settings = {"normalization": normalization, "clip_on": clip_on, "clip_norm": clip}
    trained = trainer(bert=False, total_steps=1, accumulation=MICROBATCHES, log_every=1, **settings)
    for variable in trained.model.trainable_variables:
        variable.assign(variable + 0.3)  # errors of different sizes
    (batch,) = epochs()(tf.constant(0, tf.int64)).take(1)
    microbatches = [
        {name: tf.split(value, MICROBATCHES)[index] for name, value in batch.items()} for index in range(MICROBATCHES)
    ]
    gradients = expected(trained.model, microbatches, normalization, clip_on, clip)

    metrics, _, finite = trained.train_step.on_replica(microbatches, tf.constant(0, tf.int64), tf.constant(1.0))

    assert finite
    moments = [value.numpy() for name, value in trained.optimizer.slots.items() if name.endswith("/m")]
    for found, one in zip(moments, gradients, strict=True):  # after one update from zero, m is a tenth of the gradient
        np.testing.assert_allclose(found, 0.1 * one, rtol=1e-5, atol=1e-8)
    if clip_on == "replica":  # the reported norm is that of the applied gradient
        assert float(metrics[-1, 0]) == pytest.approx(float(tf.linalg.global_norm(gradients)), rel=1e-5)


def test_an_empty_or_non_finite_micro_batch_may_be_clipped_alone(tmp_path):
    settings = {"recipe": "google", "accumulation": MICROBATCHES, "log_every": 1}
    trained = trainer(bert=False, total_steps=4, **settings)
    history = loop_of(trained, [Input(epochs(examples=9))], tmp_path / "empty").run()  # a batch of 8 and one of 1
    assert all(np.isfinite(point["loss"]) for point in history.points)
    assert int(trained.optimizer.slots["updates"]) == 4

    trained = trainer(bert=False, total_steps=4, **settings)
    loop_of(trained, [Input(with_nan(epochs(), [1], first_row=7))], str(tmp_path / "nan")).run()
    assert int(trained.optimizer.slots["updates"]) == 3  # NaN in one micro-batch is not clipped to something finite
