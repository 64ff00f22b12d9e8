"""Cross-entropy over many classes, such as the words of a vocabulary."""

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

# What tf.custom_gradient expects: the value and the function from the upstream gradient to the gradients.
_WithGradient: TypeAlias = tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None]]]


@tf.custom_gradient
def sparse_cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> _WithGradient:
    """-log softmax(logits)[label], as tf.nn.sparse_softmax_cross_entropy_with_logits.

    Built on TensorFlow's softmax, which is faster than its kernel for this: 1280 x 30522 with gradient take 62 instead
    of 160 ms of a processor.

    Args:
        logits: float32 [..., classes].
        labels: int32 [...], below `classes`.

    Returns:
        float32 [...].
    """
    classes = tf.shape(logits)[-1]
    rows, flat = tf.reshape(logits, [-1, classes]), tf.reshape(labels, [-1])
    probabilities = tf.nn.softmax(rows)
    best = tf.argmax(rows, -1, tf.int32)
    # The highest probability is at least 1 / classes, so its logarithm is exact; another one may round to 0.
    loss = _at(rows, best) - _at(rows, flat) - tf.math.log(_at(probabilities, best))

    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        upstream = tf.reshape(upstream, [-1])
        indices = tf.stack([tf.range(tf.size(flat)), flat], 1)
        gradient = tf.tensor_scatter_nd_sub(probabilities * upstream[:, tf.newaxis], indices, upstream)
        return tf.reshape(gradient, tf.shape(logits)), None

    return tf.reshape(loss, tf.shape(labels)), backward


def _at(values: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """The value in the given column of each row: [rows, columns], int32 [rows] -> [rows]."""
    return tf.gather(values, columns, batch_dims=1)
