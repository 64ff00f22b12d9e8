"""Compilation of elementwise operations by XLA in training: one pass over memory instead of several."""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

_scope = threading.local()


@contextlib.contextmanager
def fusion_scope(active: bool = True) -> Iterator[None]:
    """Permits compilation inside. Inference and exports stay outside: they must not depend on XLA.

    Args:
        active: False forbids it inside.
    """
    outer = in_fusion_scope()
    _scope.active = active
    try:
        yield
    finally:
        _scope.active = outer


def in_fusion_scope() -> bool:
    """Whether the innermost `fusion_scope` permits compilation."""
    return getattr(_scope, "active", False)


def is_fused(tensor: tf.Tensor) -> bool:
    """Whether to compile operations on this tensor: inside a `fusion_scope`, if its shape is static.

    XLA compiles a program for every shape, which takes longer than it saves where batches differ in length. Compiled
    operations compute in float32, so none is on float64.
    """
    return in_fusion_scope() and tensor.dtype != tf.float64 and tensor.shape.is_fully_defined()


def only_cpus() -> bool:
    """Whether TensorFlow has no other devices than CPUs."""
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
