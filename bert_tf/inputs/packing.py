"""From token ids of one or two texts to BERT's input: [CLS] first [SEP] second [SEP] (paper, figure 2)."""

import tensorflow as tf


def pack(first, second=None, *, cls_id, sep_id):
    """Joins segments with the special tokens.

    Args:
        first: RaggedTensor int32 [batch, None].
        second: the same, or None for single texts.
        cls_id: id of [CLS].
        sep_id: id of [SEP].

    Returns:
        ids, type_ids: RaggedTensors int32 [batch, None]; types are 0 up to the first [SEP] and 1 after it.
    """
    batch = first.nrows(out_type=tf.int32)
    cls = tf.RaggedTensor.from_tensor(tf.fill([batch, 1], cls_id), row_splits_dtype=first.row_splits.dtype)
    sep = tf.RaggedTensor.from_tensor(tf.fill([batch, 1], sep_id), row_splits_dtype=first.row_splits.dtype)
    opening = tf.concat([cls, first, sep], axis=1)
    if second is None:
        return opening, tf.zeros_like(opening)
    closing = tf.concat([second, sep], axis=1)
    return tf.concat([opening, closing], axis=1), tf.concat([tf.zeros_like(opening), tf.ones_like(closing)], axis=1)


def truncate(first, second=None, *, budget):
    """Cuts the ends off so that both texts together have at most `budget` tokens.

    The longer text gives tokens up one at a time until the pair fits, on a tie the second, as google-research/bert's
    run_classifier.py does; here in closed form.

    Args:
        first: RaggedTensor int32 [batch, None].
        second: the same, or None.
        budget: tokens left when the special tokens are counted off.

    Returns:
        first, second (None if it was None), truncated, and bool [batch]: which rows lost tokens.
    """
    lengths = first.row_lengths()
    budget = tf.cast(budget, lengths.dtype)
    if second is None:
        return first[:, :budget], None, lengths > budget
    others = second.row_lengths()
    kept = tf.where(
        lengths + others > budget, tf.minimum(lengths, tf.maximum(budget - others, (budget + 1) // 2)), lengths
    )
    return keep_first(first, kept), keep_first(second, tf.minimum(others, budget - kept)), lengths + others > budget


def keep_first(ragged, counts):
    """The first `counts` (int [batch]) values of each row of a RaggedTensor [batch, None]."""
    position = tf.ragged.range(ragged.row_lengths()).with_row_splits_dtype(counts.dtype)
    return tf.ragged.boolean_mask(ragged, position < tf.expand_dims(counts, 1))


def dense_features(ids, type_ids, *, length=None, length_multiple=1, max_length=None):
    """Pads packed rows into the encoder's inputs.

    Args:
        ids, type_ids: RaggedTensors int32 [batch, None].
        length: pad every row to this many tokens; None for the longest row of the batch.
        length_multiple: without `length`, round the longest row up to a multiple of this: fewer distinct shapes.
        max_length: without `length`, never round up beyond this.

    Returns:
        dict of int32 [batch, length]: input_word_ids, input_mask, input_type_ids.
    """
    if length is None:
        # At least 1: a model looks at the first token, also of a batch without rows.
        longest = tf.maximum(tf.cast(ids.bounding_shape(axis=1), tf.int32), 1)
        length = -(-longest // length_multiple) * length_multiple
        if max_length is not None:
            length = tf.minimum(length, max_length)
    mask = tf.ones_like(ids)
    # -1: as many rows as there are; a list keeps a length that is known a part of the static shape.
    shape = [None, length] if isinstance(length, int) else tf.stack([-1, length])
    return {
        name: ragged.to_tensor(shape=shape)
        for name, ragged in (("input_word_ids", ids), ("input_mask", mask), ("input_type_ids", type_ids))
    }
