"""Dropout as a pure function of a seed, so that a resumed run draws the same masks as an uninterrupted one."""

from collections.abc import Callable
from typing import TypeAlias

import keras
import tensorflow as tf

from bert_tf.model.mode import Seeds, current
from bert_tf.model.normalization import column_sums, row_sums

# What tf.custom_gradient expects: the value and the function from the upstream gradient to the gradients.
_SumAndGradients: TypeAlias = tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]]


@keras.saving.register_keras_serializable("bert_tf")
class Dropout(keras.layers.Dropout):
    """Dropout, seeded by the mode or, if it has no seeds (Keras' own `fit`), by Keras' seed generator."""

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        mode = current()
        if not training or self.rate == 0 or mode.seeds is None:
            return super().call(inputs, training=training)
        seed = mode.seeds.next()
        if mode.fuses(inputs):
            return _fused_dropout(inputs, _keys(seed), self.rate)
        # 16 random bits per element: half the work of a float32 draw; the rate is exact to 1/65536.
        shape = tf.shape(inputs)
        size = tf.reduce_prod(shape)
        bits = tf.random.stateless_uniform([(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.int32)
        bits = tf.reshape(tf.reshape(tf.bitcast(bits, tf.uint16), [-1])[:size], shape)
        threshold = round(self.rate * 65536)
        scale = 65536.0 / (65536 - threshold)
        keep = tf.cast(bits >= tf.cast(threshold, tf.uint16), inputs.dtype)
        return inputs * (keep * tf.cast(scale, inputs.dtype))

    def is_fused(self, tensor: tf.Tensor) -> bool:
        """Whether `added` and `softmax` can be called on such tensors: in a mode with seeds, if anything is dropped."""
        return self.rate > 0 and current().seeds is not None and current().fuses(tensor)

    def added(self, residual: tf.Tensor, x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        """residual + dropout(x + bias) in training, in one pass over memory.

        Args:
            residual, x: [rows, size].
            bias: [size].
        """
        return _fused_sum(residual, x, bias, _keys(_seeds().next()), self.rate)

    def softmax(self, scores: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        """dropout(softmax(scores + bias)) in training, computed in float32, in the dtype of the scores.

        Args:
            scores: [..., length].
            bias: float32, of a shape that adds to it; gets no gradient.
        """
        return _fused_softmax(scores, bias, _keys(_seeds().next()), self.rate)


def _seeds() -> Seeds:
    seeds = current().seeds
    assert seeds is not None  # as `Dropout.is_fused` has found
    return seeds


def _keys(seed: tf.Tensor) -> tf.Tensor:
    """uint32 [2], for `_masked`."""
    return tf.random.stateless_uniform([2], seed, None, None, tf.uint32)


def _fused_dropout(inputs: tf.Tensor, keys: tf.Tensor, rate: float) -> tf.Tensor:
    """Dropout in one pass, without stored masks: the backward pass draws them again from `keys`, uint32 [2]."""
    threshold, scale = _constants(rate)

    @tf.custom_gradient
    def drop(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _masked(x, keys, threshold, scale), lambda upstream: _masked(upstream, keys, threshold, scale)

    return drop(inputs)


def _fused_sum(residual: tf.Tensor, inputs: tf.Tensor, bias: tf.Tensor, keys: tf.Tensor, rate: float) -> tf.Tensor:
    """residual + dropout(inputs + bias) in one pass."""
    threshold, scale = _constants(rate)

    @tf.custom_gradient
    def add(residual: tf.Tensor, x: tf.Tensor, bias: tf.Tensor) -> _SumAndGradients:
        def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            gradient = _masked(upstream, keys, threshold, scale)
            return upstream, gradient, column_sums(gradient)

        return _masked_sum(residual, x, bias, keys, threshold, scale), backward

    return add(residual, inputs, bias)


def _fused_softmax(scores: tf.Tensor, bias: tf.Tensor, keys: tf.Tensor, rate: float) -> tf.Tensor:
    """dropout(softmax(scores + bias)): what surrounds TensorFlow's softmax in one pass each, and its gradient."""
    threshold, scale = _constants(rate)

    @tf.custom_gradient
    def drop(scores: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        probabilities = tf.nn.softmax(_float32_sum(scores, bias))

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            return _softmax_gradient(probabilities, upstream, keys, threshold, scale)

        return _masked(probabilities, keys, threshold, scale, scores.dtype), backward

    return drop(scores)


def _constants(rate: float) -> tuple[tf.Tensor, tf.Tensor]:
    """The arguments `threshold` and `scale` of `_masked`."""
    return tf.constant(round(rate * 2**32), tf.uint32), tf.constant(1.0 / (1.0 - rate))


@tf.function(autograph=False, jit_compile=True)
def _masked(
    x: tf.Tensor, keys: tf.Tensor, threshold: tf.Tensor, scale: tf.Tensor, dtype: tf.DType | None = None
) -> tf.Tensor:
    """`scale` times the elements of x whose random number, uint32, is not below `threshold`, and 0 for the others.

    In the dtype of x if no other one is given.
    """
    return tf.cast(_kept(tf.cast(x, tf.float32), keys, threshold, scale), dtype or x.dtype)


@tf.function(autograph=False, jit_compile=True)
def _float32_sum(scores: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(scores, tf.float32) + bias


@tf.function(autograph=False, jit_compile=True)
def _softmax_gradient(
    probabilities: tf.Tensor, upstream: tf.Tensor, keys: tf.Tensor, threshold: tf.Tensor, scale: tf.Tensor
) -> tf.Tensor:
    """The gradient of the scores from that of `_masked` of their softmax, in its dtype."""
    gradient = _kept(tf.cast(upstream, tf.float32), keys, threshold, scale)
    sums = row_sums(gradient * probabilities)
    return tf.cast(probabilities * (gradient - sums), upstream.dtype)


@tf.function(autograph=False, jit_compile=True)
def _masked_sum(
    residual: tf.Tensor, x: tf.Tensor, bias: tf.Tensor, keys: tf.Tensor, threshold: tf.Tensor, scale: tf.Tensor
) -> tf.Tensor:
    """`residual` plus `_masked` of x + bias."""
    total = tf.cast(x, tf.float32) + tf.cast(bias, tf.float32)
    return tf.cast(tf.cast(residual, tf.float32) + _kept(total, keys, threshold, scale), residual.dtype)


def _kept(x: tf.Tensor, keys: tf.Tensor, threshold: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """As `_masked`, float32."""
    # The number is a hash of the element's index and the keys, with the mixing steps of MurmurHash3's finalizer: a
    # fifth of the time that TensorFlow's generator takes to fill a tensor.
    bits = tf.cast(tf.range(tf.size(x)), tf.uint32) * 0x9E3779B9 + keys[0]
    bits = _shifted(bits, 16) * 0x85EBCA6B
    bits = _shifted(tf.bitwise.bitwise_xor(bits, keys[1]), 13) * 0xC2B2AE35
    keep = tf.reshape(_shifted(bits, 16), tf.shape(x)) >= threshold
    return tf.where(keep, x * scale, 0.0)


def _shifted(bits: tf.Tensor, places: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(places, tf.uint32)))
