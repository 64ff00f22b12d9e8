"""Operations compiled by XLA in training: GELU, dropout and LayerNorm in one pass over memory."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.activations import activation, of_sum
from bert_tf.model.dropout import Dropout
from bert_tf.model.normalization import LayerNorm
from tests.model.small import multiplies_bfloat16, seeded

SHAPE = (64, 32, 128)


def dropped(x, rate=0.1, seed=(3, 4), calls=1):
    """Results of the layer in training, for a number of calls in one step, as a list."""
    layer = Dropout(rate)

    @tf.function(autograph=False)
    def run():
        with seeded(tf.constant(seed, tf.int64), fusion="static"):
            return [layer(x, training=True) for _ in range(calls)]

    return [value.numpy() for value in run()]


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_fused_dropout_drops_its_share_and_scales_the_rest(rate):
    (values,) = dropped(tf.ones(SHAPE), rate)
    np.testing.assert_allclose(values[values != 0], 1 / (1 - rate), rtol=1e-6)
    kept = values != 0
    deviation = np.sqrt(rate * (1 - rate))
    # Five standard deviations: of all elements, and of each position of the last axis.
    np.testing.assert_allclose(kept.mean(), 1 - rate, atol=5 * deviation / np.sqrt(kept.size))
    np.testing.assert_allclose(kept.mean((0, 1)), 1 - rate, atol=5 * deviation / np.sqrt(kept.size / SHAPE[-1]))


def test_masks_of_neighbours_layers_and_steps_are_uncorrelated():
    first, second = dropped(tf.ones(SHAPE), 0.5, calls=2)
    (later,) = dropped(tf.ones(SHAPE), 0.5, seed=(3, 5))
    base = first.ravel() - 1.0  # -1 or 1, with mean 0
    others = {f"{shift} elements on": np.roll(base, shift) for shift in (1, 2, 3, 64, 128, 4096)}
    others |= {"next layer": second.ravel() - 1.0, "next step": later.ravel() - 1.0}
    for name, other in others.items():
        assert abs(np.mean(base * other)) < 5 / np.sqrt(base.size), name


def test_equal_seeds_draw_equal_masks():
    np.testing.assert_array_equal(dropped(tf.ones(SHAPE)), dropped(tf.ones(SHAPE)))


def test_gradients_pass_where_values_passed():
    x, layer = tf.random.stateless_normal(SHAPE, [0, 1]), Dropout(0.3)

    @tf.function(autograph=False)
    def run():
        with tf.GradientTape() as tape, seeded(tf.constant([1, 2], tf.int64), fusion="static"):
            tape.watch(x)
            y = layer(x, training=True)
            return y, tape.gradient(y, x, output_gradients=2.0 * tf.ones_like(y))

    y, gradient = run()
    np.testing.assert_allclose(gradient, np.where(y.numpy() != 0, 2.0 / 0.7, 0.0), rtol=1e-6)


@pytest.mark.parametrize("name", ["tanh_gelu", "erf_gelu"])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-6), ("bfloat16", 2.0**-8)])
def test_a_compiled_activation_is_exact_to_the_last_digit_of_its_dtype(name, dtype, bound):
    x = tf.cast(tf.linspace(-6.0, 6.0, 4001), dtype)
    apply = activation(name)
    expected = apply(tf.cast(x, tf.float64)).numpy()

    @tf.function(autograph=False)
    def run():
        return of_sum(apply, x[:, tf.newaxis], tf.zeros([1], dtype))[:, 0]

    # Relative to the argument: next to 0 and far below it, 1 + tanh cancels.
    errors = np.abs(tf.cast(run(), tf.float64).numpy() - expected)
    assert np.max(errors / np.maximum(np.abs(x.numpy().astype("float64")), 1e-3)) < bound


def fused(function, *arguments, upstream, shapes="static"):
    """The result of a function in training and the gradients of its arguments, float64.

    Unless `shapes` is "static", all dimensions but the last of two and those of vectors are unknown when it is traced;
    it is compiled if they are "static" or "every", not if they are "unknown".
    """
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in arguments]
    if shapes != "static":
        ranks = [value.shape.rank for value in arguments]
        known = [value.shape[-1:] if rank < 3 else [None] for value, rank in zip(arguments, ranks, strict=True)]
        traced = [[None] * (rank - 1) + [*last] for rank, last in zip(ranks, known, strict=True)]
        specs = [tf.TensorSpec(shape, value.dtype) for shape, value in zip(traced, arguments, strict=True)]

    @tf.function(autograph=False, input_signature=specs)
    def run(*arguments):
        fusion = "every" if shapes == "every" else "static"
        with seeded(tf.constant([1, 2], tf.int64), fusion=fusion), tf.GradientTape() as tape:
            tape.watch(arguments)
            outputs = function(*arguments)
        return outputs, *tape.gradient(outputs, arguments, tf.cast(upstream, outputs.dtype))

    operations = run.get_concrete_function().graph.get_operations()
    assert any("PartitionedCall" in operation.type for operation in operations) == (shapes != "unknown")
    return [None if value is None else tf.cast(value, tf.float64).numpy() for value in run(*arguments)]


def check_fused(function, exact, *arguments, dtype, shapes=("static", "every")):
    """Compares a function and its gradients with those of `exact` in float64."""
    bound = {"float32": 2e-6, "bfloat16": 2.0**-7}[dtype]
    arguments = [tf.cast(value, dtype) for value in arguments]
    precise = [tf.cast(value, tf.float64) for value in arguments]
    with tf.GradientTape() as tape:
        tape.watch(precise)
        expected = exact(*precise)
    upstream = tf.cast(tf.random.stateless_normal(expected.shape, [5, 6]), dtype)
    expected = [expected, *tape.gradient(expected, precise, tf.cast(upstream, tf.float64))]
    for known in shapes:
        found = fused(function, *arguments, upstream=upstream, shapes=known)
        for value, of in zip(found, expected, strict=True):
            np.testing.assert_allclose(value, of, rtol=bound, atol=bound * np.abs(of).max())


def normal(*shape):
    return tf.random.stateless_normal(shape, [sum(shape), len(shape)])


DTYPES = pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=multiplies_bfloat16)])


@DTYPES
@pytest.mark.parametrize("name", ["tanh_gelu", "erf_gelu"])
def test_an_activation_of_a_sum_and_its_gradients_are_those_of_float64(name, dtype):
    apply = activation(name)
    check_fused(
        lambda x, bias: of_sum(apply, x, bias), lambda x, bias: apply(x + bias), normal(40, 16), normal(16), dtype=dtype
    )


@DTYPES
def test_residual_and_dropout_of_a_sum_in_one_pass_are_those_of_single_operations(dtype):
    layer = Dropout(0.3)
    mask, _ = fused(lambda x: layer(x, training=True), tf.ones([40, 16]), upstream=1.0)
    assert {0.0, 1.43} == set(mask.round(2).flat)
    check_fused(
        layer.added, lambda residual, x, bias: residual + mask * (x + bias),
        normal(40, 16), normal(40, 16) + 1.0, normal(16), dtype=dtype,
    )  # fmt: skip


@DTYPES
def test_the_dropped_softmax_and_its_gradient_are_those_of_single_operations(dtype):
    layer, bias = Dropout(0.3), tf.where(tf.range(8) < 6, 0.0, -10000.0)[tf.newaxis]
    mask, _ = fused(lambda x: layer(x, training=True), tf.ones([2, 3, 8, 8]), upstream=1.0)
    check_fused(
        lambda scores: layer.softmax(scores, bias),
        lambda scores: mask * tf.nn.softmax(scores + tf.cast(bias, tf.float64)),
        2.0 * normal(2, 3, 8, 8),
        dtype=dtype,
    )


@DTYPES
def test_a_layer_norm_and_its_gradients_are_those_of_float64(dtype):
    # Rows with a mean far from 0, and one whose values are all alike, so that epsilon decides.
    x = np.array(2.0 * normal(4, 6, 32) + 3.0)
    x[0, 0] = 1.5
    layer = LayerNorm(1e-6, dtype="float32" if dtype == "float32" else "mixed_bfloat16")
    layer.build(x.shape)

    def apply(x, gamma, beta):
        with keras.StatelessScope([(layer.gamma, gamma), (layer.beta, beta)]):
            return layer(tf.ensure_shape(x, [None, None, 32]))

    def exact(x, gamma, beta):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-6) * gamma + beta

    arguments = x, 1.0 + 0.3 * normal(32), normal(32) + 1.0
    check_fused(apply, exact, *arguments, dtype=dtype, shapes=("static", "every", "unknown"))


def test_inference_does_not_depend_on_xla():
    function = tf.function(activation("tanh_gelu"), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([4, 8])).graph
    assert not any("PartitionedCall" in op.type for op in graph.get_operations())
