"""ONNX: conversion by tf2onnx, int8 in ONNX's own operations, and answers of ONNX Runtime."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.inference.token_graph import TokenGraph
from bert_tf.processor_flags import all_flags
from bert_tf.types import Array

NAME, RUNTIME, FILE = "ONNX", "ONNX Runtime", "model.onnx"
DTYPE = tf.int64  # of the ids, as Transformers' tokenizers return them
OPTIMIZATIONS: tuple[str, ...] = ("none", "int8")
FIXED_SCALES = True
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


def write(graph: TokenGraph, path: str) -> None:
    """Writes a graph.

    Args:
        graph: with inputs of `DTYPE`.
        path: of the file.

    Raises:
        DataError: ONNX lacks an op of the graph.
    """
    import onnx

    onnx.save(_converted(graph), path)


def write_int8(graph: TokenGraph, path: str) -> None:
    """Writes a graph of `smoothed_forms` with products in int8; arguments and errors as for `write`.

    Weights have a scale for each column, and the inputs of products a fixed one, so that answers do not depend on the
    other rows of a batch. Weights have 8 bits if this processor has VNNI, otherwise 7: those without it add pairs of
    products in 16 bits, which overflow if both factors have 8.

    The product with the whole vocabulary, of a masked language model, finds the scale of its input when it is computed,
    as no calibration has it. Poolers and other heads, which are small, stay in float32.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = _converted(graph)
    weights = {one.name: list(one.dims) for one in model.graph.initializer}
    _quantize_smoothed(model, 127 if _has_vnni() else 63)
    products = [node for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in weights]
    large = [node.name for node in products if graph.vocab_size in weights[node.input[1]]]
    if not large:
        onnx.save(model, path)
        return
    # Its temporary files would otherwise stay if it fails.
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder, _without_messages():
        source = os.path.join(folder, FILE)
        onnx.save(model, source)
        options = {"reduce_range": not _has_vnni(), "nodes_to_quantize": large}
        quantize_dynamic(source, path, per_channel=True, weight_type=QuantType.QInt8, **options)


def _has_vnni() -> bool:
    return not all_flags().isdisjoint(("avx512_vnni", "avx_vnni", "amx_int8"))


def _converted(graph: TokenGraph) -> Any:
    """The graph as onnx.ModelProto."""
    import onnx
    import tf2onnx

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
    return model


def _quantize_smoothed(model: Any, steps: int) -> None:
    """Rounds the products whose inputs are clipped by constants, and the bias if they add one.

    ONNX Runtime replaces the operations around each by one product of int8.

    Args:
        model: onnx.ModelProto; changed.
        steps: the largest whole number of a weight.
    """
    from onnx import helper, numpy_helper

    constants = {one.name: one for one in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    readers = {name: node for node in model.graph.node for name in node.input}
    nodes, replaced = list[Any](), set[str]()

    def value(name: str) -> Array:
        return numpy_helper.to_array(constants[name])

    def constant(name: str, array: Array) -> str:
        if name not in constants:
            constants[name] = numpy_helper.from_array(array, name)
        return name

    for node in model.graph.node:
        clip = producers.get(node.input[0]) if node.op_type == "MatMul" else None
        if not clip or clip.op_type != "Clip":
            if node.output[0] not in replaced:
                nodes.append(node)
            continue
        (product,), kernel, added = node.output, node.input[1], readers[node.output[0]]
        bias = next((name for name in added.input if added.op_type == "Add" and name in constants), None)
        low, high = (float(value(name)) for name in clip.input[1:])
        scale = (high - low) / 255
        weights = value(kernel)
        start = value(bias).ravel() if bias else np.zeros(weights.shape[1])
        # Columns of zeros, as after pruning, have a bias, too, which must fit into 32 bits.
        least = np.maximum(np.abs(start) / (scale * 2**30), 1e-30)
        columns = np.maximum(np.abs(weights).max(0) / steps, least)
        step, zero = constant(f"{product}/step", np.array(scale, np.float32)), np.array(round(-low / scale), np.uint8)
        around = constant(f"{product}/zero", zero)
        rounded = constant(f"{kernel}/int8", np.round(weights / columns).astype(np.int8))
        scales = constant(f"{kernel}/scales", columns.astype(np.float32))
        # Zeros are the default, but without them ONNX Runtime computes in float32.
        zeros = constant(f"{kernel}/zeros", np.zeros(columns.shape, np.int8))
        sums = np.float32(scale) * columns.astype(np.float32)
        steps_of_bias = constant(f"{product}/bias", np.round(start / sums).astype(np.int32))
        results = added.output if bias else node.output
        nodes += [
            helper.make_node("QuantizeLinear", [clip.input[0], step, around], [f"{product}/rounded"]),
            helper.make_node("DequantizeLinear", [f"{product}/rounded", step, around], [f"{product}/rows"]),
            helper.make_node("DequantizeLinear", [rounded, scales, zeros], [f"{product}/kernel"], axis=1),
            helper.make_node(
                "DequantizeLinear", [steps_of_bias, constant(f"{product}/sums", sums)], [f"{product}/start"], axis=0
            ),
            helper.make_node("Gemm", [f"{product}/{part}" for part in ("rows", "kernel", "start")], [*results]),
        ]
        replaced |= {*results}
    read = {name for node in nodes for name in node.input}
    nodes = [node for node in nodes if node.op_type != "Clip" or node.output[0] in read]
    used = {name for node in nodes for name in node.input}
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(one for name, one in constants.items() if name in used)


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
