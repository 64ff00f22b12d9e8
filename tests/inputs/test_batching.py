"""Batches of similar length, and the stream that can be cut into pieces and resumed anywhere."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.inputs.batching import batch_by_length, stream


def pools(lengths, size):
    """Pools of `size` examples: example i has its number in `row` and lengths[i] tokens."""
    lengths = np.array(lengths)

    def make(rows):
        ids = tf.RaggedTensor.from_row_lengths(tf.repeat(rows, tf.gather(lengths, rows)), tf.gather(lengths, rows))
        return {"row": rows, "input_word_ids": ids}

    return tf.data.Dataset.range(len(lengths)).batch(size).map(make)


def rows_of(dataset):
    return [batch["row"].numpy().tolist() for batch in dataset]


@pytest.mark.parametrize("seed", [None, (1, 2)])
@pytest.mark.parametrize("count, batch_size, pool", [(100, 8, 32), (96, 8, 32), (7, 8, 32), (1, 1, 4), (50, 7, 21)])
def test_every_example_comes_once_with_its_own_tokens(count, batch_size, pool, seed):
    lengths = np.random.default_rng(0).integers(1, 60, count)
    seed = seed and tf.constant(seed, tf.int64)
    batches = list(batch_by_length(pools(lengths, pool), batch_size, seed=seed))
    rows = [row for batch in batches for row in batch["row"].numpy().tolist()]
    assert sorted(rows) == list(range(count))
    tokens = [ids for batch in batches for ids in batch["input_word_ids"].to_list()]
    assert tokens == [[row] * lengths[row] for row in rows]
    sizes = [len(batch["row"]) for batch in batches]
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
    assert sizes[-1] == (count % batch_size or batch_size)


@pytest.mark.parametrize("seed", [None, (1, 2)])
def test_little_of_a_batch_is_padding(seed):
    lengths = np.random.default_rng(0).integers(4, 129, 4096)

    def padding(batches):
        padded = sum(lengths[batch].max() * len(batch) for batch in batches)
        return 1 - lengths.sum() / padded

    seed = seed and tf.constant(seed, tf.int64)
    sorted_batches = rows_of(batch_by_length(pools(lengths, 1024), 32, seed=seed))
    assert padding(np.arange(4096).reshape(-1, 32)) > 0.4
    assert padding(sorted_batches) < 0.05


def test_the_seed_decides_the_order_of_the_batches():
    lengths = np.random.default_rng(0).integers(1, 60, 512)

    def order(seed):
        return rows_of(batch_by_length(pools(lengths, 256), 8, seed=tf.constant(seed, tf.int64)))

    assert order([1, 2]) == order([1, 2])
    assert order([1, 2]) != order([1, 3])
    # The same batches, in another order.
    assert sorted(map(sorted, order([1, 2]))) == sorted(map(sorted, order([1, 3])))
    # The batches of each pool are in an order of their own, not of their length.
    means = np.array([lengths[batch].mean() for batch in order([1, 2])]).reshape(2, -1)
    ranks = means.argsort(1).argsort(1)
    assert (ranks[0] != ranks[1]).any()
    assert all(np.abs(np.corrcoef(rank, np.arange(32))[0, 1]) < 0.6 for rank in ranks)


def test_without_a_seed_batches_are_in_order_of_length():
    lengths = np.random.default_rng(0).integers(1, 60, 256)
    longest = [lengths[batch].max() for batch in rows_of(batch_by_length(pools(lengths, 256), 8))]
    assert longest == sorted(longest)


EPOCH = 5  # batches
SIZES = (8, 8, 8, 8, 5)  # the last one is partial


def epoch_batches(epoch):
    """Epoch e's example i is 100 e + i; each also has a ragged feature of i % 3 values."""
    rows = tf.data.Dataset.range(sum(SIZES)).batch(8)

    def make(numbers):
        ids = tf.RaggedTensor.from_row_lengths(tf.repeat(numbers, numbers % 3), numbers % 3)
        return {"row": numbers + 100 * epoch, "ids": ids}

    return rows.map(make)


def take(count, start=(0, 0), **options):
    """(rows, position) of the first `count` elements."""
    elements = stream(epoch_batches, start, **options).take(count)
    return [(element["row"].numpy().tolist(), tuple(element["position"].numpy())) for element in elements]


def expected_batch(number):
    epoch, index = divmod(number, EPOCH)
    return [100 * epoch + 8 * index + i for i in range(SIZES[index])]


def test_epochs_follow_one_another_for_ever():
    got = take(12)
    assert [rows for rows, _ in got] == [expected_batch(number) for number in range(12)]
    assert [position for _, position in got] == [(n // EPOCH, n % EPOCH + 1) for n in range(12)]


@pytest.mark.parametrize("pieces, workers", [(1, 1), (2, 1), (4, 1), (4, 2), (4, 4), (8, 2), (3, 1), (6, 3)])
def test_the_batches_are_the_same_however_many_pieces_and_workers_share_them(pieces, workers):
    batches, share = 7, pieces // workers
    parts = [take(batches * share, pieces=pieces, worker=(index, workers)) for index in range(workers)]
    for number in range(batches):
        mine = [part[number * share : (number + 1) * share] for part in parts]
        rows = [row for part in mine for piece, _ in part for row in piece]
        assert rows == expected_batch(number)
        assert {position for part in mine for _, position in part} == {(number // EPOCH, number % EPOCH + 1)}
        sizes = [len(piece) for part in mine for piece, _ in part]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("pieces", [1, 4])
def test_the_stream_goes_on_from_any_position(pieces):
    whole = take(12 * pieces, pieces=pieces)
    for done in (1, 4, 5, 6, 10):  # inside an epoch, at its end, and in the next ones
        _, position = whole[done * pieces - 1]
        rest = take((12 - done) * pieces, tuple(map(int, position)), pieces=pieces)
        assert rest == whole[done * pieces :]


def test_ragged_features_are_cut_with_the_rest():
    elements = list(stream(epoch_batches, pieces=4).take(20))
    for element in elements:
        numbers = element["row"].numpy() % 100
        assert element["ids"].to_list() == [[n] * (n % 3) for n in numbers]
