"""Dynamic loss scaling for float16 (Micikevicius et al., 2018, section 3.2)."""

import keras
import tensorflow as tf

# Gradients that have all vanished never overflow: without a bound, the scale itself would overflow in the end.
_LARGEST = 2.0**24


class LossScale:
    """The factor by which the loss is multiplied, and its gradients divided after the reduction.

    Float16 has nothing below 6e-8, where many gradients lie, so the loss is scaled up. An overflow, which makes the
    reduced gradient of all replicas non-finite, halves the scale; `growth` finite updates in a row double it: powers of
    2 do not round.

    Args:
        model: if none of its layers computes in float16, the scale is 1 and stays 1.
        growth: finite updates before the scale is doubled.

    Attributes:
        variable: float32 [2], to be saved: the scale, and the finite updates since it last changed.
    """

    def __init__(self, model: keras.Model, growth: int) -> None:
        self._half = any(layer.compute_dtype == "float16" for layer in model._flatten_layers())
        self._growth = growth
        self.variable = tf.Variable([2.0**15 if self._half else 1.0, 0.0], trainable=False)

    def next(self, state: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
        """The state after an update.

        Args:
            state: float32 [2], as `variable`.
            finite: bool scalar, whether the update's gradient was finite.

        Returns:
            float32 [2].
        """
        if not self._half:
            return state
        scale, good = state[0], tf.where(finite, state[1] + 1.0, 0.0)
        grows = good >= self._growth
        grown = tf.where(grows, tf.minimum(2.0 * scale, _LARGEST), scale)
        return tf.stack([tf.where(finite, grown, tf.maximum(0.5 * scale, 1.0)), tf.where(grows, 0.0, good)])
