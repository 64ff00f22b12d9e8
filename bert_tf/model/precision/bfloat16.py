"""Matrix products of an encoder in bfloat16.

On x86, TensorFlow turns a product, its bias and its activation into one kernel of oneDNN. Weights in variables might
change, so in each request the kernel arranges them anew for the processor, a quarter of the time of a short text.
Constants it arranges once, but TensorFlow copies them many times while it prepares a graph. So here the kernel is
asked for by name, and told that its weights stay.

The softmax of the attention is oneDNN's, too. It computes in float32 from scores in bfloat16 to probabilities in
bfloat16, so its results are those of a softmax in float32 between two casts, bit for bit, without the casts.
TensorFlow's own kernel would round after each step.
"""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from bert_tf.model.activations import activation, without_gradient
from bert_tf.model.layers import ConvertedDense, Dense, Embeddings, TransformerBlock
from bert_tf.model.layers import softmax as softmax_in_float32
from bert_tf.model.precision import kernels


def converted_embeddings(embeddings: Embeddings) -> Iterator[tuple[Any, Callable[[tf.Tensor], tf.Tensor]]]:
    """The word embeddings, and the projection if there is one, and what they compute in bfloat16."""
    yield embeddings, Lookup(embeddings)
    if embeddings.config.embedding_size:
        yield embeddings.projection, _Product(embeddings.projection, "", tf.float32)


def converted_block(block: TransformerBlock) -> Iterator[tuple[Any, Callable[[tf.Tensor], tf.Tensor]]]:
    """The layers of a block, and what they compute in bfloat16 (their attribute `converted`)."""
    for layer, name, dtype in (
        (block.attention.qkv, "", tf.bfloat16),
        (block.attention.output_projection, "", tf.float32),
        (block.intermediate, block.config.activation, tf.bfloat16),
        (block.output_projection, "", tf.float32),
    ):
        yield layer, _Product(layer, name, dtype)
    yield block.attention, softmax


class _Product(ConvertedDense):
    """With weights of bfloat16 and the activation of this name; the result has another dtype."""

    def __init__(self, layer: Dense, name: str, dtype: tf.DType) -> None:
        # Variables of bfloat16: a cast of float32 variables would be computed in every request.
        self._kernel = tf.Variable(tf.cast(layer.kernel, tf.bfloat16), trainable=False)
        self._bias = tf.Variable(tf.cast(layer.bias, tf.bfloat16), trainable=False)
        self._name, self._dtype = name, dtype

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        function = kernels.multiply if kernels.are_used("bfloat16") else multiply_anywhere
        kernel, bias = map(tf.convert_to_tensor, (self._kernel, self._bias))
        return tf.cast(function(tf.cast(rows, tf.bfloat16), kernel, bias, self._name), self._dtype)


class Lookup:
    """Word embeddings from a table of bfloat16, in float32."""

    def __init__(self, layer: Embeddings) -> None:
        self._table = tf.Variable(tf.cast(layer.word_embeddings, tf.bfloat16), trainable=False)

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        # Not from the variable: that is the op ResourceGather, which other exports do without.
        return tf.cast(tf.gather(tf.convert_to_tensor(self._table), ids), tf.float32)


def softmax(scores: tf.Tensor) -> tf.Tensor:
    """Softmax over the last axis, bfloat16 if it is oneDNN's, else float32."""
    return kernels.softmax(scores) if kernels.are_used("bfloat16") else softmax_in_float32(scores)


def multiply_anywhere(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, name: str) -> tf.Tensor:
    """`kernels.multiply` in TensorFlow's usual operations."""
    outputs = tf.nn.bias_add(tf.matmul(rows, kernel), bias)
    return without_gradient(activation(name))(outputs) if name else outputs
