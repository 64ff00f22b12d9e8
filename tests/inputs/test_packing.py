"""Truncation against the reference's loop; packing and padding against expected values by hand."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.inputs.corpus.packed_rows import fill_rows, join_rows
from bert_tf.text.packing import dense_features, keep_some, length_steps, pack, truncate

CLS, SEP = 101, 102


def reference_truncate(first, second, budget):
    """_truncate_seq_pair of google-research/bert's run_classifier.py: one token at a time."""
    first, second = list(first), list(second)
    while len(first) + len(second) > budget:
        (first if len(first) > len(second) else second).pop()
    return first, second


@pytest.mark.parametrize("budget", [0, 1, 2, 5, 6, 13])
def test_pairs_are_truncated_as_in_the_reference(budget):
    pairs = [(range(1, a + 1), range(51, b + 51)) for a, b in itertools.product(range(10), repeat=2)]
    first, second = (tf.ragged.constant([list(pair[part]) for pair in pairs], tf.int32) for part in (0, 1))
    cut_first, cut_second, truncated = truncate(first, second, budget=budget)
    expected = [reference_truncate(*pair, budget) for pair in pairs]
    assert cut_first.to_list() == [one for one, _ in expected]
    assert cut_second.to_list() == [other for _, other in expected]
    assert truncated.numpy().tolist() == [len(a) + len(b) > budget for a, b in pairs]


@pytest.mark.parametrize("budget", [0, 1, 3, 9])
def test_single_texts_are_truncated_at_the_end(budget):
    rows = [list(range(length)) for length in range(8)]
    first, second, truncated = truncate(tf.ragged.constant(rows, tf.int32), budget=budget)
    assert first.to_list() == [row[:budget] for row in rows]
    assert second is None
    assert truncated.numpy().tolist() == [len(row) > budget for row in rows]


def test_keep_some_accepts_a_number_per_row():
    ragged = tf.ragged.constant([[1, 2, 3], [], [4], [5, 6]], tf.int32)
    assert keep_some(ragged, tf.constant([2, 1, 0, 5], tf.int64)).to_list() == [[1, 2], [], [], [5, 6]]


def test_a_single_text_is_packed_between_cls_and_sep():
    ids, types = pack(tf.ragged.constant([[7, 8], []], dtype=tf.int32), cls_id=CLS, sep_id=SEP)
    assert ids.to_list() == [[CLS, 7, 8, SEP], [CLS, SEP]]
    assert types.to_list() == [[0, 0, 0, 0], [0, 0]]
    assert ids.dtype == types.dtype == tf.int32


def test_the_token_types_of_a_packed_pair_change_after_the_first_sep():
    first = tf.ragged.constant([[7, 8], [], [9]], dtype=tf.int32)
    second = tf.ragged.constant([[5], [6], []], dtype=tf.int32)
    ids, types = pack(first, second, cls_id=CLS, sep_id=SEP)
    assert ids.to_list() == [[CLS, 7, 8, SEP, 5, SEP], [CLS, SEP, 6, SEP], [CLS, 9, SEP, SEP]]
    assert types.to_list() == [[0, 0, 0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    "options, width",
    [
        ({}, 5),
        ({"length_multiple": 9}, 9),
        ({"length_multiple": 4}, 8),
        ({"length_multiple": 5}, 5),
        ({"length_multiple": 8, "max_length": 6}, 6),
        ({"lengths": [4, 6, 8]}, 6),
        ({"lengths": [5, 8]}, 5),
        ({"lengths": [4, 8], "max_length": 6}, 6),
    ],
)
def test_padding_is_zero_in_all_three_features(options, width):
    rows = [[CLS, 7, 8, 9, SEP], [CLS, SEP]]
    types = [[0, 0, 0, 1, 1], [0, 0]]
    features = dense_features(tf.ragged.constant(rows), tf.ragged.constant(types), **options)

    def padded(values):
        return [[*row, *[0] * (width - len(row))] for row in values]

    assert features["input_word_ids"].numpy().tolist() == padded(rows)
    assert features["input_type_ids"].numpy().tolist() == padded(types)
    assert features["input_mask"].numpy().tolist() == padded([[1] * 5, [1] * 2])
    assert {feature.dtype for feature in features.values()} == {tf.int32}


def test_a_real_token_with_id_0_is_not_padding():
    features = dense_features(tf.ragged.constant([[0, 0], [1]]), tf.ragged.constant([[0, 0], [0]]), length_multiple=3)
    np.testing.assert_array_equal(features["input_mask"], [[1, 1, 0], [1, 0, 0]])


def test_a_batch_without_rows_still_has_a_first_column():
    empty = tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int32), [0])
    features = dense_features(*pack(empty, cls_id=CLS, sep_id=SEP), length_multiple=8)
    assert {tuple(feature.shape) for feature in features.values()} == {(0, 8)}


