"""Windows over long sequences, and the window in which a position has most context."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.inputs.windows import cut, most_context, windows


def listed(*values):
    return [value.numpy().tolist() for value in values]


def by_the_loop(length, budget, stride):
    """(start, end) of each window, as in the loop of run_squad.py ("doc_spans"); one empty window of an empty text."""
    spans, start = [], 0
    while start < length or not spans:
        end = min(start + budget, length)
        spans.append((start, end))
        if end == length:
            break
        start += min(end - start, stride)
    return spans


def best_by_the_loop(spans, position):
    """The window of maximum context, as in run_squad.py: min(left, right) + 0.01 * length, the first on a tie."""
    best, chosen = None, None
    for number, (start, end) in enumerate(spans):
        if start <= position < end:
            score = min(position - start, end - 1 - position) + 0.01 * (end - start)
            if best is None or score > best + 1e-9:
                best, chosen = score, number
    return chosen


def test_windows_of_three_sequences_by_hand():
    rows, starts, ends = listed(*windows([7, 0, 3], 4, 2))
    assert rows == [0, 0, 0, 1, 2]
    assert starts == [0, 2, 4, 0, 0]
    assert ends == [4, 6, 7, 0, 3]


def test_budget_and_stride_may_differ_per_sequence():
    rows, starts, ends = listed(*windows([5, 5], [5, 2], [1, 2]))
    assert (rows, starts, ends) == ([0, 1, 1, 1], [0, 0, 2, 4], [5, 2, 4, 5])


def test_a_position_belongs_to_the_window_with_most_context_on_its_shorter_side():
    # 0 1 2 3 | 2 3 4 5 | 4 5 6: position 2 has one on its shorter side in the first window and none in the second.
    # Position 3 has nothing on its right in the first and one on its left in the second.
    chosen = most_context(*windows([7, 0], 4, 2))
    assert chosen.to_list() == [[True, True, True, False], [False, True, True, False], [False, True, True], []]


def test_a_window_has_the_values_at_its_positions():
    values = tf.ragged.constant([[0, 1, 2, 3, 4, 5, 6], [], [7, 8, 9]])
    assert cut(values, *windows(values.row_lengths(), 4, 2)).to_list() == [
        [0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6], [], [7, 8, 9]
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_windows_and_their_context_follow_the_original_rules(seed):
    rng = np.random.default_rng(seed)
    lengths, budgets = rng.integers(0, 400, 30), rng.integers(1, 150, 30)
    strides = rng.integers(1, budgets + 1)
    rows, starts, ends = found = windows(lengths, budgets, strides)
    spans = [by_the_loop(*row) for row in zip(lengths, budgets, strides, strict=True)]
    assert list(zip(*listed(*found), strict=True)) == [(row, *span) for row, some in enumerate(spans) for span in some]
    expected = []
    for some in spans:
        best = [best_by_the_loop(some, position) for position in range(some[-1][1])]
        expected += [[best[position] == number for position in range(*span)] for number, span in enumerate(some)]
    assert most_context(rows, starts, ends).to_list() == expected


def test_no_sequences_have_no_windows():
    found = windows(tf.zeros([0], tf.int64), 4, 2)
    assert listed(*found) == [[], [], []]
    assert most_context(*found).to_list() == []
