"""tf.distribute strategies by name, and the cores of a CPU."""

import contextlib
import functools
import os

import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.config.values import shown
from bert_tf.errors import ConfigError

# The most cores that compute parts of a batch: the gradients of each part take as much memory as the model.
_MOST_PARTS = 4

NAMES = ("auto", "one_device", "mirrored", "multi_worker", "tpu")


def create(name: str = "auto", tpu: str = "", train: TrainConfig | None = None) -> tf.distribute.Strategy:
    """The strategy called `name`, the same object in every call: a process has one.

    Collective operations are numbered by their strategy, from the beginning in each new one, but matched by their
    numbers in the whole process. With a second strategy, those of another model would meet the shapes of the first.

    Args:
        name: "one_device"; "mirrored": all accelerators of this machine; "multi_worker": the machines that the
            environment variable TF_CONFIG lists; "tpu": the TPU at `tpu`; "auto": mirrored if there are several
            GPUs, else one device.
        tpu: name or address of the TPU, "" or "local" for the TPU of this virtual machine.
        train: of a program that trains and has not computed anything yet. On one device, TensorFlow then computes each
            operation with one thread where `parallel_parts` gives each core a part of a batch.
    """
    if train and name in ("auto", "one_device") and _gains_by_parts(train):
        # TensorFlow keeps the threads with which it has started to compute.
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(1)
    if name == "auto":
        name = "mirrored" if len(tf.config.list_logical_devices("GPU")) > 1 else "one_device"
    return _created(name, tpu)


@functools.cache
def _created(name: str, tpu: str) -> tf.distribute.Strategy:
    """As `create`, for names other than "auto"."""
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(_best_devices()[0].name)
    if name == "mirrored":
        return tf.distribute.MirroredStrategy([device.name for device in _best_devices()])
    if name == "multi_worker":
        try:
            return tf.distribute.MultiWorkerMirroredStrategy()
        except (ValueError, TypeError, AttributeError, LookupError, tf.errors.OpError) as error:
            found = shown(os.environ.get("TF_CONFIG", ""))
            raise ConfigError(
                f"--strategy=multi_worker: the environment variable TF_CONFIG is {found}, which lists no workers: "
                f"{error}"
            ) from None
    if name == "tpu":
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu or "local")
        except (ValueError, tf.errors.OpError) as error:
            raise ConfigError(f"--strategy=tpu: no TPU {tpu or 'local'!r} can be reached: {error}") from None
        return tf.distribute.TPUStrategy(resolver)
    raise ConfigError(f"--strategy={name} is unknown; choose one of {', '.join(NAMES)}")


def parallel_parts(strategy: tf.distribute.Strategy) -> int:
    """In how many parts a replica computes a batch at the same time.

    One for each of two to four cores without a GPU or TPU, if operations have one thread each. Threads that share an
    operation wait for each other dozens of microseconds each time, and there are thousands of operations in an update.
    """
    alone = accelerator(strategy) is None and len(devices_of(strategy)) <= 1
    one_thread = tf.config.threading.get_intra_op_parallelism_threads() == 1
    return cores() if alone and one_thread and cores() <= _MOST_PARTS else 1


def cores() -> int:
    """The cores that this process may use; macOS knows only those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes checkpoints, summaries and results."""
    resolver = strategy.cluster_resolver
    return (
        resolver is None
        or resolver.task_type in (None, "", "chief")
        or (resolver.task_type == "worker" and resolver.task_id == 0 and "chief" not in resolver.cluster_spec().jobs)
    )


def devices_of(strategy: tf.distribute.Strategy) -> tuple[str, ...]:
    """Names of the devices of this process that its replicas compute on; () for TensorFlow's default strategy."""
    try:
        return tuple(strategy.extended.worker_devices)
    except RuntimeError:
        return ()


def accelerator(strategy: tf.distribute.Strategy) -> str | None:
    """ "GPU" or "TPU" if the replicas compute on such devices, else None."""
    kinds = {tf.DeviceSpec.from_string(device).device_type for device in devices_of(strategy)}
    return next((kind for kind in ("GPU", "TPU") if kind in kinds), None)


def _gains_by_parts(train: TrainConfig) -> bool:
    """Whether training is faster if each core computes a part of a batch: not if micro-batches have fewer rows."""
    phases = [train.in_phase(phase) for phase in train.phases] or [train]
    rows = min(phase.batch_size // phase.accumulation for phase in phases)
    accelerators = tf.config.list_physical_devices("GPU") + tf.config.list_physical_devices("TPU")
    free = "TF_NUM_INTRAOP_THREADS" not in os.environ and not accelerators
    return free and 1 < cores() <= min(_MOST_PARTS, rows)


def _best_devices() -> list[tf.config.LogicalDevice]:
    return tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
