"""Training with the rounding of int8 exports: forward pass against an export's, gradients against their definition."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.model.compute import converted
from bert_tf.model.mode import Mode, computing, infer
from bert_tf.model.precision import int8
from bert_tf.model.ranges import Largest, Ranges
from tests.model.small import FAMILY, MODERNBERT, NOMIC_BERT, features, randomize, seeded, small_config


def encoder_with_ranges(**overrides):
    """A random encoder, with the ranges of random texts."""
    overrides = {"intermediate_size": 96, "dropout": 0.0, "attention_dropout": 0.0} | overrides
    encoder = randomize(BertEncoder(small_config(**overrides)), scale=0.5)
    encoder.ranges = Ranges(encoder.blocks())
    batches = [{name: tf.constant(value) for name, value in features(seed=seed).items()} for seed in range(3)]
    encoder.ranges.assign(int8.calibrate(encoder, batches))
    return encoder


def exported_forms(encoder):
    yield encoder.embeddings, int8.Lookup(encoder.embeddings)
    for block, largest in zip(encoder.blocks(), encoder.ranges.values, strict=True):
        yield from int8.converted_block(block, largest)


GATED = {"modernbert": MODERNBERT, "nomic_bert": NOMIC_BERT}


@pytest.mark.parametrize(
    "family",
    ["bert", "albert"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("electra", "distilbert", "modernbert", "nomic_bert")],
)
def test_training_computes_what_an_export_computes(family):
    encoder = encoder_with_ranges(**(FAMILY | GATED).get(family, {}))
    inputs, tokens = features(), features()["input_mask"] > 0
    plain = infer(encoder, inputs)["sequence_output"].numpy()[tokens]
    with converted(exported_forms(encoder)), computing(Mode(kernels=frozenset())):
        expected = infer(encoder, inputs)["sequence_output"].numpy()[tokens]
    with converted(int8.rounded_forms(encoder)):
        found = [infer(encoder, inputs), encoder(inputs, training=True)]
        with seeded([0, 1], fusion="every", recompute=True):
            found.append(tf.function(lambda: encoder(inputs, training=True), autograph=False)())
    for outputs in found:
        np.testing.assert_allclose(outputs["sequence_output"].numpy()[tokens], expected, atol=2e-5)
    assert np.abs(plain - expected).max() > 1e-2


def nearest(x, step):
    return np.round(x / step) * step


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_gradients_pass_through_the_rounding_and_stop_where_inputs_are_clipped():
    rng = np.random.default_rng(0)
    encoder = encoder_with_ranges()
    block = encoder.blocks()[0]
    first, second = block.intermediate, block.output_projection
    for layer in (first, second):
        layer.kernel.assign(rng.normal(0, 0.2, layer.kernel.shape))
    inputs = rng.normal(0, 1, [50, 32]).astype("f")
    # So low that some inputs are clipped; activations are below 3, so that no channel is continued.
    largest = Largest(*encoder.ranges.values[0])._replace(
        intermediate=np.abs(inputs).max(0) / 1.6, output=np.full(96, 2.5, "f")
    )
    encoder.ranges.assign([largest, encoder.ranges.values[1]])
    upstream = rng.normal(size=[50, 32]).astype("f")
    with converted(int8.rounded_forms(encoder)), tf.GradientTape() as tape:
        rows = tf.constant(inputs)
        tape.watch(rows)
        outputs = second.converted(first.converted(rows))
        loss = tf.reduce_sum(outputs * upstream)
    variables = [first.kernel.value, first.bias.value, second.kernel.value, second.bias.value]
    found = tape.gradient(loss, [rows, *variables])

    x, up, w1, b1, w2, b2 = (np.float64(one) for one in (inputs, upstream, *(v.numpy() for v in variables)))
    divisors = np.float64(int8.smoothing(largest.intermediate, tf.constant(w1, tf.float32)))
    scaled = x / divisors
    kept = np.abs(scaled) <= 1
    x_rounded = nearest(np.clip(scaled, -1, 1), 1 / 127) * divisors
    smooth = w1 * divisors[:, None]
    w1_rounded = nearest(smooth, np.abs(smooth).max(0) / 127) / divisors[:, None]
    w2_rounded = nearest(w2, np.abs(w2).max(0) / 127)
    z, lowest, highest = x_rounded @ w1_rounded + b1, -0.1701, 3.0
    step = (highest - lowest) / 255
    activations = nearest(np.clip(gelu(z), lowest, highest) - lowest, step) + lowest
    np.testing.assert_allclose(outputs, activations @ w2_rounded + b2, atol=2e-4)
    slope = (gelu(z + 1e-5) - gelu(z - 1e-5)) / 2e-5
    d_z = up @ w2_rounded.T * slope * ((gelu(z) >= lowest) & (gelu(z) <= highest))
    expected = [d_z @ w1_rounded.T * kept, x_rounded.T @ d_z, d_z.sum(0), activations.T @ up, up.sum(0)]
    for one, other in zip(found, expected, strict=True):
        assert np.linalg.norm(one - other) < 1e-4 * np.linalg.norm(other)
    assert 0.02 < 1 - kept.mean() < 0.5


@pytest.mark.parametrize("parts", [{}, pytest.param(MODERNBERT, marks=pytest.mark.slow)], ids=["BERT", "ModernBERT"])
def test_gradients_of_the_attention_and_the_words_pass_through_the_rounding(parts):
    """Small steps of an encoder without rounding have the gradient of one that rounds finely enough."""
    encoder = encoder_with_ranges(**parts)
    inputs, upstream = features(), np.random.default_rng(0).normal(size=[4, 24, 32]).astype("f")
    weights = [variable.value for variable in encoder.trainable_variables if "pooler" not in variable.path]

    def gradient():
        with tf.GradientTape() as tape:
            outputs = encoder(inputs, training=True)["sequence_output"]
            loss = tf.reduce_sum(outputs * upstream * inputs["input_mask"][:, :, None])
        return [tf.convert_to_tensor(one).numpy() for one in tape.gradient(loss, weights)]

    exact = gradient()
    with converted(int8.rounded_forms(encoder)):
        rounded = gradient()
    for variable, one, other in zip(weights, exact, rounded, strict=True):
        cosine = (one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other)
        assert cosine > 0.9, variable.name
