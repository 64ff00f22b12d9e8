"""Packing of one or two segments into BERT's input: [CLS] first [SEP] second [SEP] (paper, figure 2)."""

from collections.abc import Sequence

import tensorflow as tf


def pack(
    first: tf.RaggedTensor, second: tf.RaggedTensor | None = None, *, cls_id: int, sep_id: int, separators: int = 1
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Joins segments with the special tokens.

    Args:
        first, second: RaggedTensors int32 [batch, None]; `second` is None for single texts.
        cls_id, sep_id: ids of [CLS] and [SEP].
        separators: number of [SEP] between the segments.

    Returns:
        ids, type_ids: RaggedTensors int32 [batch, None]; types are 0 up to the first [SEP] and 1 after it, all 0 if
        there are several.
    """
    zeros, dtype = tf.zeros_like(first.row_starts()), first.row_splits.dtype

    def token(position: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return zeros + position, zeros + position + 1

    def segment(of: tf.RaggedTensor, start: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return of.row_starts() + start, of.row_limits() + start

    # Rows are ranges of a table of all tokens, taken by one gather: each concatenation of ragged tensors has its own.
    table, parts, splits = [[cls_id, sep_id], first.values], [token(0), segment(first, 2), token(1)], first.row_splits
    second_start = 2 + tf.size(first.values, dtype)
    if second is not None:
        last = second_start + tf.size(second.values, dtype)  # a [SEP] after the second segments, for its type
        table += [second.values, [sep_id]]
        parts += [token(1)] * (separators - 1) + [segment(second, second_start), token(last)]
        splits += second.row_splits
    specials = len(parts) - (1 if second is None else 2)
    splits += specials * tf.range(tf.size(splits, dtype))
    starts, limits = (tf.reshape(tf.stack(bounds, axis=1), [-1]) for bounds in zip(*parts, strict=True))
    positions = tf.ragged.range(starts, limits, row_splits_dtype=dtype).values
    ids = tf.RaggedTensor.from_row_splits(tf.gather(tf.concat(table, axis=0), positions), splits, validate=False)
    if second is None or separators > 1:
        return ids, tf.zeros_like(ids)
    return ids, ids.with_values(tf.cast(positions >= second_start, tf.int32))


def truncate(
    first: tf.RaggedTensor,
    second: tf.RaggedTensor | None = None,
    *,
    budget: int | tf.Tensor,
    keep: str = "head",
) -> tuple[tf.RaggedTensor, tf.RaggedTensor | None, tf.Tensor]:
    """Truncates texts or pairs of texts to at most `budget` tokens.

    The longer text loses one token at a time until the pair fits, the second text if both are equally long, as in
    google-research/bert's run_classifier.py; here in closed form.

    Args:
        first, second: RaggedTensors int32 [batch, None]; `second` is None for single texts.
        budget: maximum number of tokens in both texts together, without special tokens.
        keep: the part to keep of a text that is cut: "head", "tail", or "head_tail", half of each.

    Returns:
        first, second: the truncated texts; `second` is None if it was None.
        truncated: bool [batch], True for the rows that lost tokens.
    """
    lengths = first.row_lengths()
    budget = tf.cast(budget, lengths.dtype)
    if second is None:
        return keep_some(first, tf.minimum(lengths, budget), keep), None, lengths > budget
    others = second.row_lengths()
    kept = tf.where(
        lengths + others > budget, tf.minimum(lengths, tf.maximum(budget - others, (budget + 1) // 2)), lengths
    )
    first, second = keep_some(first, kept, keep), keep_some(second, tf.minimum(others, budget - kept), keep)
    return first, second, lengths + others > budget


def keep_some(ragged: tf.RaggedTensor, counts: tf.Tensor, keep: str = "head") -> tf.RaggedTensor:
    """Keeps `counts` (int [batch]) values of each row of a RaggedTensor [batch, None]; `keep` as for `truncate`."""
    lengths = ragged.row_lengths()
    counts = tf.minimum(tf.cast(counts, lengths.dtype), lengths)
    head = {"head": counts, "tail": tf.zeros_like(counts), "head_tail": (counts + 1) // 2}[keep]
    # On flat values: comparing RaggedTensors takes ten times as long to trace.
    position, rows = tf.ragged.range(lengths).values, ragged.value_rowids()
    head, lost = tf.gather(head, rows), tf.gather(lengths - counts, rows)
    kept = (position < head) | (position >= head + lost)
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(ragged.values, kept), counts, validate=False)


def length_steps(max_length: int) -> list[int]:
    """Powers of two and the means of neighbours, from 16 up to `max_length`, the last one.

    For batches that are compiled for each length: 7 programs up to 128 tokens, 11 up to 512. All are multiples of 8,
    as the matrix units of GPUs need.
    """
    steps = [length for power in range(4, 32) for length in (2**power, 3 * 2 ** (power - 1)) if length < max_length]
    return [*steps, max_length]


def dense_features(
    ids: tf.RaggedTensor,
    type_ids: tf.RaggedTensor,
    *,
    length_multiple: int = 1,
    lengths: Sequence[int] = (),
    max_length: int | None = None,
) -> dict[str, tf.Tensor]:
    """Pads packed rows to the encoder's inputs, by default to the longest row of the batch.

    Args:
        ids, type_ids: RaggedTensors int32 [batch, None], or [batch, None, None] if an example has several rows.
        length_multiple: rounds the length of the longest row up to a multiple of this, for fewer distinct shapes.
        lengths: rounds it up to the next of these instead, ascending.
        max_length: upper limit of the rounding.

    Returns:
        input_word_ids, input_mask and input_type_ids, each int32 [batch, length], or [batch, rows, length] with the
        largest number of rows.
    """
    # At least 1: a model reads the first token even if the batch has no rows.
    longest = tf.maximum(tf.cast(ids.bounding_shape(axis=ids.ragged_rank), tf.int32), 1)
    if lengths:
        length = tf.gather(lengths, tf.searchsorted(tf.constant(lengths[:-1], tf.int32), [longest])[0])
    else:
        length = -(-longest // length_multiple) * length_multiple
    if max_length is not None:
        length = tf.minimum(length, max_length)
    mask = tf.ones_like(ids)
    shape = tf.stack([-1] * ids.ragged_rank + [length])  # -1: the largest number of rows in the batch
    return {
        name: ragged.to_tensor(shape=shape)
        for name, ragged in (("input_word_ids", ids), ("input_mask", mask), ("input_type_ids", type_ids))
    }
