"""The private API of TensorFlow behaves as `training.tf_internals` describes; a failure means that a new version has
changed it."""

import gc
import weakref

import tensorflow as tf

from bert_tf.training.tf_internals import forgetting_custom_gradients, in_multi_worker_mode


def _traced():
    """A weak reference to the graph of a function with a custom gradient."""

    @tf.custom_gradient
    def square(x):
        return x * x, lambda upstream: 2 * x * upstream

    graph = tf.function(square, autograph=False).get_concrete_function(tf.TensorSpec([], tf.float32)).graph
    return weakref.ref(graph)


def test_graphs_with_custom_gradients_are_freed_only_inside_the_block():
    kept = _traced()
    with forgetting_custom_gradients():
        freed = _traced()
    gc.collect()
    # If the first were freed too, TensorFlow would no longer need the function: remove it.
    assert kept() is not None and freed() is None


def test_one_process_is_not_in_multi_worker_mode():
    assert in_multi_worker_mode(tf.distribute.OneDeviceStrategy("/cpu:0")) is False
    assert in_multi_worker_mode(tf.distribute.MirroredStrategy(["/cpu:0"])) is False
