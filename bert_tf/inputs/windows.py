"""Long sequences as overlapping windows, none of them cut (google-research/bert, run_squad.py)."""

import tensorflow as tf


def windows(lengths, budget, stride):
    """Where the windows of some sequences begin and end.

    The first begins at 0, each next one `stride` further on, and the last is the first that reaches the end. A sequence
    that fits, or is empty, is one window.

    Args:
        lengths: int64 [n].
        budget: int64 [n] or scalar, the most positions of a window, at least 1.
        stride: the same, at least 1 and at most `budget`.

    Returns:
        rows, starts, ends: int64 [windows], the sequence of each in order, its first position and the one past its
        last.
    """
    lengths, budget, stride = (tf.cast(value, tf.int64) for value in (lengths, budget, stride))
    counts = 1 + tf.maximum(lengths - budget + stride - 1, 0) // stride
    rows = tf.repeat(tf.range(tf.size(lengths, tf.int64)), counts)
    numbers = tf.range(tf.size(rows, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), rows)
    of_row = [tf.gather(tf.broadcast_to(value, tf.shape(lengths)), rows) for value in (lengths, budget, stride)]
    starts = numbers * of_row[2]
    return rows, starts, tf.minimum(starts + of_row[1], of_row[0])


def cut(ragged, rows, starts, ends):
    """The windows of a RaggedTensor [n, None]: RaggedTensor [windows, None]; arguments as `windows` returns."""
    first = tf.gather(tf.cast(ragged.row_starts(), tf.int64), rows)
    positions = tf.ragged.range(first + starts, first + ends)
    return positions.with_values(tf.gather(ragged.values, positions.values))


def most_context(rows, starts, ends):
    """Which window sees most of each position's surroundings, by run_squad.py's score.

    That is how much the window shows on the position's shorter side, plus a hundredth of the window's length.

    Args:
        rows, starts, ends: as `windows` returns.

    Returns:
        RaggedTensor bool [windows, None]: for each position of a window whether it is this one; true in exactly one of
        the windows that a position is in, of equals the first.
    """
    positions = tf.ragged.range(starts, ends)
    window = positions.value_rowids()
    begin, end = tf.gather(starts, window), tf.gather(ends, window)
    # In hundredths: a whole number has no rounding, which equal windows would differ by.
    score = 100 * tf.minimum(positions.values - begin, end - 1 - positions.values) + end - begin
    offsets = tf.cumsum(tf.math.unsorted_segment_max(ends, rows, _above(rows)), exclusive=True)
    token = tf.gather(offsets, tf.gather(rows, window)) + positions.values
    tokens = _above(token)
    best = tf.math.unsorted_segment_max(score, token, tokens)
    winners = tf.where(score == tf.gather(best, token), window, tf.int64.max)
    chosen = tf.math.unsorted_segment_min(winners, token, tokens)
    return positions.with_values(tf.gather(chosen, token) == window)


def _above(numbers):
    """The number after the largest of int64 [n]; 0 if there are none."""
    return tf.reduce_max(tf.concat([numbers, [-1]], 0)) + 1
