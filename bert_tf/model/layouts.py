"""How the positions of a batch [batch, length] are the rows of a matrix, with or without the padding."""

import tensorflow as tf

# Numbers of rows are rounded up to one of 16 in each power of two, below 64 to multiples of 4: TensorFlow prepares a
# kernel for each number and keeps a limited number of kernels.
_POWERS = [2**power for power in range(6, 24)]


class AllPositions:
    """All positions, [batch * length, size].

    Args:
        shape: int32, batch and length first.
    """

    def __init__(self, shape: tf.Tensor) -> None:
        self.shape = shape

    def with_padding(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows of this layout -> [batch * length, size]."""
        return rows

    def without_padding(self, rows: tf.Tensor) -> tf.Tensor:
        """[batch * length, size] -> the rows of this layout."""
        return rows


class Tokens(AllPositions):
    """The tokens and the first position of each row, [rows, size]; all positions if there is hardly any padding.

    Padding that is added again has the values of the last token, or first position, before it in its row.

    Args:
        mask: int32 [batch, length], 0 at padding.
    """

    def __init__(self, mask: tf.Tensor) -> None:
        super().__init__(tf.shape(mask))
        # The first position in any case: else its values, which some heads read, would be those of another row.
        kept = tf.reshape(tf.concat([tf.ones_like(mask[:, :1]), mask[:, 1:]], 1), [-1]) > 0
        rows = tf.cast(tf.where(kept)[:, 0], tf.int32)
        count, powers = tf.size(rows), tf.constant(_POWERS)
        multiple = tf.reduce_max(tf.where(count >= powers, powers // 16, 4))
        rounded = -(-count // multiple) * multiple
        self._is_shorter = rounded * 16 < tf.size(kept) * 15
        self._rows = tf.pad(rows, [[0, rounded - count]])  # further rows repeat the first one
        self._places = tf.cumsum(tf.cast(kept, tf.int32)) - 1

    def with_padding(self, rows: tf.Tensor) -> tf.Tensor:
        return self._gathered(rows, self._places)

    def without_padding(self, rows: tf.Tensor) -> tf.Tensor:
        return self._gathered(rows, self._rows)

    def _gathered(self, rows: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        gathered = tf.cond(self._is_shorter, lambda: tf.gather(rows, indices), lambda: rows)
        return tf.ensure_shape(gathered, [None, rows.shape[-1]])
