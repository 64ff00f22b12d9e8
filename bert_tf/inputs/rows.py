"""Batches of the rows of features that are made of examples in memory."""

import functools
from collections.abc import Callable

import tensorflow as tf

from bert_tf.inputs.batching import batch_by_length
from bert_tf.quiet import traced_function
from bert_tf.text.packing import dense_features, length_steps
from bert_tf.types import Tensors, TfFunction

# Batches whose examples are sorted by length together: more would mean less padding, but a less random order.
_POOL = 32
# Lengths are rounded up to a multiple of this: matrix kernels are faster, and compiled ones see fewer shapes.
_LENGTH_MULTIPLE = 4


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
        self, columns: Tensors, batch_size: int, *, seed: tf.Tensor | None = None, few_lengths: bool = False
    ) -> tf.data.Dataset:
        """Batches of rows of similar length, each row once.

        Args:
            columns: of the examples, [examples, ...] each.
            batch_size: rows per batch.
            seed: int64 [2], shuffles the rows; None keeps them near their original position (evaluation).
            few_lengths: pads to one of few lengths, for programs compiled for each.

        Returns:
            Dataset of padded features; `window` int64 [rows] numbers the rows of each example from 0.
        """
        if seed is None and not self._windows and _count(columns) <= batch_size:
            return tf.data.Dataset.from_tensors(self._single_batch(columns))  # a pipeline takes a second to set up
        pools = self._pools(columns, batch_size, seed)
        if self._windows:  # more rows than examples: each pool would end with a partial batch
            pools = pools.unbatch().ragged_batch(batch_size * _POOL)
        pad = functools.partial(self._pad, few_lengths=few_lengths)
        return batch_by_length(pools, batch_size, seed=seed).map(pad, num_parallel_calls=tf.data.AUTOTUNE)

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
