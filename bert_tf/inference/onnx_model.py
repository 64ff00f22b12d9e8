"""ONNX: conversion by tf2onnx, int8 as Optimum has it, and answers of ONNX Runtime."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.inference.token_graph import TokenGraph
from bert_tf.types import Array

NAME, RUNTIME, FILE = "ONNX", "ONNX Runtime", "model.onnx"
DTYPE = tf.int64  # of the ids, as Transformers' tokenizers return them
OPTIMIZATIONS: tuple[str, ...] = ("none", "int8")
# The newest whose ops tf2onnx 1.17 writes; ONNX Runtime reads it since 1.14.
_OPSET = 18


def require() -> None:
    """Raises ConfigError if a package is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'bert_tf[onnx]'") from None


def write(graph: TokenGraph, path: str, optimize: str) -> None:
    """Writes a graph.

    In int8, weights are rounded per column when the file is written, and the inputs of each product when it is
    computed (ONNX Runtime's dynamic quantization). Weights have 7 bits: processors with AVX2 or AVX-512 but without
    VNNI add pairs of products in 16 bits, which those of 8 bits overflow, so that answers would differ between
    processors.

    Args:
        graph: with inputs of `DTYPE`.
        path: of the file.
        optimize: one of `OPTIMIZATIONS`.

    Raises:
        DataError: ONNX lacks an op of the graph.
    """
    import onnx
    import tf2onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _without_messages():
        model, _ = tf2onnx.convert.from_function(graph.function, input_signature=graph.specs, opset=_OPSET)
    model.producer_name, model.producer_version, model.graph.doc_string = "bert_tf", "", ""
    for value in (*model.graph.input, *model.graph.output):
        for axis, size in zip(graph.axes, value.type.tensor_type.shape.dim, strict=False):
            if not size.dim_value:
                size.dim_param = axis
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise DataError(f"ONNX cannot express this model: {str(error).splitlines()[0]}") from None
    if optimize == "none":
        onnx.save(model, path)
        return
    # Its temporary files would otherwise stay if it fails.
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder, _without_messages():
        source = os.path.join(folder, FILE)
        onnx.save(model, source)
        quantize_dynamic(source, path, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)


def runner(path: str) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Opens a file; the result maps inputs to outputs, by name.

    Raises:
        DataError: ONNX Runtime cannot load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of several classes, which the package does not export
        raise DataError(f"ONNX Runtime cannot load the model: {str(error).splitlines()[0]}") from None
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
    """Hides what tf2onnx and the quantization log about their steps."""
    loggers = [logging.getLogger(), logging.getLogger("tf2onnx")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
