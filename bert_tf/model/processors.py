"""The number format that is fastest on the devices here."""

import functools
import os
import time
from collections.abc import Mapping

import tensorflow as tf

from bert_tf.processor_flags import all_flags, limit_of_onednn, processor_flags


def only_cpus() -> bool:
    """Whether TensorFlow has no other devices than CPUs."""
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


@functools.cache
def fastest() -> tuple[str, str]:
    """The fastest of "bfloat16", "float32" and, on some GPUs, "float16", and the reason.

    Within a process always the same.
    """
    if tf.config.list_physical_devices("TPU"):
        return "bfloat16", "TPUs multiply in it"
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return of_gpu(min(_compute_capability(gpu) for gpu in gpus))
    return of_processor(os.environ) or _measured()


def of_gpu(capability: tuple[int, int]) -> tuple[str, str]:
    """The result of `fastest` for GPUs of this compute capability.

    Matrix products have units of their own since 7.0 (Volta), for bfloat16 since 8.0 (Ampere).
    """
    dtype = "bfloat16" if capability >= (8, 0) else "float16" if capability >= (7, 0) else "float32"
    return dtype, "GPU of compute capability {}.{}".format(*capability)


def of_processor(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The result of `fastest` for the processor here if it is of x86; None for others.

    Not by measurement: on a busy machine, two measurements differ by more than the two formats.

    Args:
        environment: for the settings that keep TensorFlow from using the instructions.
    """
    if not all_flags():
        return None
    instructions = [name for name in ("amx_bf16", "avx512_bf16") if name in all_flags()]
    if not instructions:
        return "float32", "the processor has neither AMX-BF16 nor AVX512-BF16"
    setting = "TF_ENABLE_ONEDNN_OPTS", environment.get("TF_ENABLE_ONEDNN_OPTS", "")
    if setting[1].lower() not in ("0", "false"):
        if not processor_flags(environment).isdisjoint(instructions):
            return "bfloat16", f"the processor has {instructions[0]}"
        setting = limit_of_onednn(environment)
    return "float32", f"{'='.join(setting)} rules out the processor's {instructions[0]}"


def _compute_capability(gpu: tf.config.PhysicalDevice) -> tuple[int, int]:
    """Of a GPU without one, which is not NVIDIA's, that of the first with bfloat16."""
    return tf.config.experimental.get_device_details(gpu).get("compute_capability", (8, 0))


def _measured() -> tuple[str, str]:
    """The result of `fastest` where nothing is known: bfloat16 if its matrix products take at most two thirds."""
    seconds = {name: _seconds(tf.as_dtype(name)) for name in ("float32", "bfloat16")}
    ratio = seconds["float32"] / seconds["bfloat16"]
    return "bfloat16" if ratio > 1.5 else "float32", f"measured, bfloat16 multiplies {ratio:.1f} times as fast"


def _seconds(dtype: tf.DType) -> float:
    """The time of a matrix product, the best of five."""
    left, right = (tf.cast(tf.random.stateless_normal(shape, [0, 0]), dtype) for shape in ([1024, 512], [512, 1024]))
    multiply = tf.function(tf.matmul, autograph=False)
    multiply(left, right)  # traces
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        multiply(left, right).numpy()
        best = min(best, time.perf_counter() - start)
    return best
