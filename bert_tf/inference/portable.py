"""Exports for other runtimes: a directory with the model in one file, which takes token ids, and what belongs to it.

Beside the file are the tokenizer and config.json with the names of the labels, as Transformers has them, so that
Optimum's pipelines open the directory.
"""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import directory as model_directory
from bert_tf.checkpoints.formats import huggingface
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import check_output, replacing_directory, require_space
from bert_tf.inference import litert_model, onnx_model
from bert_tf.inference.embedder import Embedder, StaticEmbedder
from bert_tf.inference.samples import calibration_texts
from bert_tf.inference.saved_model import on_cpu
from bert_tf.inference.token_graph import TokenGraph
from bert_tf.model.compute import converted
from bert_tf.model.encoder import encoder_of
from bert_tf.model.precision.optimize import ranges_of
from bert_tf.model.precision.smoothed import smoothed_forms
from bert_tf.tasks.task import Task
from bert_tf.types import Array


class _Format(Protocol):
    """A module of one format."""

    NAME: str
    RUNTIME: str
    FILE: str
    DTYPE: tf.DType
    OPTIMIZATIONS: tuple[str, ...]
    FIXED_SCALES: bool  # of the inputs of products in int8

    def require(self) -> None:
        """Raises ConfigError if a package is missing."""

    def write(self, graph: TokenGraph, path: str) -> None:
        """Writes a graph."""

    def write_int8(self, graph: TokenGraph, path: str) -> None:
        """Writes a graph, of `smoothed_forms`, with products in int8."""

    def runner(self, path: str) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
        """Opens a file; the result maps inputs to outputs, by name."""


_FORMATS: dict[str, _Format] = {
    "onnx": onnx_model,
    "litert": litert_model,
}  # the others of `session.FORMATS`
# Largest difference of an output from the model's: absolute, or as a part of the range of a row's outputs and 0 if that
# is above 1. Other kernels add in another order, and a masked language model has millions of outputs. Wrong operations
# differ by more: the two forms of GELU, which are among the nearest, by 1e-3.
_ALIKE = 1e-4
# Largest difference of the outputs of an optimized model from float32 (root mean square, relative): more than
# `TOLERANCES` allow for the states of the last layer, because logits can be small; and that from which on it is said.
_DISTANCE, _NEAR = 0.3, 0.05
# A file of protocol buffers has at most as many bytes.
_LARGEST = 2**31 - 1


class ExportedFile(NamedTuple):
    """A model that was written for another runtime.

    Attributes:
        path: of the file; the tokenizer and config.json are beside it.
        task: name of the task.
        inputs: names of the inputs, in their order.
        outputs: names of the outputs.
        checked: what was compared with the model in memory, as text; "" if nothing was compared.
        warnings: what the files beside it lack, and how far an optimized model is from float32 if that is much.
    """

    path: str
    task: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    checked: str
    warnings: tuple[str, ...]


def check_portable(directory: str, format: str, optimize: str) -> None:
    """Refuses an export that cannot be made, before a model is loaded.

    Raises:
        ConfigError: a package is missing, the format does not have this optimization, or the directory exists.
    """
    kind = _FORMATS[format]
    if optimize not in kind.OPTIMIZATIONS:
        raise ConfigError(
            f"optimize is {optimize!r}; expected {' or '.join(map(repr, kind.OPTIMIZATIONS))} in {kind.NAME}"
        )
    check_output(directory, directory=True, new=True)
    kind.require()


def export_portable(
    task: Task,
    model: keras.Model,
    checkpoint: Checkpoint,
    directory: str,
    format: str,
    *,
    check: bool = True,
    optimize: str = "none",
) -> ExportedFile:
    """Writes a model into a new directory, which appears only when it is complete and checked.

    Args:
        task: of the model.
        model: computes in float32.
        checkpoint: the same model, for the files beside it.
        directory: must not exist.
        format: "onnx" or "litert".
        check: whether to compare the outputs of the runtime on sample texts with those of the model.
        optimize: "none" or "int8".

    Raises:
        ConfigError: as for `check_portable`.
        DataError: the format cannot express the model, or the outputs differ.
    """
    check_portable(directory, format, optimize)
    kind = _FORMATS[format]
    size = 4 * model.count_params()
    if size > _LARGEST:
        raise ConfigError(f"the model has {size:,} bytes; a file in {kind.NAME} holds at most {_LARGEST:,}")
    require_space(directory, size, "the model")
    with replacing_directory(directory) as temporary, on_cpu():
        graph = TokenGraph(task, model, kind.DTYPE)
        outputs = tuple(graph.function.get_concrete_function().structured_outputs)
        file = os.path.join(temporary, kind.FILE)
        if optimize == "none":
            kind.write(graph, file)
        else:
            encoder = encoder_of(model)
            ranges = ranges_of(encoder, task.tokenizer, calibration_texts())
            with converted(smoothed_forms(encoder, ranges, clipped=kind.FIXED_SCALES)):
                kind.write_int8(TokenGraph(task, model, kind.DTYPE), file)
        checked, warnings = _checked(graph, kind.runner(file), kind.RUNTIME, optimize) if check else ("", [])
        warnings += huggingface.describe(checkpoint, temporary)
    inputs = tuple(spec.name for spec in graph.specs)
    return ExportedFile(os.path.join(directory, kind.FILE), task.name, inputs, outputs, checked, tuple(warnings))


