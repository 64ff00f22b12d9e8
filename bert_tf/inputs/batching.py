"""Batches of examples of similar length, and an endless stream of epochs that can be resumed at any batch."""

import functools
from collections.abc import Callable

import tensorflow as tf

from bert_tf.quiet import traced_function
from bert_tf.text.packing import dense_features, length_steps
from bert_tf.types import Tensors, TfFunction

# Batches whose examples are sorted by length together: more would mean less padding, but a less random order.
_POOL = 32
# Lengths are rounded up to a multiple of this: matrix kernels are faster, and compiled ones see fewer shapes.
_LENGTH_MULTIPLE = 4


def batch_by_length(
    pools: tf.data.Dataset,
    batch_size: int,
    *,
    length_key: str = "input_word_ids",
    seed: tf.Tensor | None = None,
    mixed: bool = False,
) -> tf.data.Dataset:
    """Sorts each pool of examples by length and cuts it into batches, to keep padding low.

    Args:
        pools: Dataset of feature dicts; the first dimension of every tensor, dense or ragged, is the pool's size. With
            a pool size that is a multiple of `batch_size` (32 batches are plenty) only the very last batch is partial.
        batch_size: examples per batch.
        length_key: the ragged feature to sort by; if an example has several lists, its longest one counts.
        seed: int64 [2], shuffles the batches within each pool; None keeps them in order of length (evaluation).
        mixed: with a seed, other examples share a batch each time, of lengths that differ by up to half, and the
            batches of a pool are about equally large: for losses about whole batches.

    Returns:
        Dataset of feature dicts; ragged features stay ragged.
    """

    def sort(number: tf.Tensor, pool: Tensors) -> tuple[Tensors, tf.Tensor, tf.Tensor]:
        lengths = longest(pool[length_key])
        count = tf.size(lengths, tf.int64)
        bounds = tf.minimum(tf.range(0, count + batch_size, batch_size, tf.int64), count)
        if seed is not None and mixed:
            own = tf.random.experimental.stateless_fold_in(seed, number)
            factors = tf.random.stateless_uniform([count], own, 1.0, 1.5)
            order = tf.argsort(tf.cast(lengths, tf.float32) * factors, stable=True)
            parts = -(-count // batch_size)
            blocks = tf.RaggedTensor.from_row_splits(order, tf.range(parts + 1) * count // parts)
            blocks = tf.gather(blocks, tf.random.experimental.stateless_shuffle(tf.range(parts), own))
            return pool, blocks.values, blocks.row_splits
        order = tf.argsort(lengths, stable=True)
        if seed is not None:
            # The shortest examples, too few to fill a batch, go to the end; the full batches are shuffled.
            rest, full = tf.split(order, [tf.size(order) % batch_size, -1])
            blocks = tf.reshape(full, [-1, batch_size])
            blocks = tf.random.experimental.stateless_shuffle(
                blocks, tf.random.experimental.stateless_fold_in(seed, number)
            )
            order = tf.concat([tf.reshape(blocks, [-1]), rest], 0)
        return pool, order, bounds

    def cut(pool: Tensors, order: tf.Tensor, bounds: tf.Tensor) -> tf.data.Dataset:
        def batch(number: tf.Tensor) -> Tensors:
            rows = order[bounds[number] : bounds[number + 1]]
            return {name: tf.gather(value, rows) for name, value in pool.items()}

        # unbatch() and batch() would give the same, but take every row apart.
        return tf.data.Dataset.range(tf.size(bounds, tf.int64) - 1).map(batch)

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


class Rows:
    """Makes batches of rows.

    Args:
        preprocess: makes rows of features from columns, in graph code, as `tasks.codec.Codec.preprocess`.
        pad: pads rows for the model, as `tasks.codec.Codec.pad`.
        windows: whether an example can be several rows.
    """

    def __init__(self, preprocess: Callable[[Tensors], Tensors], pad: Callable[..., Tensors], *, windows: bool) -> None:
        self._preprocess, self._pad, self._windows = preprocess, pad, windows

    @tf.autograph.experimental.do_not_convert
    def batches(
        self,
        columns: Tensors,
        batch_size: int,
        *,
        seed: tf.Tensor | None = None,
        few_lengths: bool = False,
        mixed: bool = False,
    ) -> tf.data.Dataset:
        """Batches of rows of similar length, each row once.

        Args:
            columns: of the examples, [examples, ...] each.
            batch_size: rows per batch.
            seed: int64 [2], shuffles the rows; None keeps them near their original position (evaluation).
            few_lengths: pads to one of few lengths, for programs compiled for each.
            mixed: as for `batch_by_length`.

        Returns:
            Dataset of padded features; `window` int64 [rows] numbers the rows of each example from 0.
        """
        if seed is None and not self._windows and _count(columns) <= batch_size:
            return tf.data.Dataset.from_tensors(self._single_batch(columns))  # a pipeline takes a second to set up
        pools = self._pools(columns, batch_size, seed)
        if self._windows:  # more rows than examples: each pool would end with a partial batch
            pools = pools.unbatch().ragged_batch(batch_size * _POOL)
        pad = functools.partial(self._pad, few_lengths=few_lengths)
        return batch_by_length(pools, batch_size, seed=seed, mixed=mixed).map(pad, num_parallel_calls=tf.data.AUTOTUNE)

    @tf.autograph.experimental.do_not_convert
    def count(self, columns: Tensors) -> int:
        """Number of rows of features of all examples."""
        if not self._windows:
            return _count(columns)
        pools = self._pools(columns, 32, None).map(lambda features: tf.size(features["row"], tf.int64))
        return int(pools.reduce(tf.constant(0, tf.int64), lambda total, rows: total + rows))

    @functools.cached_property
    def _traced_preprocess(self) -> TfFunction:
        """`preprocess`, traced only once for the many datasets of a long prediction: tracing takes seconds."""
        return traced_function(self._preprocess)

    @functools.cached_property
    def _single_batch(self) -> TfFunction:
        """Function from columns to one batch, as `batches` makes it."""
        return traced_function(lambda columns: self._pad(_numbered(self._preprocess(columns))), reduce_retracing=True)

    def _pools(self, columns: Tensors, batch_size: int, seed: tf.Tensor | None) -> tf.data.Dataset:
        """Pools of rows of features, shuffled if there is a seed."""
        # A traced function counts as stateful, and then the position in the training data could not be saved.
        preprocess = self._traced_preprocess if seed is None else self._preprocess
        order = tf.range(_count(columns), dtype=tf.int64)
        if seed is not None:
            order = tf.random.experimental.stateless_shuffle(order, seed)

        def encode(examples: tf.Tensor) -> Tensors:
            features = _numbered(preprocess({name: tf.gather(value, examples) for name, value in columns.items()}))
            features |= {"row": tf.gather(examples, features["row"])}
            if seed is None or not self._windows:
                return features
            # Otherwise the windows of a text would share a batch. No other pool begins with this example.
            of_pool = tf.random.experimental.stateless_fold_in(seed, examples[0])
            shuffled = tf.random.experimental.stateless_shuffle(tf.range(tf.size(features["row"])), of_pool)
            return {name: tf.gather(value, shuffled) for name, value in features.items()}

        pools = tf.data.Dataset.from_tensor_slices(order).batch(batch_size * _POOL)
        return pools.map(encode, num_parallel_calls=tf.data.AUTOTUNE)


def padded_rows(features: Tensors, max_length: int, *, few_lengths: bool = False) -> Tensors:
    """Pads rows of ragged features for a model: dense tensors [rows, length].

    Args:
        features: input_word_ids and input_type_ids, ragged int32 [rows, None], and others.
        max_length: tokens per row.
        few_lengths: as for `Rows.batches`.
    """
    features = dict(features)
    ids, types = features.pop("input_word_ids"), features.pop("input_type_ids")
    lengths = length_steps(max_length) if few_lengths else ()
    dense = dense_features(ids, types, length_multiple=_LENGTH_MULTIPLE, lengths=lengths, max_length=max_length)
    shape = tf.stack([-1, tf.shape(dense["input_word_ids"])[1]])
    for name, value in features.items():
        dense[name] = value.to_tensor(shape=shape) if isinstance(value, tf.RaggedTensor) else value
    return dense


def _numbered(features: Tensors) -> Tensors:
    """Adds `window`, int64 [rows]: the number of each row within its example."""
    rows = features["row"]
    return features | {"window": tf.range(tf.size(rows, tf.int64)) - tf.searchsorted(rows, rows, out_type=tf.int64)}


def _count(columns: Tensors) -> int:
    """Number of examples."""
    return int(next(iter(columns.values())).shape[0])
