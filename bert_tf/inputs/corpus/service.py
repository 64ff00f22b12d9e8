"""Batches made on other machines, by the workers of a tf.data service, in the same order as made here."""

import socket
import time
import warnings

import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.progress import log

SERVICE = tf.data.experimental.service
# How the message of the error begins that ends a run whose workers do not all do their part.
OUT_OF_ORDER = "the input service gave batch"


def through_service(epoch_batches, address, workers, patience=120):
    """Lets a tf.data service make the batches.

    Worker k makes every batch whose number in the epoch is k modulo `workers`, in a job of its own that is idle on the
    others, and the jobs are read in turn: each batch comes exactly once and in order. (The service's own ways do not
    give that: sharing out goes by speed, and "coordinated reads" pass over a worker that takes more than 0.1 s.) A
    worker that was started again begins its job anew, which is noticed by the numbers of the batches and is an error:
    the same command then goes on from the last checkpoint.

    Args:
        epoch_batches: function of (int64 scalar tensor, shard) to a Dataset of dicts of tensors, where shard is what
            `Dataset.shard` takes; it holds no resource of this process, and its files are there on all workers too.
        address: of the dispatcher, which was started with the list of its workers: "grpc://HOST:PORT".
        workers: how many.
        patience: seconds to wait until the dispatcher listens and all of them have told it that they are there.

    Returns:
        function of the epoch to a Dataset, as `batching.stream` takes.

    Raises:
        DataError: the service can not be used, or it or workers are missing after that time.
    """
    _wait(address, workers, patience)

    def batches(epoch):
        def made_by(worker):
            def make(_):
                numbers = tf.data.Dataset.range(worker, tf.int64.max, workers)
                return tf.data.Dataset.zip(numbers, epoch_batches(epoch, (workers, worker)))

            mine = _each_its_number(workers).filter(lambda number: number == worker)
            return _distribute(mine.flat_map(make), address)

        taken = tf.data.Dataset.range(workers).interleave(made_by, cycle_length=workers, block_length=1)
        return taken.enumerate().map(in_order)

    def in_order(expected, element):
        number, features = element
        message = tf.strings.format(
            OUT_OF_ORDER + " {} for {}: a worker was started again or is not there any more; when all are, the same "
            "command goes on", (number, expected)
        )  # fmt: skip
        with tf.control_dependencies([tf.debugging.Assert(number == expected, [message])]):
            return {name: tf.identity(value) for name, value in features.items()}

    return batches


def _wait(address, workers, patience):
    """Waits for all workers: a job without the one that is to do it would be over at once."""
    end = time.monotonic() + patience
    _wait_for_dispatcher(address, end, patience)
    while True:
        try:
            there = set(_distribute(_each_its_number(workers), address).as_numpy_iterator())
        except tf.errors.OpError as error:
            reason = error.message.splitlines()[0][:200]
            raise DataError(f"{address}: no input service that can be used ({reason}); see data.service") from None
        if len(there) == workers:
            return
        if time.monotonic() > end:
            raise DataError(
                f"{address}: {len(there)} of {workers} input workers are there (data.service_workers); start the "
                "others, with the addresses that the dispatcher's --workers has for them"
            )
        time.sleep(1)


def _wait_for_dispatcher(address, end, patience):
    """Waits until somebody listens at the address: TensorFlow would wait for ever, and be deaf to Ctrl-C."""
    host, port = address.split("://")[-1].rsplit(":", 1)
    told = False
    while True:
        try:
            # A try may take as long as all of the time where packets are lost on the way.
            socket.create_connection((host.strip("[]"), int(port)), max(1.0, end - time.monotonic())).close()
            return
        except (OSError, OverflowError) as error:
            if time.monotonic() > end:
                raise DataError(
                    f"{address}: no input service there ({error}); start bert_tf.serve_inputs, or see data.service"
                ) from None
        if not told:
            log(f"{address}: no input service there yet; waiting for it, {patience} seconds at most")
            told = True
        time.sleep(1)


def _each_its_number(workers):
    """Dataset that on each worker of a service holds that worker's number."""
    return tf.data.Dataset.range(workers).shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT)


def _distribute(dataset, address):
    with warnings.catch_warnings():
        # TensorFlow warns that options are unknown inside a graph; none are set.
        warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options", UserWarning)
        return dataset.apply(SERVICE.distribute(SERVICE.ShardingPolicy.HINT, address))
