"""The number format in which layers compute."""

import contextlib
import functools
import os
import re
import time
from collections.abc import Mapping

import keras
import tensorflow as tf

from bert_tf.config.train import INFERENCE_DTYPES
from bert_tf.config.values import shown
from bert_tf.errors import ConfigError
from bert_tf.model.encoder import encoder_of
from bert_tf.serving.ask import limit_of_onednn
from bert_tf.serving.optimize import to_bfloat16

# Values of oneDNN's environment variable that forbid the instructions for bfloat16.
_WITHOUT_BFLOAT16 = ("sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core", "avx512_core_vnni")


def policy(dtype: str) -> str:
    """The Keras dtype policy for TrainConfig.dtype; "auto" takes the fastest format on this machine and prints it."""
    if dtype == "auto":
        dtype, reason = fastest()
        print(f"train.dtype=auto computes in {dtype}: {reason}")
    return dtype if dtype == "float32" else f"mixed_{dtype}"


def check_inference_dtype(dtype: str) -> None:
    """Raises ConfigError for anything but one of `INFERENCE_DTYPES`."""
    if not isinstance(dtype, str) or dtype not in INFERENCE_DTYPES:
        raise ConfigError(f"dtype is {shown(dtype)}; expected one of {', '.join(INFERENCE_DTYPES)}")


def infer_in(dtype: str, model: keras.Model) -> str:
    """Makes a model predict in another number format from now on.

    Args:
        dtype: one of `INFERENCE_DTYPES`; "auto" takes bfloat16 where that is faster, and prints its choice.
        model: with float32 weights, of which nothing has been traced; created in the current strategy's scope. For
            bfloat16 it is then for inference only, and does not follow changes of its weights.

    Returns:
        The format: "float32" or "bfloat16".
    """
    if dtype == "float32":
        return dtype
    found, reason = fastest()
    if dtype == "auto":
        dtype = "bfloat16" if found == "bfloat16" else "float32"
        print(f"dtype=auto predicts in {dtype}: {reason}" + (", without bfloat16" if found == "float16" else ""))
    elif found != dtype:
        print(f"{dtype} is no faster than float32 on this machine ({reason})")
    if dtype == "bfloat16":
        to_bfloat16(encoder_of(model))
    return dtype


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
    cpuinfo = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        cpuinfo = file.read()
    return of_processor(cpuinfo, os.environ) or _measured()


def note_slow(dtype: str) -> None:
    """Prints a line if "bfloat16" is asked for on a machine where it brings nothing."""
    if dtype == "bfloat16" and fastest()[0] != dtype:
        print(f"bfloat16 is no faster than float32 on this machine ({fastest()[1]}); servers may differ")


def of_gpu(capability: tuple[int, int]) -> tuple[str, str]:
    """The result of `fastest` for GPUs of this compute capability.

    Matrix products have units of their own since 7.0 (Volta), for bfloat16 since 8.0 (Ampere).
    """
    dtype = "bfloat16" if capability >= (8, 0) else "float16" if capability >= (7, 0) else "float32"
    return dtype, "GPU of compute capability {}.{}".format(*capability)


def of_processor(cpuinfo: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The result of `fastest` for an x86 processor; None for others.

    Not by measurement: on a busy machine, two measurements differ by more than the two formats.

    Args:
        cpuinfo: contents of /proc/cpuinfo.
        environment: for the settings that keep TensorFlow from using the instructions.
    """
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    if not found:
        return None
    instructions = [name for name in ("amx_bf16", "avx512_bf16") if name in found[1].split()]
    if not instructions:
        return "float32", "the processor has neither AMX-BF16 nor AVX512-BF16"
    limit, _ = limit_of_onednn(environment)
    for name, slow in (("TF_ENABLE_ONEDNN_OPTS", ("0", "false")), (limit, _WITHOUT_BFLOAT16)):
        if environment.get(name, "").lower() in slow:
            return "float32", f"{name}={environment[name]} rules out the processor's {instructions[0]}"
    return "bfloat16", f"the processor has {instructions[0]}"


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
