"""Programs of XLA and kernels of oneDNN: that TensorFlow has them, and that they compute what plain operations do."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import erf
from tensorflow.python.framework import op_def_registry

import bert_tf
from bert_tf.errors import UnsuitedError
from bert_tf.model import fused
from bert_tf.model.precision import int8
from bert_tf.processor_flags import processor_flags
from tests.model.small import multiplies_bfloat16

# By their definitions, in float64.
ACTIVATIONS = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "erf_gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "tanh_gelu": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
}


def runs_kernels(number_format="bfloat16"):
    if number_format == "int8":
        try:
            int8.require_kernels()
        except UnsuitedError:
            return False
        return bool({"avx512_vnni", "amx_int8", "avx_vnni"} & processor_flags())
    return fused.has_bfloat16() and fused.AVX512 in processor_flags()


def normal(*shape):
    return tf.random.stateless_normal(shape, [sum(shape), len(shape)])


ROWS, COLUMNS = normal(6, 64), normal(64)
DROPPED = tf.constant([7, 9], tf.uint32), tf.constant(2**30, tf.uint32), tf.constant(4 / 3)  # a quarter
# Arguments for each operation.
CASES = {
    "bias_sum": (ROWS, COLUMNS),
    "tanh_gradient": (ROWS, 2 * ROWS),
    "tanh_of_sum": (ROWS, COLUMNS),
    "tanh_of_sum_gradient": (ROWS, COLUMNS, 2 * ROWS),
    "erf_gradient": (ROWS, 2 * ROWS),
    "erf_of_sum": (ROWS, COLUMNS),
    "erf_of_sum_gradient": (ROWS, COLUMNS, 2 * ROWS),
    "silu_gradient": (ROWS, 2 * ROWS),
    "dropped": (ROWS, *DROPPED),
    "dropped_sum": (2 * ROWS, ROWS, COLUMNS, *DROPPED),
    "float32_sum": (tf.cast(ROWS, tf.bfloat16), COLUMNS),
    "dropped_softmax_gradient": (tf.nn.softmax(ROWS), ROWS, *DROPPED),
    "norm": (ROWS, COLUMNS, COLUMNS + 1, tf.constant(1e-5)),
    "norm_gradient": (ROWS, COLUMNS, normal(6, 1), tf.exp(normal(6, 1)), 2 * ROWS),
    "cross_entropy_gradient": (tf.nn.softmax(ROWS), tf.range(6) * 9, COLUMNS[:6]),
    "product": (*(tf.cast(one, tf.bfloat16) for one in (ROWS, normal(64, 32), normal(32))), "erf_gelu"),
    "softmax": (tf.cast(ROWS, tf.bfloat16),),
    "int8_product": (
        tf.cast(tf.round(40 * ROWS), tf.int8),
        tf.cast(tf.round(40 * normal(64, 32)), tf.int8),
        normal(32),
        tf.stack([-tf.exp(normal(32)), tf.exp(normal(32))]),
    ),
}


def int8_options(operation):
    """An operation on int8 with a range of its rows, whose dtype functions cannot take."""
    return lambda rows, *others: operation(tf.bitcast(rows, tf.qint8), *others, rows_range=(-0.5, 2.0))


@pytest.mark.parametrize("name", fused.OPERATIONS)
def test_an_operation_computes_what_its_plain_form_does(name):
    operation, arguments = fused.OPERATIONS[name], CASES[name]
    if isinstance(operation, fused.Kernel) and not runs_kernels(operation.number_format):
        pytest.skip("TensorFlow has no kernel for this processor")
    made, plain = operation.fused, operation.plain
    if name == "int8_product":
        made, plain = int8_options(made), int8_options(plain)
    found, expected = (tf.function(compute, autograph=False)(*arguments) for compute in (made, plain))
    bound = 2.0**-7 if name in ("product", "softmax") else 1e-5
    for one, of in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert one.shape == of.shape
        one, of = np.float64(one), np.float64(of)
        np.testing.assert_allclose(one, of, rtol=bound, atol=bound * np.abs(of).max())


def test_one_module_of_the_model_calls_xla_and_private_operations():
    folder = pathlib.Path(bert_tf.__file__).parent / "model"
    for call in ("create_op(", "jit_compile=True"):
        assert [path.name for path in folder.rglob("*.py") if call in path.read_text()] == ["fused.py"], call


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
@pytest.mark.parametrize("multiply", [fused.product.fused, fused.product.plain])
def test_products_of_any_number_of_rows_use_their_own_weights(multiply):
    if multiply is fused.product.fused and not runs_kernels():
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
        found = fused.softmax.fused(scores)
        for shape in ((1, 2, 3, 3), (4, 2, 33, 33), (1, 2, 1, 1), (0, 2, 5, 5), (4, 2, 33, 33)):
            values = (4 * random.normal(size=shape)).astype(tf.bfloat16.as_numpy_dtype)
            values[..., 2:] = -10000.0  # padding
            exact = np.exp(values.astype(np.float64) - values.max(-1, keepdims=True, initial=-np.inf))
            exact /= exact.sum(-1, keepdims=True)
            result = session.run(found, {scores: values})
            assert result.shape == shape
            # Half of bfloat16's last digit.
            np.testing.assert_allclose(result.astype(np.float64), exact, rtol=2.0**-8, atol=0)
