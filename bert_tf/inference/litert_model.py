"""LiteRT, the former TensorFlow Lite: conversion by TensorFlow, int8, and answers of its interpreter."""

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from bert_tf import quiet
from bert_tf.errors import ConfigError, DataError
from bert_tf.inference.saved_model import save_graphs
from bert_tf.inference.token_graph import TokenGraph
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.types import Array

NAME, RUNTIME, FILE = "LiteRT", "LiteRT", "model.tflite"
DTYPE = tf.int32  # of the ids, which phones compute fastest
OPTIMIZATIONS: tuple[str, ...] = ("none", "int8")
FIXED_SCALES = False


def require() -> None:
    """Raises ConfigError if a package is missing."""
    try:
        import ai_edge_litert.interpreter  # noqa: F401
    except ImportError:
        raise ConfigError("ai-edge-litert is not installed; pip install 'bert_tf[litert]'") from None


def write(graph: TokenGraph, path: str) -> None:
    """Writes a graph, with one signature.

    Args:
        graph: with inputs of `DTYPE`.
        path: of the file.

    Raises:
        DataError: LiteRT lacks an op of the graph. Flex, which has all of TensorFlow's, is not in its packages.
    """
    _write(graph, path, [])


def write_int8(graph: TokenGraph, path: str) -> None:
    """Writes a graph with products in int8; arguments and errors as for `write`.

    Weights are rounded when the file is written, per column, and the inputs of products when they are computed, with a
    scale for each row (dynamic range quantization).
    """
    _write(graph, path, [tf.lite.Optimize.DEFAULT])


def _write(graph: TokenGraph, path: str, optimizations: list[Any]) -> None:
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder, quiet.standard_error_closed():
        save_graphs({DEFAULT: graph.function.get_concrete_function()}, folder)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[DEFAULT])
        converter.optimizations = optimizations
        try:
            model = converter.convert()
        except Exception as error:  # of a class that TensorFlow does not export
            ops = set(re.findall(r"(?:'tf\.|fused\[\")(\w+)(?:' op|:\", )", str(error))) - {"StatefulPartitionedCall"}
            named = ", ".join(sorted(ops)) or str(error).splitlines()[0]
            raise DataError(f"LiteRT lacks operations of this model ({named}); --format=onnx may have them") from None
    with open(path, "wb") as file:
        file.write(model)


def runner(path: str) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Opens a file; the result maps inputs to outputs, by name.

    Raises:
        DataError: LiteRT cannot load it.
    """
    from ai_edge_litert.interpreter import Interpreter

    try:
        with quiet.standard_error_closed():
            signature = Interpreter(path).get_signature_runner(DEFAULT)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"LiteRT cannot load the model: {str(error).splitlines()[0]}") from None

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with quiet.standard_error_closed():  # it tells which kernels it uses
            return dict(signature(**inputs))

    return run
