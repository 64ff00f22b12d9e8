"""Matrix products of an encoder in bfloat16.

On x86, TensorFlow turns a product, its bias and its activation into one kernel of oneDNN. Weights in variables might
change, so in each request the kernel arranges them anew for the processor, a quarter of the time of a short text.
Constants it arranges once, but TensorFlow copies them many times while it prepares a graph. So here the kernel is
asked for by name, and told that its weights stay.

The softmax of the attention is oneDNN's, too. It computes in float32 from scores in bfloat16 to probabilities in
bfloat16, so its results are those of a softmax in float32 between two casts, bit for bit, without the casts.
TensorFlow's own kernel would round after each step.
"""

from collections.abc import Iterator

import tensorflow as tf

from bert_tf.model import fused
from bert_tf.model.activations import activation, without_gradient
from bert_tf.model.compute import DenseForm, Form, InferredAttention, bias_of
from bert_tf.model.layers import Dense, Embeddings, TransformerBlock


def converted_embeddings(embeddings: Embeddings) -> Iterator[Form]:
    """The word embeddings, and the projection if there is one, and what they compute in bfloat16."""
    yield embeddings, Lookup(embeddings)
    if embeddings.config.embedding_size:
        yield embeddings.projection, _product(embeddings.projection, "", tf.float32)


def converted_block(block: TransformerBlock) -> Iterator[Form]:
    """The layers of a block, and what they compute in bfloat16 (their attribute `converted`)."""
    yield block.attention.qkv, _product(block.attention.qkv, "", tf.bfloat16)
    yield block.attention.output_projection, _product(block.attention.output_projection, "", tf.float32)
    intermediate = _Gated if block.config.feed_forward == "gated" else _product
    yield block.intermediate, intermediate(block.intermediate, block.config.activation, tf.bfloat16)
    yield block.output_projection, _product(block.output_projection, "", tf.float32)
    yield block.attention, InferredAttention(fused.softmax)


class _Product(DenseForm):
    """With weights of bfloat16.

    Args:
        kernel: [inputs, units].
        bias: [units].
        name: of the activation, "" for none. It is the kernel's, or else follows it, in float32.
        dtype: of the result.
    """

    def __init__(self, kernel: tf.Tensor, bias: tf.Tensor, name: str, dtype: tf.DType) -> None:
        # Variables of bfloat16: a cast of float32 variables would be computed in every request.
        self._kernel = tf.Variable(tf.cast(kernel, tf.bfloat16), trainable=False)
        self._bias = tf.Variable(tf.cast(bias, tf.bfloat16), trainable=False)
        self._name = name if name in fused.ACTIVATIONS else ""
        self._applied = "" if self._name else name
        self._dtype = dtype

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        kernel, bias = map(tf.convert_to_tensor, (self._kernel, self._bias))
        outputs = fused.product(tf.cast(rows, tf.bfloat16), kernel, bias, self._name)
        if self._applied:
            outputs = without_gradient(activation(self._applied))(tf.cast(outputs, tf.float32))
        return tf.cast(outputs, self._dtype)


def _product(layer: Dense, name: str, dtype: tf.DType) -> _Product:
    return _Product(layer.kernel, bias_of(layer), name, dtype)


class _Gated(DenseForm):
    """Both halves of a gated product apart, so that the kernel applies the activation to the first one.

    Args:
        layer: whose columns are both halves.
        name, dtype: as for `_Product`.
    """

    def __init__(self, layer: Dense, name: str, dtype: tf.DType) -> None:
        halves = zip(tf.split(layer.kernel, 2, 1), tf.split(bias_of(layer), 2), (name, ""), strict=True)
        self._activated, self._gate = (_Product(*half, tf.bfloat16) for half in halves)
        self._dtype = dtype

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        activated, gate = (tf.cast(half(rows), tf.float32) for half in (self._activated, self._gate))
        return tf.cast(activated * gate, self._dtype)


class Lookup:
    """Word embeddings from a table of bfloat16, in float32."""

    def __init__(self, layer: Embeddings) -> None:
        self._table = tf.Variable(tf.cast(layer.word_embeddings, tf.bfloat16), trainable=False)

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        # Not from the variable: that is the op ResourceGather, which other exports do without.
        return tf.cast(tf.gather(tf.convert_to_tensor(self._table), ids), tf.float32)
