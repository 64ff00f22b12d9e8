"""Calls of a model whose outputs nobody differentiates."""

import threading
from typing import Any

import keras

from bert_tf.types import Tensors

_state = threading.local()


def infer(model: keras.Model, features: Tensors) -> Any:
    """`model(features, training=False)`, without the layers' hand-written gradients.

    These leave an operation between product, bias and activation, which prevents TensorFlow's kernel for all three.
    """
    outer = is_inference()
    _state.active = True
    try:
        return model(features, training=False)
    finally:
        _state.active = outer


def is_inference() -> bool:
    """Whether the call is inside `infer`."""
    return getattr(_state, "active", False)
