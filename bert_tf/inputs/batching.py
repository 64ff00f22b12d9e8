"""Batches of examples of similar length, and an endless stream of epochs that can be resumed at any batch."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import tensorflow as tf

from bert_tf.types import Tensors

_Item = TypeVar("_Item")


def batch_by_length(
    pools: tf.data.Dataset, batch_size: int, *, length_key: str = "input_word_ids", seed: tf.Tensor | None = None
) -> tf.data.Dataset:
    """Sorts each pool of examples by length and cuts it into batches, to keep padding low.

    Args:
        pools: Dataset of feature dicts; the first dimension of every tensor, dense or ragged, is the pool's size. With
            a pool size that is a multiple of `batch_size` (32 batches are plenty) only the very last batch is partial.
        batch_size: examples per batch.
        length_key: the ragged feature to sort by; if an example has several lists, its longest one counts.
        seed: int64 [2], shuffles the batches within each pool; None keeps them in order of length (evaluation).

    Returns:
        Dataset of feature dicts; ragged features stay ragged.
    """

    def sort(number: tf.Tensor, pool: Tensors) -> tuple[Tensors, tf.Tensor]:
        order = tf.argsort(longest(pool[length_key]), stable=True)
        if seed is not None:
            # The shortest examples, too few to fill a batch, go to the end; the full batches are shuffled.
            rest, full = tf.split(order, [tf.size(order) % batch_size, -1])
            blocks = tf.reshape(full, [-1, batch_size])
            blocks = tf.random.experimental.stateless_shuffle(
                blocks, tf.random.experimental.stateless_fold_in(seed, number)
            )
            order = tf.concat([tf.reshape(blocks, [-1]), rest], 0)
        return pool, order

    def cut(pool: Tensors, order: tf.Tensor) -> tf.data.Dataset:
        def batch(start: tf.Tensor) -> Tensors:
            rows = order[start : start + batch_size]
            return {name: tf.gather(value, rows) for name, value in pool.items()}

        # unbatch() and batch() would give the same, but take every row apart.
        return tf.data.Dataset.range(0, tf.size(order, tf.int64), batch_size).map(batch)

    return pools.enumerate().map(sort, num_parallel_calls=tf.data.AUTOTUNE).flat_map(cut)


def longest(ragged: tf.RaggedTensor) -> tf.Tensor:
    """Length of each row of a RaggedTensor [n, None], or of the longest list in each row of [n, None, None].

    Returns:
        int64 [n].
    """
    lengths = ragged.row_lengths(axis=ragged.ragged_rank)
    return tf.reduce_max(lengths, axis=1) if isinstance(lengths, tf.RaggedTensor) else lengths


@tf.autograph.experimental.do_not_convert
def stream(epoch_batches: Callable[[tf.Tensor], tf.data.Dataset], start: tuple[int, int] = (0, 0)) -> tf.data.Dataset:
    """Endless stream of all epochs, one after the other, from any position.

    The state of its iterator can be saved and restored (tf.train.Checkpoint). A restored iterator continues from the
    saved state, even if it was created with a different `start`.

    Args:
        epoch_batches: function from the epoch, an int64 scalar tensor, to a Dataset of feature dicts. It must return
            the same batches every time it is called with the same epoch.
        start: (epoch, batches of this epoch already used); the used batches are read again and skipped.

    Returns:
        Dataset of (features, position); position is int64 [2], the `start` that resumes after this batch.
    """

    def used(epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return epoch, tf.where(epoch == start[0], tf.constant(start[1], tf.int64), 0)

    def one_epoch(epoch: tf.Tensor, done: tf.Tensor) -> tf.data.Dataset:
        # `done` is a dataset element, not a constant, so that a saved iterator state includes its own value.
        batches = epoch_batches(epoch).enumerate().skip(done)
        return batches.map(lambda number, features: (features, tf.stack([epoch, number + 1])))

    epochs = tf.data.Dataset.range(start[0], tf.int64.max).map(used)
    return epochs.flat_map(one_epoch).prefetch(tf.data.AUTOTUNE).with_options(without_tuning())


def without_tuning() -> tf.data.Options:
    """Options of a Dataset that uses all processors from its start, and computes what was written.

    Without them, a thread tunes the parallelism, and the graph of each iterator is rewritten first, which takes 0.1
    seconds and makes nothing faster here.

    One in fifteen iterators would wait for that thread when it is deleted, idle for as long as it was used, up to a
    minute: the thread does not notice that it was cancelled if it looks too early.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


def microbatch(features: Tensors, index: int | tf.Tensor, num_microbatches: int) -> Tensors:
    """One of `num_microbatches` equal parts of a batch; a last, partial batch is split as evenly as possible.

    The content of a batch does not depend on the number of parts, so a run on eight replicas sees the same examples as
    a run on one replica.

    Args:
        features: tensors with the same first dimension.
        index: from 0 to num_microbatches - 1.
        num_microbatches: replicas times micro-batches per replica.

    Returns:
        The same features; their first dimensions are static where those of `features` are.
    """

    def rows(value: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        count = value.shape[0] if value.shape[0] is not None else tf.shape(value, out_type=tf.int64)[0]
        return value[index * count // num_microbatches : (index + 1) * count // num_microbatches]

    return {name: rows(value) for name, value in features.items()}


def in_chunks(items: Iterable[_Item], count: int, size: int, length: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Splits any stream into lists of at most `count` consecutive items and `size` in total.

    Args:
        items: one list of them is in memory at a time.
        count: at least 1.
        size: limit of the sum of the items' lengths; a longer item is a list of its own.
        length: function from an item to its length.
    """
    chunk: list[_Item] = []
    total = 0
    for item in items:
        added = length(item)
        if chunk and (len(chunk) == count or total + added > size):
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += added
    if chunk:
        yield chunk
