"""Overlapping windows over sequences that are too long for the model (google-research/bert, run_squad.py)."""

import tensorflow as tf


def windows(
    lengths: tf.Tensor, budget: tf.Tensor | int, stride: tf.Tensor | int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes where the windows of each sequence begin and end.

    The first window begins at 0, each following one `stride` positions later; the last window is the first that reaches
    the end of the sequence. A sequence that fits, or is empty, is one window.

    Args:
        lengths: int64 [n].
        budget: int64 [n] or scalar, the maximum length of a window, at least 1.
        stride: int64 [n] or scalar, at least 1 and at most `budget`.

    Returns:
        rows, starts, ends: int64 [windows]. Window w covers the positions starts[w] to ends[w] - 1 of sequence rows[w];
        rows ascend.
    """
    lengths, budget, stride = (tf.cast(value, tf.int64) for value in (lengths, budget, stride))
    counts = 1 + tf.maximum(lengths - budget + stride - 1, 0) // stride
    rows = tf.repeat(tf.range(tf.size(lengths, tf.int64)), counts)
    numbers = tf.range(tf.size(rows, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), rows)
    row_lengths, row_budgets, row_strides = (
        tf.gather(tf.broadcast_to(value, tf.shape(lengths)), rows) for value in (lengths, budget, stride)
    )
    starts = numbers * row_strides
    return rows, starts, tf.minimum(starts + row_budgets, row_lengths)


def cut(ragged: tf.RaggedTensor, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.RaggedTensor:
    """Cuts a RaggedTensor [n, None] into windows, [windows, None]; `rows`, `starts`, `ends` are those of `windows`."""
    first = tf.gather(tf.cast(ragged.row_starts(), tf.int64), rows)
    positions = tf.ragged.range(first + starts, first + ends)
    return positions.with_values(tf.gather(ragged.values, positions.values))


def most_context(rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.RaggedTensor:
    """Finds for each position the window with the most context around it, by run_squad.py's score.

    The score is the context on the position's shorter side plus a hundredth of the window's length.

    Args:
        rows, starts, ends: as `windows` returns them.

    Returns:
        RaggedTensor bool [windows, None]: for each position of a window, whether this window is the one. Exactly one of
        the windows that contain a position has True; ties go to the first.
    """
    positions = tf.ragged.range(starts, ends)
    window = positions.value_rowids()
    begin, end = tf.gather(starts, window), tf.gather(ends, window)
    # In hundredths: integers have no rounding errors, which would break ties between equal windows.
    score = 100 * tf.minimum(positions.values - begin, end - 1 - positions.values) + end - begin
    offsets = tf.cumsum(tf.math.unsorted_segment_max(ends, rows, _above(rows)), exclusive=True)
    token = tf.gather(offsets, tf.gather(rows, window)) + positions.values
    tokens = _above(token)
    best = tf.math.unsorted_segment_max(score, token, tokens)
    winners = tf.where(score == tf.gather(best, token), window, tf.int64.max)
    chosen = tf.math.unsorted_segment_min(winners, token, tokens)
    return positions.with_values(tf.gather(chosen, token) == window)


def _above(numbers: tf.Tensor) -> tf.Tensor:
    """The largest of int64 [n] plus 1; 0 if there are none."""
    return tf.reduce_max(tf.concat([numbers, [-1]], 0)) + 1
