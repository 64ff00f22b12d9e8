"""Activations, dense layers and dropout."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.model.activations import erf_gelu, silu, tanh_gelu
from bert_tf.model.dropout import Dropout
from bert_tf.model.layers import Dense
from bert_tf.model.normalization import LayerNorm
from tests.model.numpy_bert import ACTIVATIONS
from tests.model.small import features, multiplies_bfloat16, randomize, seeded, small_config

SMOOTH = {"tanh_gelu": tanh_gelu, "erf_gelu": erf_gelu, "silu": silu}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("shape", [(401,), (1, 401), (401, 1), (1, 1, 401)])
def test_an_activation_and_its_gradient_equal_the_formula_and_its_derivative(name, shape):
    x = np.concatenate([np.linspace(-8, 8, 399), [-40, 40]]).reshape(shape)
    formula, step = ACTIVATIONS[name], 1e-5
    upstream = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with tf.GradientTape() as tape:
        inputs = tf.constant(x, tf.float32)
        tape.watch(inputs)
        outputs = SMOOTH[name](inputs)
    slope = (formula(x + step) - formula(x - step)) / (2 * step)
    np.testing.assert_allclose(outputs, formula(x), atol=2e-6)
    np.testing.assert_allclose(tape.gradient(outputs, inputs, upstream), upstream * slope, atol=2e-5)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_are_finite_in_half_precision_however_large_the_input(name, dtype):
    # The square of 300 is out of range in float16, but the slope there is 0 or 1.
    x = tf.constant([-60000.0, -300.0, -50.0, 0.0, 50.0, 300.0, 60000.0], dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = SMOOTH[name](x)
    np.testing.assert_allclose(np.float32(tape.gradient(y, x)), [0, 0, 0, 0.5, 1, 1, 1], atol=1e-6)
    np.testing.assert_allclose(np.float32(y), np.float32(tf.maximum(x, 0)), rtol=0, atol=1e-20)


@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7)])
def test_dense_and_its_gradients_equal_the_plain_formula(shape):
    layer = Dense(4)
    layer.build(shape)
    rng = np.random.default_rng(0)
    layer.kernel.assign(rng.normal(size=(7, 4)))
    layer.bias.assign(rng.normal(size=4))
    x = rng.normal(size=shape).astype(np.float32)
    upstream = rng.normal(size=(*shape[:-1], 4)).astype(np.float32)
    with tf.GradientTape() as tape:
        inputs = tf.constant(x)
        tape.watch(inputs)
        outputs = layer(inputs)
    kernel, bias, inputs = tape.gradient(outputs, [layer.kernel.value, layer.bias.value, inputs], upstream)
    np.testing.assert_allclose(outputs, x @ layer.kernel.numpy() + layer.bias.numpy(), atol=1e-5)
    np.testing.assert_allclose(kernel, x.reshape(-1, 7).T @ upstream.reshape(-1, 4), atol=1e-5)
    np.testing.assert_allclose(bias, upstream.reshape(-1, 4).sum(0), atol=1e-5)
    np.testing.assert_allclose(inputs, upstream @ layer.kernel.numpy().T, atol=1e-5)


@pytest.mark.parametrize(
    "dtype, error", [("float32", 1e-4), pytest.param("mixed_bfloat16", 0.005, marks=multiplies_bfloat16)]
)
def test_bias_gradients_add_up_many_rows(dtype, error):
    # A sum in bfloat16 would stop growing at 256: from there on, adding 1 is rounded away.
    layer = Dense(3, dtype=dtype)
    layer.build((None, 2))
    with tf.GradientTape() as tape:
        outputs = layer(tf.zeros([20, 1000, 2]))
    gradient = tape.gradient(outputs, layer.bias.value, tf.ones_like(outputs))
    np.testing.assert_allclose(gradient, [20_000] * 3, rtol=error)


def test_layer_norm_computes_in_float32_where_the_rest_is_float16():
    # The variance of these, 90,000, is out of range in float16.
    x = np.array([[-300.0, 300.0, -300.0, 300.0]])
    outputs = LayerNorm(1e-12, dtype="mixed_float16")(tf.constant(x, tf.float16))
    assert outputs.dtype == tf.float16
    np.testing.assert_allclose(np.float32(outputs), x / 300)


def mask(rate, seed, shape=(1000, 1001), times=1, dtype="float32"):
    """The result of dropout on ones in each of `times` calls in one mode."""
    with seeded(tf.constant(seed)):
        return [np.float32(Dropout(rate, dtype=dtype)(tf.ones(shape, dtype), training=True)) for _ in range(times)]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(rate):
    (dropped,) = mask(rate, [3, 4])
    zeros = (dropped == 0).astype(np.float64)
    deviation = np.sqrt(rate * (1 - rate) / zeros.size)
    assert abs(zeros.mean() - rate) < 5 * deviation + 1 / 65536
    assert abs(dropped.mean() - 1) < 5 * deviation / (1 - rate) + 1e-4
    np.testing.assert_allclose(np.unique(dropped), [0, 1 / (1 - rate)], rtol=2e-4)
    # Two elements share 32 random bits, and rows follow one another: neighbours must still be independent.
    for shift, axis in ((1, 1), (2, 1), (1, 0)):
        both = (zeros * np.roll(zeros, shift, axis)).mean()
        assert abs(both - rate**2) < 5 * np.sqrt(rate**2 * (1 - rate**2) / zeros.size) + 1e-4


def test_the_same_seed_drops_the_same_and_another_seed_drops_others():
    (first,), (same,), (other,) = mask(0.5, [1, 2]), mask(0.5, [1, 2]), mask(0.5, [1, 3])
    np.testing.assert_array_equal(first, same)
    assert abs((first == other).mean() - 0.5) < 0.005


def test_each_layer_draws_its_own_mask_and_draws_it_again():
    masks = mask(0.5, [1, 2], times=3)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs((masks[one] == masks[other]).mean() - 0.5) < 0.005
    np.testing.assert_array_equal(masks, mask(0.5, [1, 2], times=3))


@pytest.mark.parametrize("shape", [(0, 3), (1,), (3,), (2, 0, 4), (1, 2, 3, 5)])
def test_dropout_accepts_any_shape(shape):
    assert mask(0.5, [0, 0], shape)[0].shape == shape


def test_dropout_in_a_compiled_step_depends_on_its_seed_argument():
    layer = Dropout(0.5)

    @tf.function
    def step(seed):
        with seeded(seed):
            return layer(tf.ones([100, 100]), training=True)

    first, same, other = (step(tf.constant(seed)).numpy() for seed in ([1, 2], [1, 2], [2, 2]))
    np.testing.assert_array_equal(first, same)
    np.testing.assert_array_equal(first, mask(0.5, [1, 2], (100, 100))[0])
    assert (first != other).any()


def test_the_gradient_has_the_mask_of_the_forward_pass():
    with tf.GradientTape() as tape, seeded(tf.constant([5, 6])):
        x = tf.ones([50, 50])
        tape.watch(x)
        y = Dropout(0.3)(x, training=True)
    np.testing.assert_array_equal(tape.gradient(y, x), y)


def test_an_inner_mode_does_not_change_the_outer_one():
    layer = Dropout(0.5)
    with seeded(tf.constant([1, 2])):
        layer(tf.ones([10]), training=True)
        with pytest.raises(ZeroDivisionError), seeded(tf.constant([7, 7])):
            layer(tf.ones([10]), training=True)
            raise ZeroDivisionError
        second = layer(tf.ones([1000]), training=True)
    np.testing.assert_array_equal(second, mask(0.5, [1, 2], [1000], times=2)[1])


def test_an_encoder_applies_dropout_in_training_only():
    encoder = randomize(BertEncoder(small_config(dropout=0.3, attention_dropout=0.3)))
    inputs = features()

    def run(training, seed):
        with seeded(tf.constant(seed)):
            return encoder(inputs, training=training)["sequence_output"].numpy()

    still = encoder(inputs)["sequence_output"].numpy()
    np.testing.assert_array_equal(run(False, [1, 2]), still)
    np.testing.assert_array_equal(run(True, [1, 2]), run(True, [1, 2]))
    assert np.abs(run(True, [1, 2]) - run(True, [1, 3])).max() > 0.01
    assert np.abs(run(True, [1, 2]) - still).max() > 0.01


@pytest.mark.parametrize("rates", [{"dropout": 0.0}, {"attention_dropout": 0.0}])
def test_either_of_the_two_rates_alone_applies_dropout(rates):
    config = small_config(**({"dropout": 0.3, "attention_dropout": 0.3} | rates))
    encoder = randomize(BertEncoder(config))
    with seeded(tf.constant([1, 2])):
        noisy = encoder(features(), training=True)["sequence_output"].numpy()
    assert np.abs(noisy - encoder(features())["sequence_output"].numpy()).max() > 0.01


def test_without_seeds_dropout_is_that_of_keras():
    layer = Dropout(0.5, seed=1)
    first, second = (layer(tf.ones([100, 100]), training=True).numpy() for _ in range(2))
    assert (first != second).any()
    assert abs((first == 0).mean() - 0.5) < 0.05
