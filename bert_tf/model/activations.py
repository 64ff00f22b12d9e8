"""GELU and SiLU with hand-written derivatives: a chain of plain ops would pass over memory a dozen times."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from bert_tf.model import fused

_Activation: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
# What tf.custom_gradient expects: the value and the function from the upstream gradient to the gradient.
_WithGradient: TypeAlias = tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]


def activation(name: str) -> _Activation:
    """Returns the function with this name in configs; its output has the shape and dtype of its input."""
    return _FUNCTIONS[name]


@dataclasses.dataclass(frozen=True)
class Gated:
    """The activation of a gated feed-forward network: [..., 2 * size] -> [..., size].

    Attributes:
        activation: of the first half, which the second half is multiplied by.
    """

    activation: _Activation

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        activated, gate = tf.split(x, 2, -1)
        return self.activation(activated) * gate


def without_gradient(function: _Activation) -> _Activation:
    """The activation as plain operations, for inference.

    TensorFlow's kernel for product, bias and GELU replaces them; a hand-written gradient leaves an operation between
    them that prevents it.
    """
    if isinstance(function, Gated):
        return Gated(without_gradient(function.activation))
    plain = {tanh_gelu: fused.tanh_forward, erf_gelu: fused.erf_forward, silu: fused.silu_forward}
    return plain.get(function, function)


@tf.custom_gradient
def tanh_gelu(x: tf.Tensor) -> _WithGradient:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the form of google-research/bert (modeling.py, gelu)."""
    return fused.tanh_forward(x), lambda upstream: fused.tanh_gradient.fused(x, upstream)


@keras.saving.register_keras_serializable("bert_tf")  # poolers are layers of Keras
@tf.custom_gradient
def erf_gelu(x: tf.Tensor) -> _WithGradient:
    """x Phi(x), exact (Hendrycks and Gimpel, 2016); what most Hugging Face checkpoints were trained with."""
    return fused.erf_forward(x), lambda upstream: fused.erf_gradient.fused(x, upstream)


@tf.custom_gradient
def silu(x: tf.Tensor) -> _WithGradient:
    """x sigmoid(x); with a gate, the activation of SwiGLU."""
    return fused.silu_forward(x), lambda upstream: fused.silu_gradient.fused(x, upstream)


def has_bias_form(function: _Activation) -> bool:
    """Whether `of_sum` knows the activation."""
    return function in _OF_SUM


def of_sum(function: _Activation, x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """function(x + bias) in one compiled pass over memory, a quarter of the time of the single operations.

    Args:
        x: [rows, units]; XLA compiles a program for each number of rows.
        bias: [units].
    """
    forward, backward = _OF_SUM[function]

    @tf.custom_gradient
    def compute(x: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            gradient = backward.fused(x, bias, upstream)
            return gradient, fused.column_sums(gradient)

        return forward.fused(x, bias), gradients

    return compute(x, tf.convert_to_tensor(bias))


# Activation -> it and its derivative times the upstream gradient, of a sum.
_OF_SUM: dict[Any, tuple[fused.Compiled, fused.Compiled]] = {
    tanh_gelu: (fused.tanh_of_sum, fused.tanh_of_sum_gradient),
    erf_gelu: (fused.erf_of_sum, fused.erf_of_sum_gradient),
}

_FUNCTIONS: dict[str, _Activation] = {
    "tanh_gelu": tanh_gelu,
    "erf_gelu": erf_gelu,
    "silu": silu,
    "relu": tf.nn.relu,
    "linear": tf.identity,
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
}
