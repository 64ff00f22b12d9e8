"""Calls of a model whose outputs nobody differentiates."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

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


class Inference(NamedTuple):
    """A call of a model, as a function of its features; equal calls compute the same.

    Attributes:
        function: called with the model and the features.
        model: whose layers `function` calls.
        skip_padding: as for `inference_scope`.
    """

    function: Callable[[keras.Model, Tensors], Any]
    model: keras.Model
    skip_padding: bool

    @property
    def calls_model(self) -> bool:
        """Whether the results are the outputs of the model itself."""
        return self.function is _called

    def __call__(self, features: Tensors) -> Any:
        with inference_scope(skip_padding=self.skip_padding):
            return self.function(self.model, features)


Dispatch: TypeAlias = Callable[[Inference, Tensors], Any]


@contextlib.contextmanager
def dispatch_scope(dispatch: Dispatch) -> Iterator[None]:
    """Inside, models are called by `dispatch(inference, features)`, which chooses how to compute it."""
    outer = getattr(_state, "dispatch", None)
    _state.dispatch = dispatch
    try:
        yield
    finally:
        _state.dispatch = outer


def infer(model: keras.Model, features: Tensors, *, skip_padding: bool = True) -> Any:
    """`model(features, training=False)` in an `inference_scope`."""
    return inferred(_called, model, features, skip_padding=skip_padding)


def inferred(
    function: Callable[[keras.Model, Tensors], Any], model: keras.Model, features: Tensors, *, skip_padding: bool = True
) -> Any:
    """`function(model, features)` in an `inference_scope`, through the `dispatch_scope` if there is one."""
    inference = Inference(function, model, skip_padding)
    dispatch = getattr(_state, "dispatch", None)
    return dispatch(inference, features) if dispatch else inference(features)


def _called(model: keras.Model, features: Tensors) -> Any:
    return model(features, training=False)


def skips_padding() -> bool:
    """Whether the call is inside an `inference_scope` that skips padding."""
    return getattr(_state, "skips_padding", False)


def is_inference() -> bool:
    """Whether the call is inside an `inference_scope`."""
    return getattr(_state, "active", False)
