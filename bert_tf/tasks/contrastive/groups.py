"""What objectives of sentence encoders read: the vectors of the texts of a batch, and what is known of the texts."""

from typing import NamedTuple

import tensorflow as tf

from bert_tf.model.sentence_vectors import unit


class Groups(NamedTuple):
    """The texts of a batch: a row for each example, with its texts in their order.

    Attributes:
        vectors: float32 [rows, texts, size].
        text_ids: int64 [rows, texts], equal for equal texts; -1 where an example has fewer texts.
        labels: float32 [rows, ...], what the objective reads.
        dots: whether similarities are dot products instead of cosines.
    """

    vectors: tf.Tensor
    text_ids: tf.Tensor
    labels: tf.Tensor
    dots: bool = False

    @property
    def compared(self) -> tf.Tensor:
        """float32 [rows, texts, size]: vectors whose dot products are the similarities."""
        return self.vectors if self.dots else unit(self.vectors)

    @property
    def present(self) -> tf.Tensor:
        """bool [rows, texts]: whether there is a text."""
        return self.text_ids >= 0

    @property
    def firsts(self) -> tf.Tensor:
        """float32 [rows, size], the vectors of the first texts."""
        return self.vectors[:, 0]

    def cosines(self) -> tf.Tensor:
        """float32 [rows]: of the first two texts of each row."""
        return tf.reduce_sum(unit(self.vectors[:, 0]) * unit(self.vectors[:, 1]), -1)

    def products(self) -> tf.Tensor:
        """float32 [rows, texts - 1]: of the first text of each row with the others."""
        return tf.einsum("rs,rts->rt", self.vectors[:, 0], self.vectors[:, 1:])


def mean_where(values: tf.Tensor, counted: tf.Tensor) -> tf.Tensor:
    """Mean of the values that count, float32 scalar; 0 if none does."""
    weights = tf.cast(counted, tf.float32)
    return tf.math.divide_no_nan(tf.reduce_sum(tf.where(counted, values, 0.0)), tf.reduce_sum(weights))
