"""How layers compute: an object of one small class for each way, chosen when the layer is called.

The mode chooses among the layer's own ways (`Mode.way`), unless low precision has put in an object: the attribute
`converted` of a layer, in the scope of `converted`.
"""

import abc
import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from bert_tf.model import fused
from bert_tf.model.activations import has_bias_form, of_sum, without_gradient
from bert_tf.model.dropout import Dropout

# A layer, and how it computes instead.
Form: TypeAlias = tuple[keras.layers.Layer, Callable[..., tf.Tensor]]


@contextlib.contextmanager
def converted(forms: Iterable[Form]) -> Iterator[None]:
    """Scope in which each layer has this value of its attribute `converted`."""
    before = []
    try:
        for layer, form in forms:
            before.append((layer, layer.converted))
            layer.converted = form
        yield
    finally:
        for layer, form in before:
            layer.converted = form


class DenseForm(abc.ABC):
    """How a dense layer computes."""

    @abc.abstractmethod
    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        """[rows, inputs] -> [rows, units]: product, bias and activation."""

    def added(self, x: tf.Tensor, rows: tf.Tensor, dropout: Dropout | None = None) -> tf.Tensor:
        """x [rows, units] + the results for [rows, inputs], in training with dropout."""
        outputs = self(rows)
        return x + (outputs if dropout is None else dropout(outputs, training=True))


class PlainDense(DenseForm):
    """In TensorFlow's usual operations, and gradients by plain matrix products."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        outputs = self._product(rows)
        return self.layer.activation(add_bias(outputs, self._bias(rows)) if self.layer.use_bias else outputs)

    def _product(self, rows: tf.Tensor) -> tf.Tensor:
        # The cast is Keras' own, but not where a block is recomputed in the backward pass, outside of its scope.
        return tf.matmul(rows, tf.cast(self.layer.kernel, rows.dtype))

    def _bias(self, like: tf.Tensor) -> tf.Tensor:
        return tf.cast(self.layer.bias, like.dtype)


class CompiledDense(PlainDense):
    """With bias and GELU, or bias, dropout and residual connection, in one pass over memory."""

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        if not (self.layer.use_bias and has_bias_form(self.layer.activation)):
            return super().__call__(rows)
        return of_sum(self.layer.activation, self._product(rows), self.layer.bias)

    def added(self, x: tf.Tensor, rows: tf.Tensor, dropout: Dropout | None = None) -> tf.Tensor:
        if dropout is None or not (self.layer.use_bias and dropout.is_fused(x)):
            return super().added(x, rows, dropout)
        return dropout.added(x, self._product(rows), self._bias(x))


class InferredDense(PlainDense):
    """Without hand-written gradients between the operations, so that TensorFlow makes one kernel of them."""

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        outputs = self._product(rows)
        if self.layer.use_bias:
            outputs = tf.nn.bias_add(outputs, self._bias(rows))
        # Activation before any reshape: product, bias and GELU become one kernel.
        return without_gradient(self.layer.activation)(outputs)


def bias_of(layer: Any) -> tf.Tensor:
    """The bias of a dense layer, zeros if it has none: float32 [units]."""
    return tf.convert_to_tensor(layer.bias) if layer.use_bias else tf.zeros(layer.kernel.shape[1:])


@tf.custom_gradient
def add_bias(x: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
    """x [..., units] plus bias [units], in the dtype of the bias.

    Compiled where that is possible: the kernel by which TensorFlow would otherwise replace product and bias is slow in
    bfloat16 on processors with AMX (7.5 instead of 4.3 ms for 2048 x 768 x 2304).
    """

    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(upstream, x.dtype), fused.column_sums(tf.reshape(upstream, [-1, tf.shape(upstream)[-1]]))

    return fused.bias_sum.on(x)(x, bias), backward


class AttentionForm(abc.ABC):
    """How the states of tokens are mixed: all are [batch, heads, length, head_size]."""

    def __call__(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, bias: tf.Tensor, dropout: Dropout | None = None
    ) -> tf.Tensor:
        """The mean of the values for each query, weighted by its attention.

        Args:
            query, key, value: of the heads.
            bias: added to scores [batch, heads, length, length].
            dropout: of the probabilities, in training.
        """
        probabilities = self.probabilities(query, key, bias, dropout)
        return tf.matmul(tf.cast(probabilities, value.dtype), value)

    @abc.abstractmethod
    def probabilities(
        self, query: tf.Tensor, key: tf.Tensor, bias: tf.Tensor, dropout: Dropout | None = None
    ) -> tf.Tensor:
        """[batch, heads, length, length]."""


class InferredAttention(AttentionForm):
    """Without dropout. In graphs without gradients, product, scale and bias become one kernel.

    Args:
        softmax: of the scores; by default in float32.
    """

    def __init__(self, softmax: Callable[[tf.Tensor], tf.Tensor] = fused.softmax.plain) -> None:
        self._softmax = softmax

    def probabilities(
        self, query: tf.Tensor, key: tf.Tensor, bias: tf.Tensor, dropout: Dropout | None = None
    ) -> tf.Tensor:
        assert dropout is None
        # The bias, too: Keras has cast it, like any input, to the compute dtype of the layer.
        scores = tf.matmul(query, key, transpose_b=True) * _scale(query) + tf.cast(bias, query.dtype)
        return self._softmax(scores)


class PlainAttention(AttentionForm):
    """In training: scores and softmax in float32."""

    def probabilities(
        self, query: tf.Tensor, key: tf.Tensor, bias: tf.Tensor, dropout: Dropout | None = None
    ) -> tf.Tensor:
        assert dropout is not None
        scores = tf.cast(_scaled_scores(query, key), tf.float32) + tf.cast(bias, tf.float32)
        return dropout(fused.softmax.plain(scores), training=True)


class CompiledAttention(PlainAttention):
    """In training, with what surrounds the softmax in one pass over memory."""

    def probabilities(
        self, query: tf.Tensor, key: tf.Tensor, bias: tf.Tensor, dropout: Dropout | None = None
    ) -> tf.Tensor:
        if dropout is None or not dropout.is_fused(query):
            return super().probabilities(query, key, bias, dropout)
        return dropout.softmax(_scaled_scores(query, key), tf.cast(bias, tf.float32))


def _scaled_scores(query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """[batch, heads, length, length]: to scale the query takes less than to scale the scores."""
    return tf.matmul(query * _scale(query), key, transpose_b=True)


def _scale(query: tf.Tensor) -> tf.Tensor:
    return tf.constant(1.0 / math.sqrt(query.shape[-1]), query.dtype)