def export_run(
    model_dir: str, directory: str, format: str, *, check: bool = True, optimize: str = "none"
) -> ExportedFile:
    """Exports the model that a run of `pretrain` or `finetune` wrote; arguments as for `export_portable`."""
    check_portable(directory, format, optimize)
    checkpoint = model_directory.read(model_dir)
    with on_cpu():
        task, model = model_directory.task_and_model(checkpoint, model_dir)
    return export_portable(task, model, checkpoint, directory, format, check=check, optimize=optimize)


def export_embedder(
    embedder: Embedder, directory: str, format: str, *, check: bool = True, optimize: str = "none"
) -> ExportedFile:
    """Exports a model that computes vectors; arguments as for `export_portable`."""
    if isinstance(embedder, StaticEmbedder):
        raise ConfigError(f"format is {format!r}, and a static model, which has no encoder, has 'saved_model' only")
    return export_portable(
        embedder.task, embedder.model, embedder.checkpoint(), directory, format, check=check, optimize=optimize
    )


def summary(exported: ExportedFile) -> str:
    """The lines that a program prints about the file it wrote."""
    checked = f"checked: {exported.checked}" if exported.checked else "not checked"
    inputs, outputs = ", ".join(exported.inputs), ", ".join(exported.outputs)
    lines = [f"{exported.path}: {exported.task}, from {inputs} to {outputs}", checked, *exported.warnings]
    return "\n".join(lines)


def _checked(
    graph: TokenGraph, run: Callable[[Mapping[str, Array]], dict[str, Array]], runtime: str, optimize: str
) -> tuple[str, list[str]]:
    """Runs sample texts; what was compared, as text, and warnings."""
    samples = graph.samples()
    squares, difference, largest, rows = 0.0, 0.0, 0.0, 0
    for inputs in samples:
        expected, found = graph(inputs), run(inputs)
        if found.keys() != expected.keys():
            raise DataError(f"{runtime} returns {', '.join(found)}; expected {', '.join(expected)}")
        rows += len(inputs["input_ids"])
        tokens = inputs["attention_mask"] > 0
        for name, value in expected.items():
            if found[name].shape != value.shape:
                raise DataError(f"{runtime} returns {name} of shape {found[name].shape}; expected {value.shape}")
            per_token = value.shape[: tokens.ndim] == tokens.shape
            for one, other, is_token in zip(found[name].astype(np.float64), value, tokens, strict=True):
                if per_token:  # what is computed at padding means nothing
                    one, other = one[is_token], other[is_token]
                if not np.isfinite(other).all():
                    raise DataError(f"the model itself answers NaN or infinity in {name}; check its training")
                error, span = np.abs(one - other), other.max(initial=0.0) - other.min(initial=0.0)
                # Not max() of Python, which loses NaN.
                largest = float(np.maximum(largest, error.max(initial=0.0) / max(span, 1.0)))
                squares, difference = squares + np.square(other).sum(), difference + np.square(error).sum()
    distance = float(np.sqrt(difference / max(squares, 1e-30)))
    compared = f"{rows} rows of token ids in {len(samples)} batches, run by {runtime}"
    if optimize == "none":
        failed, how = not largest <= _ALIKE, f"outputs as the model's to {largest:.0e}"
        allowed = f"{_ALIKE:.0e}"
    else:
        failed, allowed = not distance <= _DISTANCE, f"{_DISTANCE:.0e}"
        how = f"{optimize}: the outputs differ by {distance:.1e} from float32 (root mean square, relative)"
    if failed:
        raise DataError(
            f"{compared}: {how}; expected at most {allowed}: nothing was exported (--nocheck exports it unchecked)"
        )
    near = optimize == "none" or distance <= _NEAR
    advice = f"{how.removesuffix(')')}; compare its metrics on labelled data with the model's before you use it)"
    return f"{compared}: {how}", [] if near else [advice]
