"""From token ids of one or two texts to BERT's input: [CLS] first [SEP] second [SEP] (paper, figure 2).

A row of several sequences has their numbers, 1, 2, 3, ... in `input_mask`, where a row of one sequence has 1, and
0 at padding in both: a model made with `packed=True` lets each token attend within its own number only.
"""

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


def truncate(first, second=None, *, budget, keep="head"):
    """Cuts so that both texts together have at most `budget` tokens.

    The longer text gives tokens up one at a time until the pair fits, on a tie the second, as google-research/bert's
    run_classifier.py does; here in closed form.

    Args:
        first: RaggedTensor int32 [batch, None].
        second: the same, or None.
        budget: tokens left when the special tokens are counted off.
        keep: "head" or "tail" of a text that is cut, or "head_tail", half of each.

    Returns:
        first, second (None if it was None), truncated, and bool [batch]: which rows lost tokens.
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


def keep_some(ragged, counts, keep="head"):
    """`counts` (int [batch]) values of each row of a RaggedTensor [batch, None]: `keep` as for `truncate`."""
    lengths = ragged.row_lengths()
    counts = tf.cast(counts, lengths.dtype)
    head = {"head": counts, "tail": tf.zeros_like(counts), "head_tail": (counts + 1) // 2}[keep]
    position = tf.ragged.range(lengths)
    lost = tf.expand_dims(lengths - counts, 1)
    head = tf.expand_dims(head, 1)
    return tf.ragged.boolean_mask(ragged, (position < head) | (position >= head + lost))


def dense_features(ids, type_ids, *, length=None, length_multiple=1, max_length=None):
    """Pads packed rows into the encoder's inputs.

    Args:
        ids, type_ids: RaggedTensors int32 [batch, None], or [batch, None, None] where an example is several rows.
        length: pad every row to this many tokens; None for the longest row of the batch.
        length_multiple: without `length`, round the longest row up to a multiple of this: fewer distinct shapes.
        max_length: without `length`, never round up beyond this.

    Returns:
        dict of int32 [batch, length], or [batch, most rows, length]: input_word_ids, input_mask, input_type_ids.
    """
    if length is None:
        # At least 1: a model looks at the first token, also of a batch without rows.
        longest = tf.maximum(tf.cast(ids.bounding_shape(axis=ids.ragged_rank), tf.int32), 1)
        length = -(-longest // length_multiple) * length_multiple
        if max_length is not None:
            length = tf.minimum(length, max_length)
    mask = tf.ones_like(ids)
    # -1: as many rows as there are; a list keeps a length that is known a part of the static shape.
    rank = ids.ragged_rank
    shape = [None] * rank + [length] if isinstance(length, int) else tf.stack([-1] * rank + [length])
    return {
        name: ragged.to_tensor(shape=shape)
        for name, ragged in (("input_word_ids", ids), ("input_mask", mask), ("input_type_ids", type_ids))
    }


def fill_rows(lengths, predictions, seed, *, max_length, max_predictions):
    """Which sequences share a row: first fit, longest first (Johnson, 1974), rows in random order.

    Args:
        lengths, predictions: int32 [n], tokens and masked tokens of each sequence, none above the limits.
        seed: integer [2], for the order of the rows.
        max_length, max_predictions: of a row.

    Returns:
        order: int32 [n], the sequences, those of a row next to each other.
        counts: int32 [rows], how many each row has, at least 1.
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    needs = tf.gather(tf.stack([lengths, predictions], axis=1), order)  # [n, 2]
    # Most text comes in sequences that even the shortest does not fit beside: they need no turn of the loop.
    alone = tf.reduce_sum(tf.cast(lengths > max_length - tf.reduce_min(lengths), tf.int32))
    shared = needs[alone:]
    count = tf.shape(shared)[0]

    def place(number, rooms, rows):
        row = tf.argmax(tf.reduce_all(rooms >= shared[number], axis=1), output_type=tf.int32)
        rooms = tf.tensor_scatter_nd_sub(rooms, [[row]], shared[number : number + 1])
        return number + 1, rooms, rows.write(number, row)

    rooms = tf.tile([[max_length, max_predictions]], [count, 1])
    rows = tf.TensorArray(tf.int32, size=count, element_shape=[])
    _, _, rows = tf.while_loop(
        lambda number, rooms, rows: number < count, place, (0, rooms, rows), parallel_iterations=1
    )
    rows = tf.concat([tf.range(alone), alone + rows.stack()], axis=0)
    shuffled = tf.argsort(tf.random.stateless_uniform(tf.shape(tf.math.bincount(rows)), seed))
    rows = tf.gather(shuffled, rows)
    return tf.gather(order, tf.argsort(rows, stable=True)), tf.math.bincount(rows)


def join_rows(features, lengths, counts, *, max_length, max_predictions):
    """Masked sequences -> the features of rows that hold several of them.

    Args:
        features: dict of sequences: input_word_ids, input_type_ids int32 [n, length]; masked_lm_positions,
            masked_lm_ids int32 and masked_lm_weights float32 [n, predictions], the weights 1.0 first; maybe
            next_sentence_labels int32 [n].
        lengths: int [n], tokens of each sequence.
        counts: int [rows], sequences of each row: they follow one another.
        max_length, max_predictions: of a row; no row has more.

    Returns:
        dict: input_word_ids, input_type_ids and input_mask (the sequence's number in the row, from 1; 0 at padding)
        int32 [rows, max_length]; masked_lm_positions (in the row), masked_lm_ids and masked_lm_weights
        [rows, max_predictions]; with labels next_sentence_labels, first_token_positions ([CLS] of each sequence) int32
        and next_sentence_weights float32 (1.0 where there is a sequence), each [rows, max_length // 5].
    """
    lengths, counts = tf.cast(lengths, tf.int64), tf.cast(counts, tf.int64)

    def rows(values, width):
        return tf.RaggedTensor.from_row_lengths(values, counts).to_tensor(shape=[None, width])

    def joined(values, counts_in_sequences, width):
        sequences = tf.RaggedTensor.from_tensor(values, lengths=counts_in_sequences)
        return tf.RaggedTensor.from_row_lengths(sequences, counts).merge_dims(1, 2).to_tensor(shape=[None, width])

    numbers = tf.cast(tf.ragged.range(1, counts + 1).values, tf.int32)  # [n], of each sequence in its row
    starts = tf.cumsum(lengths, exclusive=True)
    firsts = starts - tf.repeat(tf.gather(starts, tf.cumsum(counts, exclusive=True)), counts)
    firsts = tf.cast(firsts, tf.int32)  # [n], where in the row each sequence begins
    predictions = tf.cast(tf.reduce_sum(features["masked_lm_weights"], axis=1), tf.int64)
    length = tf.shape(features["input_word_ids"])[1]
    made = {
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
        # No pair is shorter than two tokens and three specials.
        most = max_length // 5
        made |= {
            "next_sentence_labels": rows(features["next_sentence_labels"], most),
            "next_sentence_weights": rows(tf.ones_like(firsts, tf.float32), most),
            "first_token_positions": rows(firsts, most),
        }
    return made
