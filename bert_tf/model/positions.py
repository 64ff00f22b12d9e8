"""Layers on the positions of a row: which of them attend to each other, their numbers, and states at some of them."""

import keras
import tensorflow as tf

# Added to attention scores at padding, as in google-research/bert. float16 can represent it; minus infinity would turn
# an all-padding row into NaN.
MASKED_SCORE = -10000.0


@keras.saving.register_keras_serializable("bert_tf")
class AttentionBias(keras.layers.Layer):
    """input_mask [batch, length] -> float32 [batch, 1, 1, length]: 0 at tokens, a large negative number at padding."""

    def call(self, mask: tf.Tensor) -> tf.Tensor:
        bias = (1.0 - tf.cast(mask, tf.float32)) * MASKED_SCORE
        return tf.expand_dims(tf.expand_dims(bias, 1), 1)  # LiteRT has no slices with new axes


@keras.saving.register_keras_serializable("bert_tf")
class CausalAttentionBias(keras.layers.Layer):
    """input_mask [batch, length] -> float32 [batch, 1, length, length]: 0 where a token may attend to another, a large
    negative number elsewhere.

    Tokens attend to themselves and the tokens before them. Padding follows all tokens, so none attends to it.
    """

    def call(self, mask: tf.Tensor) -> tf.Tensor:
        length = tf.shape(mask)[1]
        visible = tf.linalg.band_part(tf.ones([length, length]), -1, 0)
        return tf.tile(((1.0 - visible) * MASKED_SCORE)[tf.newaxis, tf.newaxis], [tf.shape(mask)[0], 1, 1, 1])


@keras.saving.register_keras_serializable("bert_tf")
class PackedAttentionBias(keras.layers.Layer):
    """Restricts the attention of each token in a packed row to its own sequence.

    input_mask int32 [batch, length], the number of each token's sequence and 0 at padding, -> float32
    [batch, 1, length, length]: 0 where query and key belong to the same sequence, a large negative number elsewhere.
    """

    def call(self, mask: tf.Tensor) -> tf.Tensor:
        return tf.where(_same_sequence(mask), 0.0, MASKED_SCORE)[:, tf.newaxis]


@keras.saving.register_keras_serializable("bert_tf")
class LastToken(keras.layers.Layer):
    """States [batch, length, hidden] and input_mask [batch, length] -> [batch, hidden]: the state of the last token."""

    def call(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        last = tf.maximum(tf.reduce_sum(tf.cast(mask > 0, tf.int32), -1) - 1, 0)
        return tf.gather(states, last, batch_dims=1)


@keras.saving.register_keras_serializable("bert_tf")
class MeanOfTokens(keras.layers.Layer):
    """States [batch, length, hidden] and input_mask [batch, length] -> float32 [batch, hidden]: the mean of tokens."""

    def call(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        is_token = tf.cast(mask > 0, tf.float32)[..., tf.newaxis]
        return tf.reduce_sum(tf.cast(states, tf.float32) * is_token, 1) / tf.reduce_sum(is_token, 1)

    def compute_output_spec(self, states: keras.KerasTensor, mask: keras.KerasTensor) -> keras.KerasTensor:
        return keras.KerasTensor((states.shape[0], states.shape[-1]), "float32")


@keras.saving.register_keras_serializable("bert_tf")
class Positions(keras.layers.Layer):
    """input_mask [batch, length] -> int32 [1, length]: the index of each position. Padding follows the tokens."""

    def call(self, mask: tf.Tensor) -> tf.Tensor:
        return tf.expand_dims(tf.range(tf.shape(mask)[1]), 0)


@keras.saving.register_keras_serializable("bert_tf")
class PackedPositions(keras.layers.Layer):
    """input_mask as for `PackedAttentionBias` -> int32 [batch, length]: each token's position in its own sequence."""

    def call(self, mask: tf.Tensor) -> tf.Tensor:
        # Counts the tokens of the same sequence up to this one: no loop and no cumulative maximum, which XLA lacks.
        upto = tf.linalg.band_part(tf.cast(_same_sequence(mask), tf.int32), -1, 0)  # [batch, length, length]
        return tf.reduce_sum(upto, axis=-1) - 1


def _same_sequence(mask: tf.Tensor) -> tf.Tensor:
    return mask[:, :, tf.newaxis] == mask[:, tf.newaxis, :]


@keras.saving.register_keras_serializable("bert_tf")
class TokensAt(keras.layers.Layer):
    """States [batch, length, hidden] at positions int32 [batch, n] -> [batch, n, hidden]."""

    def call(self, states: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        return tf.gather(states, positions, batch_dims=1)


def rotated(x: tf.Tensor, positions: tf.Tensor, base: float, heads: int = 1) -> tf.Tensor:
    """Queries or keys, rotated by their positions (Su et al., 2021, section 3.2), in the order of GPT-NeoX.

    Columns i and i + size / 2 of a head are a point, which is rotated by position / base^(2i / size), in float32.

    Args:
        x: [batch, heads, length, size].
        positions: int32 [batch or 1, length].
        base: of the wavelengths.
        heads: the dimension of the heads: 2 for [batch, length, heads, size].
    """
    half = x.shape[-1] // 2
    frequencies = tf.constant([base ** (-index / half) for index in range(half)], tf.float32)
    angles = tf.expand_dims(tf.cast(positions, tf.float32)[:, :, tf.newaxis] * frequencies, heads)
    first, second = tf.split(tf.cast(x, tf.float32), 2, -1)
    cosine, sine = tf.cos(angles), tf.sin(angles)
    return tf.cast(tf.concat([first * cosine - second * sine, second * cosine + first * sine], -1), x.dtype)
