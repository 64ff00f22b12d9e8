"""tf.data service input: workers on other machines make the batches, in the same order as this process would."""

import socket
import time
import warnings
from collections.abc import Callable

import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.files import cause
from bert_tf.progress import log
from bert_tf.types import Tensors

SERVICE = tf.data.experimental.service
# Start of the error message if a worker was restarted or is missing.
OUT_OF_ORDER = "the input service gave batch"
_NOT_FOUND = "no input service found"


def through_service(
    epoch_batches: Callable[[tf.Tensor, tuple[int, int]], tf.data.Dataset],
    address: str,
    workers: int,
    patience: float = 120,
) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """Makes the batches on the workers of a tf.data service.

    Worker k makes every batch whose number in the epoch is k modulo `workers`. It does so in a job of its own, which
    is empty on the other workers, and the jobs are read in turn: each batch comes exactly once and in order. (The
    service's own modes do not guarantee this: dynamic sharding depends on the workers' speed, and coordinated reads
    skip a worker that takes more than 0.1 s.) A restarted worker begins its job from the start. The numbers of the
    batches reveal this, and it is an error: the same command then resumes from the last checkpoint.

    Args:
        epoch_batches: function of (epoch, an int64 scalar tensor; shard, the arguments of `Dataset.shard`) to a Dataset
            of feature dicts. It must not hold resources of this process, and its files must exist on all workers.
        address: the dispatcher's, "grpc://HOST:PORT"; it must have been started with the list of its workers.
        workers: number of workers.
        patience: seconds to wait until the dispatcher listens and all workers have registered with it. A DataError is
            raised after this time, or at once if the service cannot be used.

    Returns:
        Function from the epoch to a Dataset, for `batching.stream`.
    """
    _wait(address, workers, patience)

    def batches(epoch: tf.Tensor) -> tf.data.Dataset:
        def made_by(worker: tf.Tensor) -> tf.data.Dataset:
            def make(_: tf.Tensor) -> tf.data.Dataset:
                numbers = tf.data.Dataset.range(worker, tf.int64.max, workers)
                return tf.data.Dataset.zip(numbers, epoch_batches(epoch, (workers, worker)))

            own_number = _worker_numbers(workers).filter(lambda number: number == worker)
            return _distribute(own_number.flat_map(make), address)

        merged = tf.data.Dataset.range(workers).interleave(made_by, cycle_length=workers, block_length=1)
        return merged.enumerate().map(in_order)

    def in_order(expected: tf.Tensor, element: tuple[tf.Tensor, Tensors]) -> Tensors:
        number, features = element
        message = tf.strings.format(
            OUT_OF_ORDER + " {}, expected {}: a worker was restarted or is missing; make sure that all workers are "
            "running, then run the same command again to resume", (number, expected)
        )  # fmt: skip
        with tf.control_dependencies([tf.debugging.Assert(number == expected, [message])]):
            return {name: tf.identity(value) for name, value in features.items()}

    return batches


def _wait(address: str, workers: int, patience: float) -> None:
    """Waits for all workers: the job of a missing worker would end at once."""
    end = time.monotonic() + patience
    logged = False
    while problem := _problem(address, workers, end):
        if time.monotonic() > end:
            raise DataError(f"{address}: {problem}")
        if not logged and problem.startswith(_NOT_FOUND):
            log(f"{address}: {_NOT_FOUND} yet; waiting up to {patience} seconds")
            logged = True
        time.sleep(1)


def _problem(address: str, workers: int, end: float) -> str:
    """What the service still lacks; "" if it is complete."""
    host, port = address.split("://")[-1].rsplit(":", 1)
    try:
        # TensorFlow would wait for a dispatcher forever and ignore Ctrl-C. If packets are lost on the way, a single
        # attempt to connect may take all of the time.
        socket.create_connection((host.strip("[]"), int(port)), max(1.0, end - time.monotonic())).close()
    except (OSError, OverflowError) as error:
        return f"{_NOT_FOUND} ({error}); start bert_tf.data_service, or see data.service"
    try:
        running = set(_distribute(_worker_numbers(workers), address).as_numpy_iterator())
    except tf.errors.OpError as error:
        raise DataError(f"{address}: not a usable input service ({cause(error)}); see data.service") from None
    if len(running) == workers:
        return ""
    return (
        f"{len(running)} of {workers} input workers are running (data.service_workers); start the others, with the "
        "addresses in the dispatcher's --workers"
    )


def _worker_numbers(workers: int) -> tf.data.Dataset:
    """Dataset that holds on each worker of a service only that worker's number."""
    return tf.data.Dataset.range(workers).shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT)


def _distribute(dataset: tf.data.Dataset, address: str) -> tf.data.Dataset:
    with warnings.catch_warnings():
        # TensorFlow warns that options are unknown inside a graph; none are set.
        warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options", UserWarning)
        return dataset.apply(SERVICE.distribute(SERVICE.ShardingPolicy.HINT, address))
