"""LayerNorm (Ba et al., 2016, arXiv:1607.06450), compiled by XLA in training."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from bert_tf.model.mode import current
from bert_tf.model.processors import only_cpus
from bert_tf.types import Json

Shape: TypeAlias = tuple[int | None, ...]
# What tf.custom_gradient expects: the value and the function from the upstream gradient to the gradients.
_WithGradient: TypeAlias = tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]]


@keras.saving.register_keras_serializable("bert_tf")
class LayerNorm(keras.layers.Layer):
    """Normalises the last axis in float32, then returns gamma x + beta."""

    def __init__(self, epsilon: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: Shape) -> None:
        self.gamma = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="gamma", autocast=False)
        self.beta = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="beta", autocast=False)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        gamma, beta = tf.cast(self.gamma, tf.float32), tf.cast(self.beta, tf.float32)
        # Products of TPUs, and of GPUs with TF32, are too coarse for its sums.
        if current().compiles(inputs) and only_cpus():
            outputs = _normalized(tf.reshape(inputs, [-1, inputs.shape[-1]]), gamma, beta, self.epsilon)
            return tf.cast(tf.reshape(outputs, tf.shape(inputs)), self.compute_dtype)
        x = tf.cast(inputs, tf.float32)
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        deviation = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + self.epsilon)
        # Not in a form that TensorFlow replaces by its kernel for LayerNorm: there it forgets the epsilon.
        return tf.cast(centred * deviation * gamma + beta, self.compute_dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> Json:
        return super().get_config() | {"epsilon": self.epsilon}


def column_sums(rows: tf.Tensor) -> tf.Tensor:
    """[rows, size] -> [size]: a product with ones, which on a CPU takes a tenth of the time of a reduction."""
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], rows.dtype), rows)[0]


def row_sums(values: tf.Tensor) -> tf.Tensor:
    """float32 [..., size] -> [..., 1], in XLA: a product with ones, because a reduction on a CPU is one long sum.

    On other devices, whose products may be coarser than float32, a reduction.
    """
    if not only_cpus():
        return tf.reduce_sum(values, -1, keepdims=True)
    size = tf.shape(values)[-1]
    sums = tf.matmul(tf.reshape(values, [-1, size]), tf.ones([size, 1]))
    return tf.reshape(sums, tf.concat([tf.shape(values)[:-1], [1]], 0))


def _normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """`LayerNorm` of rows [rows, size]: a third of the processor time of the single operations and their gradients.

    Where it is not compiled, half as many operations.
    """
    forward, backward_of = _forward, _backward
    if not current().fuses(x):
        forward, backward_of = forward.python_function, backward_of.python_function

    @tf.custom_gradient
    def normalize(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> _WithGradient:
        outputs, mean, inverse = forward(x, gamma, beta, tf.constant(epsilon))

        def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            gradient, weighted = backward_of(x, gamma, mean, inverse, upstream)
            return gradient, column_sums(weighted), column_sums(tf.cast(upstream, tf.float32))

        return outputs, backward

    return normalize(x, gamma, beta)


_compiled = functools.partial(tf.function, autograph=False, jit_compile=True)


@_compiled
def _forward(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The normalised rows in the dtype of x; their means and inverse standard deviations, float32 [rows, 1]."""
    rows = tf.cast(x, tf.float32)
    # Means as products: XLA adds up one number after the other.
    mean_of = tf.fill([rows.shape[1], 1], 1.0 / rows.shape[1])
    mean = tf.matmul(rows, mean_of)
    inverse = tf.math.rsqrt(tf.matmul(tf.square(rows - mean), mean_of) + epsilon)
    return tf.cast((rows - mean) * inverse * gamma + beta, x.dtype), mean, inverse


@_compiled
def _backward(
    x: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, inverse: tf.Tensor, upstream: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradient of x in its dtype; float32 [rows, size], whose column sums are the gradient of gamma."""
    upstream = tf.cast(upstream, tf.float32)
    normalized = (tf.cast(x, tf.float32) - mean) * inverse
    weighted = upstream * normalized
    mean_of = gamma[:, tf.newaxis] / x.shape[1]  # of g and of g * normalized, where g = upstream * gamma
    gradient = upstream * gamma - tf.matmul(upstream, mean_of) - normalized * tf.matmul(weighted, mean_of)
    return tf.cast(inverse * gradient, x.dtype), weighted
