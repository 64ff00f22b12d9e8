"""Recomputing layers in the backward pass, for less memory (Chen et al., 2016, arXiv:1604.06174)."""

import contextlib
import threading

import tensorflow as tf

from bert_tf.model.dropout import repeatable

_scope = threading.local()


@contextlib.contextmanager
def remat_scope(active):
    """In models called inside for training, a transformer block keeps only its input; the rest is computed again.

    Use it inside a `seed_scope`: the masks of Keras' own dropout would be others the second time.

    Args:
        active: False changes nothing.
    """
    outer = getattr(_scope, "active", False)
    _scope.active = active
    try:
        yield
    finally:
        _scope.active = outer


def recomputed(function, *tensors):
    """function(*tensors); inside an active `remat_scope`, its backward pass begins with calling it again."""
    if not getattr(_scope, "active", False):
        return function(*tensors)
    return tf.recompute_grad(repeatable(function))(*tensors)