def filled(lengths, predictions=None, seed=1, max_length=32, max_predictions=100):
    """The result of `fill_rows` as a list of rows, each a list of sequences."""
    predictions = [1] * len(lengths) if predictions is None else predictions
    needs = tf.constant(lengths, tf.int32), tf.constant(predictions, tf.int32)
    order, counts = fill_rows(*needs, [seed, 2], max_length=max_length, max_predictions=max_predictions)
    return tf.RaggedTensor.from_row_lengths(order, counts).to_list()


def reference_first_fit(lengths, predictions, max_length, max_predictions):
    """First-fit decreasing, one sequence after the other."""
    rows = []
    for sequence in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        for row in rows:
            together = [*row, sequence]
            fits = sum(lengths[k] for k in together) <= max_length
            if fits and sum(predictions[k] for k in together) <= max_predictions:
                row.append(sequence)
                break
        else:
            rows.append([sequence])
    return rows


@pytest.mark.parametrize("shortest, max_predictions", [(5, 100), (5, 6), (20, 100)])
def test_rows_equal_those_of_first_fit_in_another_order(shortest, max_predictions):
    random = np.random.default_rng(0)
    lengths = random.integers(shortest, 33, 300).tolist()
    predictions = [max(1, round(0.15 * length)) for length in lengths]
    expected = reference_first_fit(lengths, predictions, 32, max_predictions)
    rows = filled(lengths, predictions, max_predictions=max_predictions)
    assert sorted(rows) == sorted(expected)
    assert rows != expected


def test_the_seed_determines_the_order_of_rows():
    lengths = np.random.default_rng(0).integers(5, 33, 50).tolist()
    assert filled(lengths) == filled(lengths) != filled(lengths, seed=2)


@pytest.mark.parametrize("lengths", [[], [7], [32], [32, 32], [16, 16], [16, 16, 16]])
def test_a_few_sequences_are_packed_too(lengths):
    assert sorted(map(len, filled(lengths))) == sorted(map(len, reference_first_fit(lengths, lengths, 32, 100)))


def test_sequences_are_joined_with_their_numbers_positions_masks_and_labels():
    sequences = {
        "input_word_ids": [[CLS, 7, SEP, 8, SEP, 0], [CLS, 5, 6, SEP, 9, SEP], [CLS, 4, SEP, 3, SEP, 0]],
        "input_type_ids": [[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]],
        "masked_lm_positions": [[1, 0], [1, 4], [3, 0]],
        "masked_lm_ids": [[77, 0], [55, 99], [33, 0]],
        "next_sentence_labels": [1, 0, 1],
    }
    sequences = {name: tf.constant(value, tf.int32) for name, value in sequences.items()}
    sequences["masked_lm_weights"] = tf.constant([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    rows = join_rows(sequences, [5, 6, 5], [2, 1], max_length=13, max_predictions=4, max_pairs=2)
    expected = {
        "input_word_ids": [
            [CLS, 7, SEP, 8, SEP, CLS, 5, 6, SEP, 9, SEP, 0, 0],
            [CLS, 4, SEP, 3, SEP, 0, 0, 0, 0, 0, 0, 0, 0],
        ],
        "input_mask": [[1] * 5 + [2] * 6 + [0] * 2, [1] * 5 + [0] * 8],
        "input_type_ids": [[0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1] + [0] * 8],
        "masked_lm_positions": [[1, 6, 9, 0], [3, 0, 0, 0]],
        "masked_lm_ids": [[77, 55, 99, 0], [33, 0, 0, 0]],
        "masked_lm_weights": [[1, 1, 1, 0], [1, 0, 0, 0]],
        "next_sentence_labels": [[1, 0], [1, 0]],
        "next_sentence_weights": [[1, 1], [1, 0]],
        "first_token_positions": [[0, 5], [0, 0]],
    }
    assert {name: value.numpy().tolist() for name, value in rows.items()} == expected


def test_sequences_without_labels_are_joined_without():
    sequences = {name: tf.constant([[CLS, 7, SEP]]) for name in ("input_word_ids", "input_type_ids")}
    sequences |= {name: tf.constant([[1]]) for name in ("masked_lm_positions", "masked_lm_ids")}
    limits = {"max_length": 8, "max_predictions": 1, "max_pairs": 1}
    rows = join_rows(sequences | {"masked_lm_weights": tf.ones([1, 1])}, [3], [1], **limits)
    assert rows.keys() == {*sequences, "input_mask", "masked_lm_weights"}


def test_few_lengths_waste_at_most_a_third():
    assert length_steps(128) == [16, 24, 32, 48, 64, 96, 128]
    assert length_steps(100) == [16, 24, 32, 48, 64, 96, 100]
    assert length_steps(10) == [10]
    steps = length_steps(512)
    assert all(longer <= 1.5 * shorter for shorter, longer in itertools.pairwise(steps))


@pytest.mark.parametrize("most, expected", [(10, 10), (16, 16), (40, 16)])
def test_rows_are_padded_to_one_of_few_lengths_also_if_there_is_only_one(most, expected):
    ids = tf.ragged.constant([[CLS, 7, SEP], [CLS, SEP]], dtype=tf.int32)
    dense = dense_features(ids, 0 * ids, lengths=length_steps(most), max_length=most)
    assert dense["input_word_ids"].shape == [2, expected]
