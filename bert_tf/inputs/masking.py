"""Dynamic masking for masked-language-model pre-training (BERT, section 3.1, task 1)."""

from typing import NamedTuple

import tensorflow as tf

_LARGEST_INT32 = 2**31 - 1


class Masked(NamedTuple):
    """What `mask_tokens` returns: the model's input and what it has to predict."""

    input_ids: tf.Tensor
    positions: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


def mask_tokens(token_ids, maskable, seed, *, lengths, mask_id, vocab_size, rate=0.15, max_predictions=20):
    """Hides tokens for the model to predict; a new choice for every seed.

    A row of n tokens gets min(max_predictions, max(1, round(rate * n))) predictions, fewer where it has fewer maskable
    tokens. Of these, 80% become [MASK], 10% stay and 10% become a random id, each drawn by itself, as
    google-research/bert's create_training_data.py does. Only integers are drawn and compared, so that the same seed
    hides the same tokens on every device, compiled by XLA or not.

    Args:
        token_ids: int32 [batch, length].
        maskable: bool [batch, length], False at [CLS], [SEP] and padding.
        seed: int32 [2], stateless: the same seed always hides the same tokens.
        lengths: int32 [batch], tokens in each row, [CLS] and [SEP] counted, padding not.
        mask_id: id of [MASK].
        vocab_size: random replacements are drawn from all of [0, vocab_size), as the reference does.
        rate: share of each sequence, specials counted, that is hidden.
        max_predictions: hidden tokens a sequence, at most.

    Returns:
        Masked: input_ids int32 [batch, length]; positions (ascending), labels int32 and weights float32, each
        [batch, max_predictions]. Weight 1.0 marks a prediction; unused places hold position 0, label 0, weight 0.0.
    """
    batch, length = tf.unstack(tf.shape(token_ids))
    where_seed, what_seed = tf.unstack(tf.random.split(seed, 2))

    # The highest scores are a uniform draw without replacement: one top_k instead of a shuffle per row.
    scores = tf.where(maskable, _draw([batch, length], where_seed), -1)
    # Rows narrower than max_predictions are widened, because top_k takes no more than there is.
    scores = tf.pad(scores, [[0, 0], [0, tf.maximum(max_predictions - length, 0)]], constant_values=-1)
    top_scores, top_positions = tf.math.top_k(scores, k=max_predictions)  # [batch, max_predictions]
    # float64 and rounding half to even: the same count as Python's round() of the reference, for every length.
    counts = tf.cast(tf.round(tf.cast(lengths, tf.float64) * rate), tf.int32)
    counts = tf.clip_by_value(counts, 1, max_predictions)
    chosen = (tf.range(max_predictions) < counts[:, tf.newaxis]) & (top_scores >= 0)
    positions = tf.sort(tf.where(chosen, top_positions, _LARGEST_INT32), axis=-1)
    chosen = positions < _LARGEST_INT32
    positions = tf.where(chosen, positions, 0)

    labels = tf.where(chosen, tf.gather(token_ids, positions, batch_dims=1), 0)
    kind_draw, id_draw = tf.unstack(_draw([2, batch, max_predictions], what_seed))
    kind = kind_draw % 10  # 0 to 7: [MASK], 8: unchanged, 9: random
    replacements = tf.where(kind < 8, mask_id, tf.where(kind == 8, labels, id_draw % vocab_size))
    # Added as differences, so that the unused places, which all point to position 0, change nothing there.
    differences = tf.where(chosen, replacements - labels, 0)
    rows = tf.broadcast_to(tf.range(batch)[:, tf.newaxis], tf.shape(positions))
    input_ids = tf.tensor_scatter_nd_add(token_ids, tf.stack([rows, positions], axis=-1), differences)

    prediction_shape = [token_ids.shape[0], max_predictions]
    return Masked(
        input_ids=tf.ensure_shape(input_ids, token_ids.shape),
        positions=tf.ensure_shape(positions, prediction_shape),
        labels=tf.ensure_shape(labels, prediction_shape),
        weights=tf.ensure_shape(tf.cast(chosen, tf.float32), prediction_shape),
    )


def _draw(shape, seed):
    """Uniform int32 in [0, 2**31); Philox by name, because the default generator differs between devices."""
    bits = tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.int32, alg="philox")
    return tf.bitwise.bitwise_and(bits, _LARGEST_INT32)
