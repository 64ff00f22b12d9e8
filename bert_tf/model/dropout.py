"""Dropout as a pure function of a seed, so that a resumed run draws the same masks as an uninterrupted one."""

from collections.abc import Callable
from typing import TypeAlias

import keras
import tensorflow as tf

from bert_tf.model import fused
from bert_tf.model.mode import Seeds, current

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

    def next_seed(self) -> tf.Tensor:
        """The seed of the next masks, int32 [2]."""
        seeds = current().seeds
        return seeds.next() if seeds else tf.cast(self.seed_generator.next(), tf.int32)

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
    """uint32 [2], for `fused.dropped`."""
    return tf.random.stateless_uniform([2], seed, None, None, tf.uint32)


def _fused_dropout(inputs: tf.Tensor, keys: tf.Tensor, rate: float) -> tf.Tensor:
    """Dropout in one pass, without stored masks: the backward pass draws them again from `keys`, uint32 [2]."""
    threshold, scale = _constants(rate)

    @tf.custom_gradient
    def drop(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return fused.dropped.fused(x, keys, threshold, scale), lambda upstream: fused.dropped.fused(
            upstream, keys, threshold, scale
        )

    return drop(inputs)


def _fused_sum(residual: tf.Tensor, inputs: tf.Tensor, bias: tf.Tensor, keys: tf.Tensor, rate: float) -> tf.Tensor:
    """residual + dropout(inputs + bias) in one pass."""
    threshold, scale = _constants(rate)

    @tf.custom_gradient
    def add(residual: tf.Tensor, x: tf.Tensor, bias: tf.Tensor) -> _SumAndGradients:
        def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            gradient = fused.dropped.fused(upstream, keys, threshold, scale)
            return upstream, gradient, fused.column_sums(gradient)

        return fused.dropped_sum.fused(residual, x, bias, keys, threshold, scale), backward

    return add(residual, inputs, bias)


def _fused_softmax(scores: tf.Tensor, bias: tf.Tensor, keys: tf.Tensor, rate: float) -> tf.Tensor:
    """dropout(softmax(scores + bias)): what surrounds TensorFlow's softmax in one pass each, and its gradient."""
    threshold, scale = _constants(rate)

    @tf.custom_gradient
    def drop(scores: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        probabilities = tf.nn.softmax(fused.float32_sum.fused(scores, bias))

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            return fused.dropped_softmax_gradient.fused(probabilities, upstream, keys, threshold, scale)

        return fused.dropped.fused(probabilities, keys, threshold, scale, scores.dtype), backward

    return drop(scores)


def _constants(rate: float) -> tuple[tf.Tensor, tf.Tensor]:
    """The arguments `threshold` and `scale` of `fused.dropped`."""
    return tf.constant(round(rate * 2**32), tf.uint32), tf.constant(1.0 / (1.0 - rate))
