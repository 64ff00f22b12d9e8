"""Batches made on other machines, by the workers of a tf.data service, in the same order as made here."""

import uuid

import tensorflow as tf

SERVICE = tf.data.experimental.service
# How the message of the error begins that ends a run whose workers do not all do their part.
OUT_OF_ORDER = "the input service gave other batches than expected;"


def through_service(epoch_batches, address, workers):
    """Lets a tf.data service make the batches.

    Batch n of an epoch is made by worker n modulo `workers` and they are read in turn, so that each comes exactly once
    and in order. A worker that is missing, or that was started again and so begins anew, is noticed by the numbers that
    batches carry, and is an error: the same command then goes on from the last checkpoint. Every worker reads the
    whole corpus and makes its part of the batches from it.

    Args:
        epoch_batches: function of (int64 scalar tensor, shard) to a Dataset of dicts of tensors, where shard is what
            `Dataset.shard` takes; it holds no resource of this process, and every file is there on all workers too.
        address: of the dispatcher, which was started with the list of its workers: "grpc://HOST:PORT".
        workers: how many.

    Returns:
        function of the epoch to a Dataset, as `batching.stream` takes.
    """
    hint = (tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT)  # the service puts the worker's own here
    run = uuid.uuid4().hex  # a job of the same name would go on where the other run's is

    def batches(epoch):
        made = epoch_batches(epoch, hint)
        spec = made.element_spec
        made = made.map(_serialize)
        # Reading in turn needs an endless Dataset: the end is as many marks as anyone may read.
        end = tf.data.Dataset.from_tensors(tf.fill([len(spec)], "")).repeat()
        numbers = tf.data.Dataset.range(tf.int64.max).shard(*hint)
        numbered = tf.data.Dataset.zip(numbers, made.concatenate(end))
        job = tf.strings.join([run, tf.strings.as_string(epoch)], "-")
        taken = numbered.apply(
            SERVICE.distribute(SERVICE.ShardingPolicy.HINT, address, job_name=job, consumer_index=0, num_consumers=1)
        )
        # A round has one batch of each worker; the order of workers in it is that in which they registered.
        rounds = taken.batch(workers, drop_remainder=True).enumerate().map(lambda turn, made: order(turn, *made))
        serialized = rounds.unbatch().take_while(lambda parts: tf.strings.length(parts[0]) > 0)
        return serialized.map(lambda parts: _parse(parts, spec), num_parallel_calls=tf.data.AUTOTUNE)

    def order(turn, numbers, serialized):
        places = tf.argsort(numbers)
        right = tf.reduce_all(tf.gather(numbers, places) == turn * workers + tf.range(workers, dtype=tf.int64))
        found = tf.strings.format("{} in turn {}", (numbers, turn))
        expected = f"; expected one of each of {workers} workers (data.service_workers), all there from the start"
        message = tf.strings.join([OUT_OF_ORDER, " numbers ", found, expected, "; the same command again goes on"])
        with tf.control_dependencies([tf.debugging.Assert(right, [message])]):
            return tf.gather(serialized, places)

    return batches


def _serialize(features):
    """dict of tensors -> string [number of features], by which batches of different lengths go into one tensor."""
    return tf.stack([tf.io.serialize_tensor(features[name]) for name in sorted(features)])


def _parse(parts, spec):
    return {
        name: tf.ensure_shape(tf.io.parse_tensor(parts[place], spec[name].dtype), spec[name].shape)
        for place, name in enumerate(sorted(spec))
    }
