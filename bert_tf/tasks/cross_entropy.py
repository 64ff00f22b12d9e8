"""Cross-entropy over many classes, such as the words of a vocabulary."""

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from bert_tf.model.mode import current

# What tf.custom_gradient expects: the values and the function from their upstream gradients to the gradients.
_WithGradient: TypeAlias = tuple[tuple[tf.Tensor, tf.Tensor], Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, None]]]


@tf.custom_gradient
def sparse_cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> _WithGradient:
    """-log softmax(logits)[label], as tf.nn.sparse_softmax_cross_entropy_with_logits, and the best class.

    Built on TensorFlow's softmax, which is faster than its kernel for this: 1280 x 30522 with gradient take 62 instead
    of 160 ms of a processor.

    Args:
        logits: float32 [..., classes].
        labels: int32 [...], below `classes`.

    Returns:
        (float32 [...], int32 [...]): the losses, and the class with the highest logit.
    """
    classes = tf.shape(logits)[-1]
    rows, flat = tf.reshape(logits, [-1, classes]), tf.reshape(labels, [-1])
    probabilities = tf.nn.softmax(rows)
    best = tf.argmax(rows, -1, tf.int32)
    # The highest probability is at least 1 / classes, so its logarithm is exact; another one may round to 0.
    loss = _at(rows, best) - _at(rows, flat) - tf.math.log(_at(probabilities, best))
    gradient_of = _compiled_gradient if current().fuses(rows) else _gradient

    def backward(upstream: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, None]:
        gradient = gradient_of(probabilities, flat, tf.reshape(upstream, [-1]))
        return tf.reshape(gradient, tf.shape(logits)), None

    return (tf.reshape(loss, tf.shape(labels)), tf.reshape(best, tf.shape(labels))), backward


def _at(values: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """The value in the given column of each row: [rows, columns], int32 [rows] -> [rows]."""
    return tf.gather(values, columns, batch_dims=1)


def _gradient(probabilities: tf.Tensor, labels: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """float32 [rows, classes]: (probabilities - one-hot labels) * upstream, from [rows, classes], [rows] and [rows]."""
    indices = tf.stack([tf.range(tf.size(labels)), labels], 1)
    return tf.tensor_scatter_nd_sub(probabilities * upstream[:, tf.newaxis], indices, upstream)


@tf.function(autograph=False, jit_compile=True)
def _compiled_gradient(probabilities: tf.Tensor, labels: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """As `_gradient`, in one pass over memory."""
    expected = tf.range(tf.shape(probabilities)[1]) == labels[:, tf.newaxis]
    return (probabilities - tf.cast(expected, tf.float32)) * upstream[:, tf.newaxis]
