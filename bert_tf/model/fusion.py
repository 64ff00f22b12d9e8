"""Compilation of elementwise operations by XLA in training: one pass over memory instead of several."""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

_scope = threading.local()


@contextlib.contextmanager
def fusion_scope(active: bool = True, *, every_shape: bool = False) -> Iterator[None]:
    """Permits compilation inside. Inference and exports stay outside: they must not depend on XLA.

    Args:
        active: False forbids it inside.
        every_shape: whether to compile also what has no static shape. XLA compiles a program for every shape, about
            half a second for all of a model, which pays where each is used often.
    """
    outer = in_fusion_scope(), fuses_every_shape()
    _scope.active, _scope.every_shape = active, every_shape
    try:
        yield
    finally:
        _scope.active, _scope.every_shape = outer


def in_fusion_scope() -> bool:
    """Whether the innermost `fusion_scope` permits compilation."""
    return getattr(_scope, "active", False)


def fuses_every_shape() -> bool:
    """Whether the innermost `fusion_scope` compiles what has no static shape, too."""
    return getattr(_scope, "every_shape", False)


def is_fused(tensor: tf.Tensor) -> bool:
    """Whether to compile operations on this tensor: inside a `fusion_scope`, if its shape is static or any may be.

    Compiled operations compute in float32, so none is on float64.
    """
    compiled = tensor.shape.is_fully_defined() or fuses_every_shape()
    return in_fusion_scope() and tensor.dtype != tf.float64 and compiled


def only_cpus() -> bool:
    """Whether TensorFlow has no other devices than CPUs."""
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
