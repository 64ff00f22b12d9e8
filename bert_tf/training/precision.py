"""Which number format the layers compute in."""

import time

import tensorflow as tf


def policy(dtype):
    """The Keras dtype policy for TrainConfig.dtype; "auto" takes the faster one of this machine."""
    if dtype == "auto":
        dtype = fastest()
    return dtype if dtype == "float32" else f"mixed_{dtype}"


def fastest():
    """The faster of bfloat16 and float32, by name: bfloat16 where its matrix products take two thirds of the time.

    Accelerators and processors with AMX gain several times; on other processors bfloat16 is emulated and slower, and
    no list of processor names says so as surely as trying.
    """
    if tf.config.list_physical_devices("TPU") or tf.config.list_physical_devices("GPU"):
        return "bfloat16"
    seconds = {name: _seconds(tf.as_dtype(name)) for name in ("float32", "bfloat16")}
    return "bfloat16" if seconds["float32"] > 1.5 * seconds["bfloat16"] else "float32"


def _seconds(dtype):
    left, right = (tf.cast(tf.random.stateless_normal(shape, [0, 0]), dtype) for shape in ([1024, 512], [512, 1024]))
    multiply = tf.function(tf.matmul)
    multiply(left, right)  # traces
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        multiply(left, right).numpy()
        best = min(best, time.perf_counter() - start)
    return best
