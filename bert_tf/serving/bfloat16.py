"""Matrix products of an encoder in bfloat16.

On x86, TensorFlow turns a product, its bias and its activation into one kernel of oneDNN. Weights in variables might
change, so in each request the kernel arranges them anew for the processor, a quarter of the time of a short text.
Constants it arranges once, but TensorFlow copies them many times while it prepares a graph. So here the kernel is
asked for by name, and told that its weights stay.

The softmax of the attention is oneDNN's, too. It computes in float32 from scores in bfloat16 to probabilities in
bfloat16, so its results are those of a softmax in float32 between two casts, bit for bit, without the casts.
TensorFlow's own kernel would round after each step.
"""

import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from bert_tf.model.activations import activation, without_gradient
from bert_tf.model.fusion import only_cpus
from bert_tf.model.layers import Dense, SelfAttention, TransformerBlock
from bert_tf.serving.ask import processor_flags
from bert_tf.serving.int8 import ACTIVATIONS, unchanged

_Value = tf.compat.v1.AttrValue
_INSTRUCTIONS = "avx512f"  # without them the kernel ends the process


def replacements(block: TransformerBlock) -> Iterator[tuple[Any, dict[str, object]]]:
    """The layers of a block, and their attributes for bfloat16."""
    for layer, name, dtype in (
        (block.attention.qkv, "", tf.bfloat16),
        (block.attention.output_projection, "", tf.float32),
        (block.intermediate, block.config.activation, tf.bfloat16),
        (block.output_projection, "", tf.float32),
    ):
        yield layer, {"product": _Product(layer, name, dtype), "activation": unchanged, "autocast": False}
    yield block.attention, {"softmax": functools.partial(_softmax, block.attention)}


class _Product:
    """`Dense.product` with weights of bfloat16, and with the activation of this name; the result has another dtype."""

    def __init__(self, layer: Dense, name: str, dtype: tf.DType) -> None:
        # Variables of bfloat16: a cast of float32 variables would be computed in every request.
        self._kernel = tf.Variable(tf.cast(layer.kernel, tf.bfloat16), trainable=False)
        self._bias = tf.Variable(tf.cast(layer.bias, tf.bfloat16), trainable=False)
        self._name, self._dtype = name, dtype

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        function = multiply if _uses_kernels() else multiply_anywhere
        kernel, bias = map(tf.convert_to_tensor, (self._kernel, self._bias))
        return tf.cast(function(tf.cast(rows, tf.bfloat16), kernel, bias, self._name), self._dtype)


def _softmax(layer: SelfAttention, scores: tf.Tensor) -> tf.Tensor:
    """`SelfAttention.softmax`; bfloat16 if it is oneDNN's."""
    return softmax(scores) if _uses_kernels() else SelfAttention.softmax(layer, scores)


def _uses_kernels() -> bool:
    return has_kernel() and not tf.executing_eagerly()


def instructions() -> list[str]:
    """The instruction sets, in /proc/cpuinfo's names, one of which an export from here needs; [] if it needs none."""
    return [_INSTRUCTIONS] if has_kernel() else []


@functools.cache
def has_kernel() -> bool:
    """Whether products and softmax use oneDNN's kernels: not if there are GPUs or TPUs, which have none like them."""
    if _INSTRUCTIONS not in processor_flags() or not only_cpus():
        return False
    graph = tf.Graph()
    try:
        with graph.as_default():
            rows, kernel, bias = (tf.ones(shape, tf.bfloat16) for shape in ([16, 32], [32, 16], [16]))
            result = softmax(multiply(rows, kernel, bias, ""))
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
    attributes = {
        "num_args": _Value(i=1),
        "is_filter_const": _Value(b=True),
        "fused_ops": _Value(list={"s": [one.encode() for one in fused]}),
    }
    result = _kernel("_MklNativeFusedMatMul", [rows, kernel, bias], "product", attributes)
    result.set_shape([rows.shape[0], kernel.shape[1]])
    return result


def softmax(scores: tf.Tensor) -> tf.Tensor:
    """bfloat16 -> bfloat16, over the last axis, by oneDNN's kernel."""
    result = _kernel("_MklSoftmax", [scores], "softmax", {})
    result.set_shape(scores.shape)
    return result


def _kernel(op: str, inputs: list[tf.Tensor], name: str, attributes: dict[str, Any]) -> tf.Tensor:
    """The output of one of oneDNN's kernels, bfloat16."""
    attributes |= {"T": _Value(type=tf.bfloat16.as_datatype_enum), "_kernel": _Value(s=b"MklNameChangeOp")}
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(op, inputs, [tf.bfloat16], attrs=attributes, name=name).outputs[0]


def multiply_anywhere(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, name: str) -> tf.Tensor:
    """`multiply` in TensorFlow's usual operations."""
    outputs = tf.nn.bias_add(tf.matmul(rows, kernel), bias)
    return without_gradient(activation(name))(outputs) if name else outputs
