"""How the positions of a batch [batch, length] are arranged as the rows of a matrix, with or without the padding."""

import tensorflow as tf

# Numbers of tokens from each of these on are rounded up to a multiple of a sixteenth of it, smaller ones to one of 4:
# TensorFlow prepares a kernel for each number of rows and keeps a limited number of kernels.
_SIZES = [2**power for power in range(6, 24)]


class Padded:
    """All positions, [batch * length, size].

    Args:
        shape: int32 [2 or more], batch and length first.
    """

    def __init__(self, shape: tf.Tensor) -> None:
        self.shape = shape

    def with_padding(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows of this layout -> [batch * length, size]."""
        return rows

    def without_padding(self, rows: tf.Tensor) -> tf.Tensor:
        """[batch * length, size] -> the rows of this layout."""
        return rows


class Unpadded(Padded):
    """The tokens alone, [tokens, size], unless that leaves out less than a sixteenth.

    Args:
        mask: int32 [batch, length], 0 at padding. Positions of padding, of any place in a row, get the values of a
            token when padding is added again.
    """

    def __init__(self, mask: tf.Tensor) -> None:
        super().__init__(tf.shape(mask))
        is_token = tf.reshape(mask, [-1]) > 0
        positions = tf.size(is_token)
        tokens = tf.cast(tf.where(is_token)[:, 0], tf.int32)
        count = tf.maximum(tf.size(tokens), 1)
        sizes = tf.constant(_SIZES)
        multiple = tf.reduce_max(tf.where(count >= sizes, sizes // 16, 4))
        rounded = -(-count // multiple) * multiple
        self._is_shorter = rounded * 16 <= positions * 15
        self._tokens = tf.pad(tokens, [[0, tf.maximum(rounded - tf.size(tokens), 0)]])  # with the first position
        self._places = tf.maximum(tf.cumsum(tf.cast(is_token, tf.int32)) - 1, 0)  # that of the token before padding

    def with_padding(self, rows: tf.Tensor) -> tf.Tensor:
        return self._gathered(rows, self._places)

    def without_padding(self, rows: tf.Tensor) -> tf.Tensor:
        return self._gathered(rows, self._tokens)

    def _gathered(self, rows: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        gathered = tf.cond(self._is_shorter, lambda: tf.gather(rows, indices), lambda: rows)
        return tf.ensure_shape(gathered, [None, rows.shape[-1]])
