"""Calls of a model whose outputs nobody differentiates."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras

from bert_tf.types import Tensors

_state = threading.local()


@contextlib.contextmanager
def inference_scope(*, skip_padding: bool = True) -> Iterator[None]:
    """Dense layers that are called inside leave out their hand-written gradients.

    These put an operation between product, bias and activation, which prevents TensorFlow's kernel for all three.

    Args:
        skip_padding: whether encoders compute nothing but attention for padding, so that their outputs there mean
            nothing. XLA, and so TPUs, cannot compile that.
    """
    outer = is_inference(), skips_padding()
    _state.active, _state.skips_padding = True, skip_padding
    try:
        yield
    finally:
        _state.active, _state.skips_padding = outer


def infer(model: keras.Model, features: Tensors, *, skip_padding: bool = True) -> Any:
    """`model(features, training=False)` in an `inference_scope`."""
    with inference_scope(skip_padding=skip_padding):
        return model(features, training=False)


def skips_padding() -> bool:
    """Whether the call is inside an `inference_scope` that skips padding."""
    return getattr(_state, "skips_padding", False)


def is_inference() -> bool:
    """Whether the call is inside an `inference_scope`."""
    return getattr(_state, "active", False)
