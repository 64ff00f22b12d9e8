"""Rematerialization: recomputes layers in the backward pass to save memory (Chen et al., 2016, arXiv:1604.06174)."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf

from bert_tf.model.dropout import repeatable

_scope = threading.local()


@contextlib.contextmanager
def remat_scope(active: bool) -> Iterator[None]:
    """In models called inside for training, each transformer block stores only its input and recomputes the rest.

    Use it inside a `seed_scope`: Keras' own dropout would draw different masks when recomputed.

    Args:
        active: False disables recomputation inside the scope.
    """
    outer = getattr(_scope, "active", False)
    _scope.active = active
    try:
        yield
    finally:
        _scope.active = outer


def recomputed(function: Callable[..., tf.Tensor], *tensors: tf.Tensor) -> tf.Tensor:
    """Calls function(*tensors); inside an active `remat_scope`, its backward pass starts by calling it again."""
    if not getattr(_scope, "active", False):
        return function(*tensors)
    return tf.recompute_grad(repeatable(function))(*tensors)
