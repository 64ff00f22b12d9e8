"""What layers compute on a GPU, by the programs that XLA gets for one; numbers by the same operations on the CPU."""

import re
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model import fused
from bert_tf.model.dropout import Dropout
from bert_tf.model.mode import Mode, Seeds, computing
from bert_tf.model.normalization import LayerNorm
from tests.model.gpu import as_on_a_gpu, operations, program

GPU = Mode(fusion="static", gpu_program=True)


def normal(*shape):
    return tf.random.stateless_normal(shape, [sum(shape), len(shape)])


X, UPSTREAM, GAMMA, BETA = normal(6, 32), normal(6, 32)[::-1], normal(32), normal(32)[::-1]


def norm_and_gradients(mode):
    """A function from states, weights and upstream gradient to LayerNorm's outputs and its gradients."""
    norm = LayerNorm(1e-5)
    norm.build(X.shape)

    def compute(x, gamma, beta, upstream):
        with computing(mode), tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            outputs, _ = norm.stateless_call([gamma, beta], [], x)
        return outputs, *tape.gradient(outputs, [x, gamma, beta], upstream)

    return compute


def test_columns_are_summed_without_products_on_a_gpu():
    rows = tf.cast(X, tf.bfloat16)
    found = operations(program(fused.column_sums, rows))
    assert "reduce" in found and "dot" not in found
    with as_on_a_gpu():
        sums = fused.column_sums(rows)
    assert sums.dtype == rows.dtype
    np.testing.assert_allclose(sums.numpy().astype("float64"), rows.numpy().astype("float64").sum(0), rtol=2.0**-8)


def test_layer_norm_keeps_its_statistics_for_its_gradient_on_a_gpu():
    found = operations(program(norm_and_gradients(GPU), X, GAMMA, BETA, UPSTREAM))
    assert found.count("opt-barrier") == 1 and "dot" not in found
    # Mean and variance; two means of rows and two sums of columns in the gradient.
    assert found.count("reduce") == 6


@pytest.mark.parametrize("mode", [Mode(fusion="static"), GPU], ids=["alone", "in one program"])
def test_layer_norm_of_a_gpu_computes_what_the_formula_does(mode):
    expected = norm_and_gradients(Mode())(X, GAMMA, BETA, UPSTREAM)
    with as_on_a_gpu():
        compute = tf.function(norm_and_gradients(mode), autograph=False, jit_compile=mode.gpu_program)
        found = compute(X, GAMMA, BETA, UPSTREAM)
    for one, of in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, of, rtol=1e-5, atol=1e-5)


def test_dropout_counts_its_elements_in_the_program_on_a_gpu():
    dropout = Dropout(0.25)
    x = tf.ones([2, 3, 32])

    def dropped(x):
        with computing(Mode(seeds=Seeds(tf.zeros([2], tf.int64)), fusion="static", gpu_program=True)):
            return dropout(x, training=True)

    hlo = program(dropped, x)
    # Not by TensorFlow, which would write all indices into the program.
    assert "iota" in operations(hlo) and not re.search(r"\[192\]\S* constant", hlo)
    with mock.patch.object(fused, "module", lambda text, arguments, results: [tf.cast(tf.range(192), tf.uint32)]):
        found = dropped(x)
    with computing(Mode(seeds=Seeds(tf.zeros([2], tf.int64)), fusion="static")):
        np.testing.assert_array_equal(found, dropout(x, training=True))
