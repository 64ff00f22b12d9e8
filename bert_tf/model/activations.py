"""GELU with hand-written derivatives: a chain of plain ops would pass over memory a dozen times."""

import math

import tensorflow as tf

_TANH_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def activation(name):
    """The function for BertConfig.activation; float tensor in, same shape and dtype out."""
    return {"tanh_gelu": tanh_gelu, "erf_gelu": erf_gelu, "relu": tf.nn.relu}[name]


@tf.custom_gradient
def tanh_gelu(x):
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the form of google-research/bert (modeling.py, gelu)."""
    return _tanh_forward(x), lambda upstream: _tanh_backward(x, upstream)


@tf.custom_gradient
def erf_gelu(x):
    """x Phi(x), exact (Hendrycks and Gimpel, 2016); what most Hugging Face checkpoints were trained with."""
    return _erf_forward(x), lambda upstream: _erf_backward(x, upstream)


def _tanh_forward(x):
    return 0.5 * x * (1.0 + tf.tanh(_TANH_SCALE * (x + _CUBIC * x * x * x)))


# Only the derivatives are compiled: they are what training adds, and an exported graph must not need XLA. They compute
# in float32 whatever comes in: a square over 65504 would make NaN in float16, and in bfloat16, to which XLA rounds
# after every operation, this takes a third of the time (16 instead of 54 ms for 2048 x 3072 on 2 cores).
@tf.function(jit_compile=True)
def _tanh_backward(x, upstream):
    dtype, x, upstream = x.dtype, tf.cast(x, tf.float32), tf.cast(upstream, tf.float32)
    squared = x * x
    tanh = tf.tanh(_TANH_SCALE * (x + _CUBIC * x * squared))
    slope = _TANH_SCALE * (1.0 + 3.0 * _CUBIC * squared)
    return tf.cast(upstream * 0.5 * (1.0 + tanh + x * (1.0 - tanh * tanh) * slope), dtype)


def _erf_forward(x):
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


@tf.function(jit_compile=True)
def _erf_backward(x, upstream):
    dtype, x, upstream = x.dtype, tf.cast(x, tf.float32), tf.cast(upstream, tf.float32)
    density = tf.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
    return tf.cast(upstream * (0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5))) + x * density), dtype)
