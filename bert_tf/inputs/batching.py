"""Examples of similar length into one batch, epochs into one endless stream that can be resumed anywhere."""

import tensorflow as tf


def batch_by_length(pools, batch_size, *, length_key="input_word_ids", seed=None):
    """Sorts each pool by length and cuts it into batches, so that little of a batch is padding.

    Args:
        pools: Dataset of dicts whose tensors have the pool's size as first dimension, RaggedTensors among them. Sizes
            that are multiples of `batch_size` (32 of them is plenty) leave only the very last batch partial.
        batch_size: examples a batch.
        length_key: the ragged feature that is sorted by; where each example has several lists, by its longest one.
        seed: int64 [2] to shuffle the batches of a pool, or None to keep them in order of length (evaluation).

    Returns:
        Dataset of dicts; what was ragged still is.
    """

    def sort(number, pool):
        order = tf.argsort(longest(pool[length_key]), stable=True)
        if seed is not None:
            # What does not fill a batch, the shortest, goes to the end; the full batches are shuffled.
            rest, full = tf.split(order, [tf.size(order) % batch_size, -1])
            blocks = tf.reshape(full, [-1, batch_size])
            blocks = tf.random.experimental.stateless_shuffle(
                blocks, tf.random.experimental.stateless_fold_in(seed, number)
            )
            order = tf.concat([tf.reshape(blocks, [-1]), rest], 0)
        return pool, order

    def cut(pool, order):
        def batch(start):
            rows = order[start : start + batch_size]
            return {name: tf.gather(value, rows) for name, value in pool.items()}

        # To unbatch and batch again would take each row apart, and gives the same.
        return tf.data.Dataset.range(0, tf.size(order, tf.int64), batch_size).map(batch)

    return pools.enumerate().map(sort, num_parallel_calls=tf.data.AUTOTUNE).flat_map(cut)


def longest(ragged):
    """int64 [n]: values of each row of a RaggedTensor [n, None], or of the longest list in each of [n, None, None]."""
    lengths = ragged.row_lengths(axis=ragged.ragged_rank)
    return tf.reduce_max(lengths, axis=1) if isinstance(lengths, tf.RaggedTensor) else lengths


def stream(epoch_batches, start=(0, 0)):
    """All epochs one after the other, for ever, from any point.

    The state of its iterator can be saved and restored (tf.train.Checkpoint), also into an iterator with another
    `start`: going on takes what it holds then, not what has been read before.

    Args:
        epoch_batches: function of an int64 scalar tensor, the epoch, to a Dataset of feature dicts. It must give the
            same batches each time it is asked for the same epoch.
        start: (epoch, batches of it already used); these are read again and passed over.

    Returns:
        Dataset of (features, position), the latter int64 [2]: the `start` that goes on after this batch.
    """

    def used(epoch):
        return epoch, tf.where(epoch == start[0], tf.constant(start[1], tf.int64), 0)

    def one_epoch(epoch, done):
        # `done` is an element and no constant, so that a saved state brings its own along.
        batches = epoch_batches(epoch).enumerate().skip(done)
        return batches.map(lambda number, features: (features, tf.stack([epoch, number + 1])))

    epochs = tf.data.Dataset.range(start[0], tf.int64.max).map(used)
    return epochs.flat_map(one_epoch).prefetch(tf.data.AUTOTUNE)


def microbatch(features, index, parts):
    """The rows of one of so many equal parts of a batch; a last, partial batch is cut as evenly as it goes.

    What a batch holds does not depend on how many parts it is cut into: so a run on eight replicas sees what a run on
    one replica saw.

    Args:
        features: dict of tensors with one first dimension.
        index: int, below `parts`.
        parts: int, replicas times micro-batches.

    Returns:
        dict of the same; their first dimensions are known where those of `features` are.
    """

    def rows(value):
        count = value.shape[0] if value.shape[0] is not None else tf.shape(value, out_type=tf.int64)[0]
        return value[index * count // parts : (index + 1) * count // parts]

    return {name: rows(value) for name, value in features.items()}
