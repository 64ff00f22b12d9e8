"""Matrix products of an encoder in bfloat16.

On x86, TensorFlow turns a product, its bias and its activation into one kernel of oneDNN. Weights in variables might
change, so in each request the kernel arranges them anew for the processor, a quarter of the time of a short text.
Constants it arranges once, but TensorFlow copies them many times while it prepares a graph. So here the kernel is
asked for by name, and told that its weights stay.
"""

import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from bert_tf.model.activations import activation, without_gradient
from bert_tf.model.layers import Dense, TransformerBlock
from bert_tf.serving.ask import processor_flags
from bert_tf.serving.int8 import ACTIVATIONS, unchanged

_INSTRUCTIONS = "avx512f"  # without them the kernel ends the process


def replacements(block: TransformerBlock) -> Iterator[tuple[Any, dict[str, object]]]:
    """The dense layers of a block, and their attributes for bfloat16."""
    for layer, name, dtype in (
        (block.attention.qkv, "", tf.bfloat16),
        (block.attention.output_projection, "", tf.float32),
        (block.intermediate, block.config.activation, tf.bfloat16),
        (block.output_projection, "", tf.float32),
    ):
        yield layer, {"product": _Product(layer, name, dtype), "activation": unchanged, "autocast": False}


class _Product:
    """`Dense.product` with weights of bfloat16, and with the activation of this name; the result has another dtype."""

    def __init__(self, layer: Dense, name: str, dtype: tf.DType) -> None:
        # Variables of bfloat16: a cast of float32 variables would be computed in every request.
        self._kernel = tf.Variable(tf.cast(layer.kernel, tf.bfloat16), trainable=False)
        self._bias = tf.Variable(tf.cast(layer.bias, tf.bfloat16), trainable=False)
        self._name, self._dtype = name, dtype

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        function = multiply if has_kernel() and not tf.executing_eagerly() else multiply_anywhere
        kernel, bias = map(tf.convert_to_tensor, (self._kernel, self._bias))
        return tf.cast(function(tf.cast(rows, tf.bfloat16), kernel, bias, self._name), self._dtype)


def instructions() -> list[str]:
    """The instruction sets, in /proc/cpuinfo's names, one of which an export from here needs; [] if it needs none."""
    return [_INSTRUCTIONS] if has_kernel() else []


@functools.cache
def has_kernel() -> bool:
    """Whether products use the kernel: not if there is a GPU, which has none like it."""
    if _INSTRUCTIONS not in processor_flags() or tf.config.list_physical_devices("GPU"):
        return False
    graph = tf.Graph()
    try:
        with graph.as_default():
            rows, kernel, bias = (tf.ones(shape, tf.bfloat16) for shape in ([16, 32], [32, 16], [16]))
            result = multiply(rows, kernel, bias, "")
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(result)
    except (tf.errors.OpError, ValueError):  # not part of this build of TensorFlow
        return False
    return True


def multiply(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, name: str) -> tf.Tensor:
    """The activation `name`, "" for none, of rows [rows, inputs] times a kernel [inputs, outputs] plus bias [outputs].

    All are bfloat16. The kernel keeps the first weights that it gets.
    """
    fused = ["BiasAdd", *([ACTIVATIONS[name][0]] if name else [])]
    value = tf.compat.v1.AttrValue
    attributes = {
        "T": value(type=tf.bfloat16.as_datatype_enum),
        "num_args": value(i=1),
        "is_filter_const": value(b=True),
        "fused_ops": value(list={"s": [one.encode() for one in fused]}),
        "_kernel": value(s=b"MklNameChangeOp"),
    }
    graph = tf.compat.v1.get_default_graph()
    result = graph.create_op(
        "_MklNativeFusedMatMul", [rows, kernel, bias], [tf.bfloat16], attrs=attributes, name="product"
    ).outputs[0]
    result.set_shape([rows.shape[0], kernel.shape[1]])
    return result


def multiply_anywhere(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, name: str) -> tf.Tensor:
    """`multiply` in TensorFlow's usual operations."""
    outputs = tf.nn.bias_add(tf.matmul(rows, kernel), bias)
    return without_gradient(activation(name))(outputs) if name else outputs
