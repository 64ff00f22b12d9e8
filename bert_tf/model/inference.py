"""Calls of a model whose outputs nobody differentiates."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras

from bert_tf.types import Tensors

_state = threading.local()


@contextlib.contextmanager
def inference_scope() -> Iterator[None]:
    """Dense layers that are called inside leave out their hand-written gradients.

    These leave an operation between product, bias and activation, which prevents TensorFlow's kernel for all three.
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


def is_inference() -> bool:
    """Whether the call is inside an `inference_scope`."""
    return getattr(_state, "active", False)
