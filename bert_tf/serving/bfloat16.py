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
from bert_tf.model.layers import Dense, SelfAttention, TransformerBlock
from bert_tf.serving import kernels


def replacements(block: TransformerBlock) -> Iterator[tuple[Any, dict[str, object]]]:
    """The layers of a block, and their attributes for bfloat16."""
    for layer, name, dtype in (
        (block.attention.qkv, "", tf.bfloat16),
        (block.attention.output_projection, "", tf.float32),
        (block.intermediate, block.config.activation, tf.bfloat16),
        (block.output_projection, "", tf.float32),
    ):
        yield layer, {"product": _Product(layer, name, dtype), "activation": kernels.unchanged, "autocast": False}
    yield block.attention, {"softmax": functools.partial(softmax, block.attention)}


class _Product:
    """`Dense.product` with weights of bfloat16, and with the activation of this name; the result has another dtype."""

    def __init__(self, layer: Dense, name: str, dtype: tf.DType) -> None:
        # Variables of bfloat16: a cast of float32 variables would be computed in every request.
        self._kernel = tf.Variable(tf.cast(layer.kernel, tf.bfloat16), trainable=False)
        self._bias = tf.Variable(tf.cast(layer.bias, tf.bfloat16), trainable=False)
        self._name, self._dtype = name, dtype

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        function = kernels.multiply if kernels.are_used("bfloat16") else multiply_anywhere
        kernel, bias = map(tf.convert_to_tensor, (self._kernel, self._bias))
        return tf.cast(function(tf.cast(rows, tf.bfloat16), kernel, bias, self._name), self._dtype)


def softmax(layer: SelfAttention, scores: tf.Tensor) -> tf.Tensor:
    """`SelfAttention.softmax`; bfloat16 if it is oneDNN's."""
    return kernels.softmax(scores) if kernels.are_used("bfloat16") else SelfAttention.softmax(layer, scores)


def multiply_anywhere(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, name: str) -> tf.Tensor:
    """`kernels.multiply` in TensorFlow's usual operations."""
    outputs = tf.nn.bias_add(tf.matmul(rows, kernel), bias)
    return without_gradient(activation(name))(outputs) if name else outputs
