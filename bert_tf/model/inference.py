"""Calls of a model whose outputs nobody differentiates."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from bert_tf.model.mode import computing, current
from bert_tf.types import Tensors


class Inference(NamedTuple):
    """A call of a model, as a function of its features; equal calls compute the same.

    Attributes:
        function: called with the model and the features.
        model: whose layers `function` calls.
        skip_padding: as in `Mode`.
    """

    function: Callable[[keras.Model, Tensors], Any]
    model: keras.Model
    skip_padding: bool

    @property
    def calls_model(self) -> bool:
        """Whether the results are the outputs of the model itself."""
        return self.function is _called

    def __call__(self, features: Tensors) -> Any:
        with computing(dataclasses.replace(current(), inference=True, skip_padding=self.skip_padding)):
            return self.function(self.model, features)


def infer(model: keras.Model, features: Tensors, *, skip_padding: bool = True) -> Any:
    """`model(features, training=False)` in the mode of inference."""
    return inferred(_called, model, features, skip_padding=skip_padding)


def inferred(
    function: Callable[[keras.Model, Tensors], Any], model: keras.Model, features: Tensors, *, skip_padding: bool = True
) -> Any:
    """`function(model, features)` in the mode of inference, through the dispatch of the mode if it has one."""
    inference, dispatch = Inference(function, model, skip_padding), current().dispatch
    return dispatch(inference, features) if dispatch else inference(features)


def _called(model: keras.Model, features: Tensors) -> Any:
    return model(features, training=False)
