"""Dropout that is a pure function of a seed, so a resumed run drops what the uninterrupted one would have dropped."""

import contextlib
import threading

import keras
import tensorflow as tf

_scope = threading.local()


@contextlib.contextmanager
def seed_scope(seed):
    """Models called inside draw their dropout masks from `seed` (int32 [2]); each layer draws its own."""
    outer = getattr(_scope, "state", None)
    _scope.state = {"seed": seed, "calls": 0}
    try:
        yield
    finally:
        _scope.state = outer


def repeatable(function):
    """`function`, which every call gives the dropout masks that the first call has in the present `seed_scope`.

    For a backward pass that computes the forward pass again, perhaps after the scope has ended.

    Raises:
        RuntimeError: outside of a `seed_scope`, where masks can not be drawn again.
    """
    state = getattr(_scope, "state", None)
    if state is None:
        raise RuntimeError("no seed_scope: dropout would draw other masks when it is computed again")
    seed, first = state["seed"], state["calls"]

    def call(*arguments):
        with seed_scope(seed):
            _scope.state["calls"] = first
            results = function(*arguments)
            state["calls"] = max(state["calls"], _scope.state["calls"])
        return results

    return call


@keras.saving.register_keras_serializable("bert_tf")
class Dropout(keras.layers.Dropout):
    """Dropout; inside `seed_scope` from that seed, outside of it (Keras' own `fit`) from Keras' seed generator."""

    def call(self, inputs, training=False):
        state = getattr(_scope, "state", None)
        if not training or self.rate == 0 or state is None:
            return super().call(inputs, training=training)
        state["calls"] += 1
        seed = tf.random.experimental.stateless_fold_in(state["seed"], state["calls"])
        # 16 random bits an element: half the work of a float32 draw; the rate is exact to 1/65536.
        shape = tf.shape(inputs)
        size = tf.reduce_prod(shape)
        bits = tf.random.stateless_uniform([(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.int32)
        bits = tf.reshape(tf.reshape(tf.bitcast(bits, tf.uint16), [-1])[:size], shape)
        threshold = round(self.rate * 65536)
        scale = 65536.0 / (65536 - threshold)
        keep = tf.cast(bits >= tf.cast(threshold, tf.uint16), inputs.dtype)
        return inputs * (keep * tf.cast(scale, inputs.dtype))
