"""Packing of one or two segments into BERT's input: [CLS] first [SEP] second [SEP] (paper, figure 2).

In a row with one sequence, `input_mask` is 1 at its tokens. In a row with several sequences, it holds the number of
each token's sequence, 1, 2, 3, ..., and a model built with `packed=True` lets each token attend only to tokens with the
same number. Padding is 0 in both cases.
"""

import tensorflow as tf

from bert_tf.types import Tensors


def pack(
    first: tf.RaggedTensor, second: tf.RaggedTensor | None = None, *, cls_id: int, sep_id: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Joins segments with the special tokens.

    Args:
        first, second: RaggedTensors int32 [batch, None]; `second` is None for single texts.
        cls_id, sep_id: ids of [CLS] and [SEP].

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


def dense_features(
    ids: tf.RaggedTensor,
    type_ids: tf.RaggedTensor,
    *,
    length: int | None = None,
    length_multiple: int = 1,
    max_length: int | None = None,
) -> dict[str, tf.Tensor]:
    """Pads packed rows to the encoder's inputs.

    Args:
        ids, type_ids: RaggedTensors int32 [batch, None], or [batch, None, None] if an example has several rows.
        length: pads every row to this many tokens; None pads to the longest row of the batch.
        length_multiple: without `length`, rounds the longest row up to a multiple of this, for fewer distinct shapes.
        max_length: without `length`, upper limit of the rounding.

    Returns:
        input_word_ids, input_mask and input_type_ids, each int32 [batch, length], or [batch, rows, length] with the
        largest number of rows.
    """
    if length is None:
        # At least 1: a model reads the first token even if the batch has no rows.
        longest = tf.maximum(tf.cast(ids.bounding_shape(axis=ids.ragged_rank), tf.int32), 1)
        length = -(-longest // length_multiple) * length_multiple
        if max_length is not None:
            length = tf.minimum(length, max_length)
    mask = tf.ones_like(ids)
    # -1: the largest number of rows in the batch. A list keeps a known length in the static shape.
    rank = ids.ragged_rank
    shape = [None] * rank + [length] if isinstance(length, int) else tf.stack([-1] * rank + [length])
    return {
        name: ragged.to_tensor(shape=shape)
        for name, ragged in (("input_word_ids", ids), ("input_mask", mask), ("input_type_ids", type_ids))
    }


def fill_rows(
    lengths: tf.Tensor, predictions: tf.Tensor, seed: tf.Tensor, *, max_length: int, max_predictions: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Assigns sequences to rows by first-fit decreasing (Johnson, 1974); the rows come in random order.

    Args:
        lengths, predictions: int32 [n], tokens and masked tokens of each sequence, none above the limits.
        seed: integer [2], for the order of the rows.
        max_length, max_predictions: limits of a row.

    Returns:
        order: int32 [n], indices of the sequences, row after row.
        counts: int32 [rows], number of sequences in each row, at least 1.
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    needs = tf.gather(tf.stack([lengths, predictions], axis=1), order)  # [n, 2]
    # Most sequences are so long that not even the shortest one fits beside them; they skip the loop.
    alone = tf.reduce_sum(tf.cast(lengths > max_length - tf.reduce_min(lengths), tf.int32))
    shared = needs[alone:]
    count = tf.shape(shared)[0]

    def assign(
        number: tf.Tensor, rooms: tf.Tensor, rows: tf.TensorArray
    ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        row = tf.argmax(tf.reduce_all(rooms >= shared[number], axis=1), output_type=tf.int32)
        rooms = tf.tensor_scatter_nd_sub(rooms, [[row]], shared[number : number + 1])
        return number + 1, rooms, rows.write(number, row)

    rooms = tf.tile([[max_length, max_predictions]], [count, 1])
    rows = tf.TensorArray(tf.int32, size=count, element_shape=[])
    _, _, rows = tf.while_loop(
        lambda number, rooms, rows: number < count, assign, (0, rooms, rows), parallel_iterations=1
    )
    rows = tf.concat([tf.range(alone), alone + rows.stack()], axis=0)
    shuffled = tf.argsort(tf.random.stateless_uniform(tf.shape(tf.math.bincount(rows)), seed))
    rows = tf.gather(shuffled, rows)
    return tf.gather(order, tf.argsort(rows, stable=True)), tf.math.bincount(rows)


def join_rows(
    features: Tensors, lengths: tf.Tensor, counts: tf.Tensor, *, max_length: int, max_predictions: int
) -> dict[str, tf.Tensor]:
    """Joins masked sequences into rows of several sequences.

    Args:
        features: input_word_ids, input_type_ids int32 [n, length]; masked_lm_positions, masked_lm_ids int32 and
            masked_lm_weights float32 [n, predictions], the used slots first; optional next_sentence_labels int32 [n].
        lengths: int [n], tokens of each sequence.
        counts: int [rows], number of consecutive sequences in each row.
        max_length, max_predictions: size of a row; no row may exceed it.

    Returns:
        int32 [rows, max_length]: input_word_ids, input_type_ids and input_mask (the sequence's number in the row, from
        1; 0 at padding). [rows, max_predictions]: masked_lm_positions (in the row), masked_lm_ids, masked_lm_weights.
        With next_sentence_labels, [rows, max_length // 5]: next_sentence_labels, first_token_positions (int32, [CLS] of
        each sequence) and next_sentence_weights (float32, 1.0 in used slots).
    """
    lengths, counts = tf.cast(lengths, tf.int64), tf.cast(counts, tf.int64)

    def rows(values: tf.Tensor, width: int) -> tf.Tensor:
        return tf.RaggedTensor.from_row_lengths(values, counts).to_tensor(shape=[None, width])

    def joined(values: tf.Tensor, counts_in_sequences: tf.Tensor, width: int) -> tf.Tensor:
        sequences = tf.RaggedTensor.from_tensor(values, lengths=counts_in_sequences)
        return tf.RaggedTensor.from_row_lengths(sequences, counts).merge_dims(1, 2).to_tensor(shape=[None, width])

    numbers = tf.cast(tf.ragged.range(1, counts + 1).values, tf.int32)  # [n], number of each sequence in its row
    starts = tf.cumsum(lengths, exclusive=True)
    firsts = starts - tf.repeat(tf.gather(starts, tf.cumsum(counts, exclusive=True)), counts)
    firsts = tf.cast(firsts, tf.int32)  # [n], position in the row where each sequence begins
    predictions = tf.cast(tf.reduce_sum(features["masked_lm_weights"], axis=1), tf.int64)
    length = tf.shape(features["input_word_ids"])[1]
    row_features = {
        "input_word_ids": joined(features["input_word_ids"], lengths, max_length),
        "input_mask": joined(tf.tile(numbers[:, tf.newaxis], [1, length]), lengths, max_length),
        "input_type_ids": joined(features["input_type_ids"], lengths, max_length),
        "masked_lm_positions": joined(
            features["masked_lm_positions"] + firsts[:, tf.newaxis], predictions, max_predictions
        ),
        "masked_lm_ids": joined(features["masked_lm_ids"], predictions, max_predictions),
        "masked_lm_weights": joined(features["masked_lm_weights"], predictions, max_predictions),
    }
    if "next_sentence_labels" in features:
        # The shortest pair has two tokens and three special tokens.
        max_pairs = max_length // 5
        row_features |= {
            "next_sentence_labels": rows(features["next_sentence_labels"], max_pairs),
            "next_sentence_weights": rows(tf.ones_like(firsts, tf.float32), max_pairs),
            "first_token_positions": rows(firsts, max_pairs),
        }
    return row_features
