"""Calls of a model whose outputs nobody differentiates."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from bert_tf.types import Tensors

_state = threading.local()


@contextlib.contextmanager
def inference_scope() -> Iterator[None]:
    """Encoders that are called inside leave out the padding, and dense layers their hand-written gradients.

    The gradients put an operation between product, bias and activation, for which TensorFlow has one kernel.
    """
    outer = is_inference()
    _state.active = True
    try:
        yield
    finally:
        _state.active = outer


def infer(model: keras.Model, features: Tensors) -> Any:
    """`model(features, training=False)` in an `inference_scope`."""
    with inference_scope():
        return model(features, training=False)


def skips_padding() -> bool:
    """Whether encoders that are called here leave out the padding: in an `inference_scope`, but not on TPUs.

    There the shapes of a program are fixed.
    """
    return is_inference() and not isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)


def is_inference() -> bool:
    """Whether the call is inside an `inference_scope`."""
    return getattr(_state, "active", False)
