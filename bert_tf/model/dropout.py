"""Dropout as a pure function of a seed, so that a resumed run draws the same masks as an uninterrupted one."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

_scope = threading.local()


@contextlib.contextmanager
def seed_scope(seed: tf.Tensor) -> Iterator[None]:
    """Models called inside draw their dropout masks from `seed` (int [2]), a different mask for each layer."""
    outer = getattr(_scope, "state", None)
    _scope.state = {"seed": seed, "calls": 0}
    try:
        yield
    finally:
        _scope.state = outer


def repeatable(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Wraps `function` so that every call draws the same dropout masks as its first call in this `seed_scope`.

    For backward passes that recompute the forward pass, possibly after the scope has ended.

    Raises:
        RuntimeError: outside of a `seed_scope`, where masks cannot be reproduced.
    """
    state = getattr(_scope, "state", None)
    if state is None:
        raise RuntimeError(
            "no seed_scope: recomputation would draw different dropout masks; call the model inside a seed_scope"
        )
    seed, first = state["seed"], state["calls"]

    def call(*arguments: tf.Tensor) -> tf.Tensor:
        with seed_scope(seed):
            _scope.state["calls"] = first
            results = function(*arguments)
            state["calls"] = max(state["calls"], _scope.state["calls"])
        return results

    return call


@keras.saving.register_keras_serializable("bert_tf")
class Dropout(keras.layers.Dropout):
    """Dropout, seeded by the enclosing `seed_scope` or, without one (Keras' own `fit`), by Keras' seed generator."""

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        state = getattr(_scope, "state", None)
        if not training or self.rate == 0 or state is None:
            return super().call(inputs, training=training)
        state["calls"] += 1
        seed = tf.random.experimental.stateless_fold_in(state["seed"], state["calls"])
        # 16 random bits per element: half the work of a float32 draw; the rate is exact to 1/65536.
        shape = tf.shape(inputs)
        size = tf.reduce_prod(shape)
        bits = tf.random.stateless_uniform([(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.int32)
        bits = tf.reshape(tf.reshape(tf.bitcast(bits, tf.uint16), [-1])[:size], shape)
        threshold = round(self.rate * 65536)
        scale = 65536.0 / (65536 - threshold)
        keep = tf.cast(bits >= tf.cast(threshold, tf.uint16), inputs.dtype)
        return inputs * (keep * tf.cast(scale, inputs.dtype))
