"""The number format in which layers compute."""

import time

import tensorflow as tf


def policy(dtype: str) -> str:
    """The Keras dtype policy for TrainConfig.dtype; "auto" takes the faster format on this machine."""
    if dtype == "auto":
        dtype = fastest()
    return dtype if dtype == "float32" else f"mixed_{dtype}"


def fastest() -> str:
    """The faster of "bfloat16" and "float32": bfloat16 where its matrix products take at most two thirds of the time.

    Accelerators and processors with AMX gain several times; other processors emulate bfloat16 and are slower with it.
    No list of processor names is as reliable as a measurement.
    """
    if tf.config.list_physical_devices("TPU") or tf.config.list_physical_devices("GPU"):
        return "bfloat16"
    seconds = {name: _seconds(tf.as_dtype(name)) for name in ("float32", "bfloat16")}
    return "bfloat16" if seconds["float32"] > 1.5 * seconds["bfloat16"] else "float32"


def _seconds(dtype: tf.DType) -> float:
    """The time of a matrix product, the best of five."""
    left, right = (tf.cast(tf.random.stateless_normal(shape, [0, 0]), dtype) for shape in ([1024, 512], [512, 1024]))
    multiply = tf.function(tf.matmul)
    multiply(left, right)  # traces
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        multiply(left, right).numpy()
        best = min(best, time.perf_counter() - start)
    return best
