"""Batches of similar length, and the stream that can be split into microbatches and resumed at any position."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.inputs.batching import batch_by_length, microbatch, stream


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
def test_every_example_occurs_once_with_its_own_tokens(count, batch_size, pool, seed):
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


def test_mixed_batches_have_other_examples_each_time_and_are_equally_large():
    lengths = np.random.default_rng(0).integers(20, 60, 33)

    def batches(seed):
        made = batch_by_length(pools(lengths, 1024), 16, seed=tf.constant(seed, tf.int64), mixed=True)
        return rows_of(made)

    first, again, other = batches((1, 2)), batches((1, 2)), batches((1, 3))
    assert first == again and sorted(map(len, first)) == sorted(map(len, other)) == [11, 11, 11]
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*other)) == list(range(33))
    assert not set(map(frozenset, first)) & set(map(frozenset, other))
    spread = np.mean([np.ptp(lengths[batch]) for batch in first])
    assert spread < 0.8 * np.ptp(lengths)  # lengths in a batch are still near each other


@pytest.mark.parametrize("seed", [None, (1, 2)])
def test_batches_have_little_padding(seed):
    lengths = np.random.default_rng(0).integers(4, 129, 4096)

    def padding(batches):
        padded = sum(lengths[batch].max() * len(batch) for batch in batches)
        return 1 - lengths.sum() / padded

    seed = seed and tf.constant(seed, tf.int64)
    sorted_batches = rows_of(batch_by_length(pools(lengths, 1024), 32, seed=seed))
    assert padding(np.arange(4096).reshape(-1, 32)) > 0.4
    assert padding(sorted_batches) < 0.05


def test_examples_of_several_rows_are_sorted_by_their_longest_row():
    lengths = [[9, 1], [2, 2, 2, 2], [1, 5], [7]]
    ids = tf.ragged.constant([[[0] * length for length in rows] for rows in lengths], ragged_rank=2)
    pool = tf.data.Dataset.from_tensors({"row": tf.range(4), "input_word_ids": ids})
    batches = list(batch_by_length(pool, 2))
    assert [batch["row"].numpy().tolist() for batch in batches] == [[1, 2], [3, 0]]
    seen = [[len(row) for row in rows] for batch in batches for rows in batch["input_word_ids"].to_list()]
    assert seen == [lengths[1], lengths[2], lengths[3], lengths[0]]


def test_the_seed_determines_the_order_of_the_batches():
    lengths = np.random.default_rng(0).integers(1, 60, 512)

    def order(seed):
        return rows_of(batch_by_length(pools(lengths, 256), 8, seed=tf.constant(seed, tf.int64)))

    first, again, other = map(order, ([1, 2], [1, 2], [1, 3]))
    assert first == again != other
    # The same batches, in another order.
    assert sorted(map(sorted, first)) == sorted(map(sorted, other))
    # The batches of each pool are shuffled, not sorted by length.
    means = np.array([lengths[batch].mean() for batch in first]).reshape(2, -1)
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
    """Example i of epoch e is 100 e + i; each also has a ragged feature of i % 3 values."""
    rows = tf.data.Dataset.range(sum(SIZES)).batch(8)

    def make(numbers):
        ids = tf.RaggedTensor.from_row_lengths(tf.repeat(numbers, numbers % 3), numbers % 3)
        return {"row": numbers + 100 * epoch, "ids": ids}

    return rows.map(make)


stream_from = functools.cache(functools.partial(stream, epoch_batches))


@functools.cache
def elements(count, start=(0, 0)):
    return list(stream_from(start).take(count))


def take(count, start=(0, 0)):
    """(rows, position) of the first `count` batches."""
    return [seen(element) for element in elements(count, start)]


def seen(element):
    features, position = element
    return features["row"].numpy().tolist(), tuple(position.numpy())


def expected_batch(number):
    epoch, index = divmod(number, EPOCH)
    return [100 * epoch + 8 * index + i for i in range(SIZES[index])]


def test_epochs_repeat_endlessly():
    got = take(12)
    assert [rows for rows, _ in got] == [expected_batch(number) for number in range(12)]
    assert [position for _, position in got] == [(n // EPOCH, n % EPOCH + 1) for n in range(12)]


@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 8])
def test_microbatches_make_up_the_batch_in_sizes_that_differ_by_one_at_most(pieces):
    for number, (features, _) in enumerate(elements(12)[:7]):
        parts = [microbatch(features, index, pieces) for index in range(pieces)]
        assert [row for part in parts for row in part["row"].numpy()] == expected_batch(number)
        sizes = [len(part["row"]) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        for part in parts:  # ragged features are split too
            assert part["ids"].to_list() == [[n] * (n % 3) for n in part["row"].numpy() % 100]


def test_microbatches_of_a_batch_of_static_size_have_a_static_size():
    batches = tf.data.Dataset.range(8).batch(8, drop_remainder=True).map(lambda row: {"row": row})
    parts = [batches.map(lambda features, index=index: microbatch(features, index, 4)) for index in range(4)]
    assert [part.element_spec["row"].shape[0] for part in parts] == [2, 2, 2, 2]


def test_the_stream_resumes_from_any_position():
    whole = take(12)
    for done in (1, 4, 5, 6, 10):  # inside an epoch, at its end, and in later ones
        _, position = whole[done - 1]
        assert take(12 - done, tuple(map(int, position))) == whole[done:]


@pytest.mark.parametrize(
    "start, done",
    [
        pytest.param((0, 0), 2, marks=pytest.mark.slow),
        ((0, 2), 1),
        pytest.param((0, 1), 6, marks=pytest.mark.slow),
        ((1, 1), 9),
    ],
)
def test_a_saved_state_resumes_at_its_position_whatever_the_start_of_the_iterator(tmp_path, start, done):
    def checkpoint(start):
        return tf.train.Checkpoint(iterator=iter(stream_from(start)))

    saved = checkpoint(start)
    passed = [seen(next(saved.iterator)) for _ in range(done)]
    path = saved.write(str(tmp_path / "state"))
    for other in ((0, 0), tuple(map(int, passed[-1][1]))):
        restored = checkpoint(other)
        restored.read(path).assert_consumed()
        going_on = [seen(next(restored.iterator)) for _ in range(8)]
        assert passed + going_on == take(done + 8, start)
