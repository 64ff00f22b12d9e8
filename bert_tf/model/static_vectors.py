"""Static vectors: a text's vector is the mean of fixed vectors of its pieces, without an encoder (model2vec)."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.text.base import rows_of
from bert_tf.types import Array


class StaticVectors(keras.Model):
    """A table of vectors of pieces.

    Args:
        table: float32, float16 or int8 [rows, size], kept in this format.
        rows: int32 [pieces], the row of each piece; -1 for a piece that does not count.
        weights: float32 [pieces], factors of the pieces' vectors; None for 1.
    """

    def __init__(self, table: Array, rows: Array, weights: Array | None = None, **kwargs: Any) -> None:
        super().__init__(name="static_vectors", dtype="float32", **kwargs)
        self.width: int = table.shape[1]
        self.table, self.rows = self._constant("table", table), self._constant("rows", rows)
        self.factors = None if weights is None else self._constant("weights", weights)
        self.built = True

    def _constant(self, name: str, values: Array) -> keras.Variable:
        # Without autocast: it would convert the whole table for each batch.
        made = self.add_weight(
            name=name, shape=values.shape, dtype=values.dtype.name, initializer="zeros", trainable=False, autocast=False
        )
        made.assign(values)
        return made

    def call(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Vectors of texts, not normalized.

        Args:
            ids: int32 [texts, None].

        Returns:
            float32 [texts, width]: the sum of the vectors of the pieces that count, divided by their number; 0 if there
            are none.
        """
        text, texts, row = rows_of(ids.row_splits), ids.nrows(), tf.gather(tf.convert_to_tensor(self.rows), ids.values)
        counts = row >= 0
        text, row = tf.boolean_mask(text, counts), tf.boolean_mask(row, counts)
        if self.factors is None and self.table.dtype == "float32":
            # Five times as fast as the general way, and without memory for the vectors of all pieces.
            return tf.sparse.segment_mean(tf.convert_to_tensor(self.table), row, text, num_segments=texts)
        vectors = tf.cast(tf.gather(tf.convert_to_tensor(self.table), row), tf.float32)
        if self.factors is not None:
            vectors *= tf.gather(tf.convert_to_tensor(self.factors), tf.boolean_mask(ids.values, counts))[:, tf.newaxis]
        return tf.math.unsorted_segment_mean(vectors, text, texts)


def piece_table(vectors: Array, size: int, coefficient: float) -> Array:
    """The table of a static model from an encoder's vectors of single pieces, as model2vec makes it.

    The principal components of the vectors, each row multiplied by the weight a / (a + p) of a word of the probability
    p (SIF: Arora et al., 2017), which Zipf's law gives the piece by its rank in the vocabulary.

    Args:
        vectors: float [pieces, width], the most frequent pieces first.
        size: number of components.
        coefficient: a, above 0 and below 1.

    Returns:
        float32 [pieces, size]; the value of each component with the largest magnitude is positive.
    """
    centered = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    _, directions = np.linalg.eigh(centered.T @ centered)  # in ascending order of the variance
    components = centered @ directions[:, ::-1][:, :size]
    largest = np.abs(components).argmax(0)
    components *= np.sign(components[largest, np.arange(size)])
    inverse = 1.0 / np.arange(2, len(vectors) + 2)
    weights = coefficient / (coefficient + inverse / inverse.sum())
    return (components * weights[:, np.newaxis]).astype(np.float32)
