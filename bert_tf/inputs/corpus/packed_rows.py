"""Rows of several sequences for pre-training.

In a row with one sequence, `input_mask` is 1 at its tokens. In a row with several sequences, it holds the number of
each token's sequence, 1, 2, 3, ..., and a model built with `packed=True` lets each token attend only to tokens with the
same number. Padding is 0 in both cases.
"""

import tensorflow as tf

from bert_tf.types import Tensors


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


def most_pairs(max_length: int, special_tokens: int) -> int:
    """The maximum number of pairs in a row; the shortest has two tokens besides its `special_tokens`."""
    return max_length // (2 + special_tokens)


def join_rows(
    features: Tensors,
    lengths: tf.Tensor,
    counts: tf.Tensor,
    *,
    max_length: int,
    max_predictions: int,
    max_pairs: int,
) -> dict[str, tf.Tensor]:
    """Joins masked sequences into rows of several sequences.

    Args:
        features: input_word_ids, input_type_ids int32 [n, length]; masked_lm_positions, masked_lm_ids int32 and
            masked_lm_weights float32 [n, predictions], the used slots first; optional next_sentence_labels int32 [n]
            and language_ids int32 [n, length].
        lengths: int [n], tokens of each sequence.
        counts: int [rows], number of consecutive sequences in each row.
        max_length, max_predictions, max_pairs: size of a row; no row may exceed it. Only labels need `max_pairs`.

    Returns:
        int32 [rows, max_length]: input_word_ids, input_type_ids and input_mask (the sequence's number in the row, from
        1; 0 at padding), and language_ids if `features` has them. [rows, max_predictions]: masked_lm_positions (in the
        row), masked_lm_ids, masked_lm_weights.
        With next_sentence_labels, [rows, max_pairs]: next_sentence_labels, first_token_positions (int32, the first
        token of each sequence) and next_sentence_weights (float32, 1.0 in used slots).
    """
    lengths, counts = tf.cast(lengths, tf.int64), tf.cast(counts, tf.int64)

    def rows(values: tf.Tensor, width: int) -> tf.Tensor:
        return tf.RaggedTensor.from_row_lengths(values, counts, validate=False).to_tensor(shape=[None, width])

    def joined(values: tf.Tensor, counts_in_sequences: tf.Tensor, width: int) -> tf.Tensor:
        sequences = tf.RaggedTensor.from_tensor(values, lengths=counts_in_sequences)
        rows_of_sequences = tf.RaggedTensor.from_row_lengths(sequences, counts, validate=False)
        return rows_of_sequences.merge_dims(1, 2).to_tensor(shape=[None, width])

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
    if "language_ids" in features:
        row_features["language_ids"] = joined(features["language_ids"], lengths, max_length)
    if "next_sentence_labels" in features:
        row_features |= {
            "next_sentence_labels": rows(features["next_sentence_labels"], max_pairs),
            "next_sentence_weights": rows(tf.ones_like(firsts, tf.float32), max_pairs),
            "first_token_positions": rows(firsts, max_pairs),
        }
    return row_features
