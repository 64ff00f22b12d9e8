"""Channels of an intermediate layer that are continued in additional ones, so that all fit a lower limit."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Additional channels: one for 48 of the intermediate layer, in multiples of 16, which suit the kernel.
_CONTINUED_SHARE, _CONTINUED_MULTIPLE = 48, 16
# The limit of the intermediate layer is one of so many.
_LIMITS = 200


class Continued(NamedTuple):
    """Two dense layers with additional channels between them; results of `continued`."""

    limit: tf.Tensor
    kernel: tf.Tensor
    bias: tf.Tensor
    output_kernel: tf.Tensor
    offsets: tf.Tensor


def continued(kernel: tf.Tensor, bias: tf.Tensor, output_kernel: tf.Tensor, largest: tf.Tensor) -> Continued:
    """Adds channels to an intermediate layer so that clipping its activations at a lower limit changes nothing.

    For GELU g and c(x) = min(g(x), L), g(x) - g(-x) = x, and so, but for the end of the last one,

        g(x) = c(x) + (L - c(2L - x)) + c(x - 2L) + (L - c(4L - x)) + ...

    whose terms rise from 0 to L one after the other. Each is a channel of its own with the weights of x.

    Args:
        kernel, bias: [inputs, channels] and [channels].
        output_kernel: [channels, outputs].
        largest: [channels], of the activations.

    Returns:
        The smallest limit for which the additional channels suffice, both kernels and the bias with these channels (the
        unused ones are 0), and what to add to the channels before the output kernel.
    """
    size = bias.shape[0]
    added = max(size // _CONTINUED_SHARE // _CONTINUED_MULTIPLE, 1) * _CONTINUED_MULTIPLE
    largest = tf.cast(largest, tf.float64)
    exponents = tf.linspace(np.log(3.0), tf.math.log(tf.maximum(tf.reduce_max(largest), 3.01)), _LIMITS)
    limits = tf.exp(exponents)
    all_terms = _terms(largest, limits[:, tf.newaxis])  # [limits, channels]
    first = tf.argmax(tf.reduce_sum(all_terms, 1) <= added)
    terms, limit = tf.gather(all_terms, first), tf.cast(tf.gather(limits, first), tf.float32)
    # Slot s continues the channel whose terms, numbered through all channels, include s.
    ends, slots = tf.cumsum(terms), tf.range(added, dtype=tf.float64)
    channels = tf.reduce_sum(tf.cast(ends <= slots[:, tf.newaxis], tf.int32), 1)
    used, channels = channels < size, tf.minimum(channels, size - 1)
    numbers = tf.cast(slots - tf.gather(ends - terms, channels), tf.float32) + 1
    falling = numbers % 2 == 1
    signs = tf.where(used, tf.where(falling, -1.0, 1.0), 0.0)
    shifts = tf.where(used, tf.where(falling, numbers + 1, -numbers) * limit, 0.0)
    return Continued(
        limit,
        tf.concat([kernel, tf.gather(kernel, channels, axis=1) * signs], 1),
        tf.concat([bias, tf.gather(bias, channels) * signs + shifts], 0),
        tf.concat([output_kernel, tf.gather(output_kernel, channels) * signs[:, tf.newaxis]], 0),
        tf.concat([tf.zeros([size]), tf.where(used & falling, -limit, 0.0)], 0),
    )


def _terms(largest: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """Number of additional terms of each channel: an odd one ends 2 below a multiple, where GELU is almost x."""
    rising = tf.maximum(tf.math.ceil(largest / limit) - 1, 0.0)
    ends_early = (rising % 2 == 1) & (largest > (rising + 1) * limit - 2)
    return rising + tf.cast(ends_early, rising.dtype)
