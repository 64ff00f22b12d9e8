"""Examples of similar length into one batch, epochs into one endless stream that can be resumed anywhere."""

import tensorflow as tf


def batch_by_length(pools, batch_size, *, length_key="input_word_ids", seed=None):
    """Sorts each pool by length and cuts it into batches, so that little of a batch is padding.

    Args:
        pools: Dataset of dicts whose tensors have the pool's size as first dimension, RaggedTensors among them. A pool
            size that is a multiple of `batch_size` (32 of them is plenty) leaves only the very last batch partial.
        batch_size: examples a batch.
        length_key: the ragged feature that is sorted by.
        seed: int64 [2] to shuffle the order of the batches, or None to keep it (evaluation).

    Returns:
        Dataset of dicts; what was ragged still is.
    """

    def sort(pool):
        order = tf.argsort(pool[length_key].row_lengths(), stable=True)
        return {name: tf.gather(value, order) for name, value in pool.items()}

    batches = pools.map(sort, num_parallel_calls=tf.data.AUTOTUNE).unbatch().ragged_batch(batch_size)
    if seed is not None:
        # More than a pool's batches: without that every pool would end with its own longest.
        batches = batches.shuffle(64, seed=tf.random.stateless_uniform([], seed, 0, 2**31 - 1, tf.int64))
    return batches


def stream(epoch_batches, start=(0, 0)):
    """All epochs one after the other, for ever, from any point.

    Args:
        epoch_batches: function of an int64 scalar tensor, the epoch, to a Dataset of feature dicts. It must give the
            same batches each time it is asked for the same epoch.
        start: (epoch, batches of it already used).

    Returns:
        Dataset of the same dicts with `position`, int64 [2]: the `start` that goes on after this batch.
    """

    def one_epoch(epoch):
        def number(index, features):
            return features | {"position": tf.stack([epoch, index + 1])}

        done = tf.where(epoch == start[0], tf.constant(start[1], tf.int64), 0)
        return epoch_batches(epoch).enumerate().map(number).skip(done)

    return tf.data.Dataset.range(start[0], tf.int64.max).flat_map(one_epoch).prefetch(tf.data.AUTOTUNE)
