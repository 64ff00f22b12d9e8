"""The private API of TensorFlow that this package uses; everything else that it uses is public.

`tests/training/test_tf_internals.py` fails first if a new version of TensorFlow changes it.
"""

import contextlib
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.framework import ops


@contextlib.contextmanager
def forgetting_custom_gradients() -> Iterator[None]:
    """Removes the gradients that `tf.custom_gradient` registers inside of the block.

    It adds a function per trace to a registry and never removes it; the function keeps its graph in memory, some 50 MB
    per run of the smallest model.
    """
    registry = ops.gradient_registry._registry
    before = set(registry)
    try:
        yield
    finally:
        for name in set(registry) - before:
            if name.startswith("CustomGradient-"):
                del registry[name]


def in_multi_worker_mode(strategy: tf.distribute.Strategy) -> bool:
    """Whether several processes train together."""
    return strategy.extended._in_multi_worker_mode()
