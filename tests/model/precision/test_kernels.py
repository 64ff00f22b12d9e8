"""Kernels of oneDNN that exports ask for by name: that TensorFlow has them, and their definitions in float64."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import erf
from tensorflow.python.framework import op_def_registry

import bert_tf
from bert_tf.model.precision import kernels
from bert_tf.model.precision.bfloat16 import multiply_anywhere
from bert_tf.processor_flags import processor_flags as usable_flags
from tests.model.small import multiplies_bfloat16

# By their definitions, in float64.
ACTIVATIONS = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "erf_gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "tanh_gelu": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
}


def runs_kernels():
    return kernels.has_bfloat16() and kernels.AVX512 in usable_flags()


def test_one_module_calls_private_ops():
    folder = pathlib.Path(bert_tf.__file__).parent
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if "create_op(" in path.read_text()}
    assert found == {"model/precision/kernels.py"}


@pytest.mark.parametrize(
    "op, inputs",
    [
        ("_MklNativeFusedMatMul", ["a", "b", "args"]),
        ("_MklSoftmax", ["logits"]),
        ("_QuantizedMatMul", ["device_inputs", "host_inputs"]),
    ],
)
def test_tensorflow_has_the_private_ops(op, inputs):
    definition = op_def_registry.get(op)
    assert definition is not None, f"TensorFlow {tf.__version__} has no op {op}"
    assert [argument.name for argument in definition.input_arg] == inputs


@multiplies_bfloat16
@pytest.mark.parametrize("multiply", [kernels.multiply, multiply_anywhere])
def test_products_of_any_number_of_rows_use_their_own_weights(multiply):
    if multiply is kernels.multiply and not runs_kernels():
        pytest.skip("TensorFlow has no kernel for this processor")
    random = np.random.default_rng(0)
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session() as session:
        rows = tf.compat.v1.placeholder(tf.bfloat16, [None, 64])
        products, expected = {}, {}
        for name in ACTIVATIONS:
            # Equal shapes: the kernels share what TensorFlow keeps for a shape.
            kernel = tf.Variable(tf.cast(random.normal(size=[64, 48]) / 8, tf.bfloat16))
            bias = tf.Variable(tf.cast(random.normal(size=[48]), tf.bfloat16))
            products[name] = multiply(rows, tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias), name)
            expected[name] = kernel, bias
        session.run(tf.compat.v1.global_variables_initializer())
        weights = session.run(expected)
        for count in (1, 3, 16, 200, 3, 1):
            values = random.normal(size=[count, 64]).astype(tf.bfloat16.as_numpy_dtype)
            for name, found in session.run(products, {rows: values}).items():
                kernel, bias = (weight.astype(np.float64) for weight in weights[name])
                exact = ACTIVATIONS[name](values.astype(np.float64) @ kernel + bias)
                np.testing.assert_allclose(found.astype(np.float64), exact, rtol=0.02, atol=0.02, err_msg=name)


@multiplies_bfloat16
@pytest.mark.skipif("not runs_kernels()", reason="TensorFlow has no kernel for this processor")
def test_the_softmax_is_that_of_float32_rounded():
    random = np.random.default_rng(0)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        scores = tf.compat.v1.placeholder(tf.bfloat16, [None, 2, None, None])
        found = kernels.softmax(scores)
        for shape in ((1, 2, 3, 3), (4, 2, 33, 33), (1, 2, 1, 1), (0, 2, 5, 5), (4, 2, 33, 33)):
            values = (4 * random.normal(size=shape)).astype(tf.bfloat16.as_numpy_dtype)
            values[..., 2:] = -10000.0  # padding
            exact = np.exp(values.astype(np.float64) - values.max(-1, keepdims=True, initial=-np.inf))
            exact /= exact.sum(-1, keepdims=True)
            result = session.run(found, {scores: values})
            assert result.shape == shape
            # Half of bfloat16's last digit.
            np.testing.assert_allclose(result.astype(np.float64), exact, rtol=2.0**-8, atol=0)
