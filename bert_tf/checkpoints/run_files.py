"""The files of a training run that are read beside its model: run.json, results.json and its newest checkpoint."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.checkpoints.tensor_files.bundles import listed, open_bundle
from bert_tf.checkpoints.weight_map import TensorMapping, read_mapped
from bert_tf.config import RunRecord
from bert_tf.config.values import Rule
from bert_tf.errors import DataError
from bert_tf.files import checked, read_json
from bert_tf.types import Json, Shapes

RUN, RESULTS = "run.json", "results.json"
FILES = (RUN, "history.jsonl", RESULTS)

_Metrics = dict[str, float | str | None]  # null for nan, and the kind of a row


class _Results(RunRecord, total=False):
    task: str
    measure: tuple[str, Annotated[str, Rule(choices=("min", "max"))]]
    steps: int
    seconds: float
    final: _Metrics
    baseline: _Metrics
    history: list[_Metrics]
    evaluations: list[_Metrics]


def read_results(folder: str) -> Json:
    """Reads results.json in the folder of a run; empty if the run has not finished."""
    path = os.path.join(folder, RESULTS)
    return read_run(path, _Results) if os.path.exists(path) else {}


def read_run(path: str, kind: type[Any] = RunRecord) -> Json:
    """Reads a run.json or, of another `kind`, the same with results."""
    return checked(read_json(path, Json), kind, path)


def read_optimizer(folder: str, shapes: Shapes, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int | None]:
    """Adam's moments under "PATH/m" and "PATH/v" and the number of updates, from a run's newest checkpoint.

    Args:
        folder: of the run.
        shapes: of the moments by path.
        tensors: of the model; DataError if the checkpoint is of another step.

    Returns:
        {} and None if there is no checkpoint.
    """
    prefix = listed(os.path.join(folder, "checkpoints"))
    if not prefix or not os.path.exists(f"{prefix}.index"):
        return {}, None
    store = open_bundle(prefix)
    weight, step = "embeddings/norm/gamma", _in_run("state")
    names = {name: f"slots/{name}" for name in shapes} | {weight: f"weights/{weight}"}
    table = {path: TensorMapping((_in_run(name),)) for path, name in names.items()}
    found = read_mapped(table, {**shapes, weight: tensors[weight].shape}, store, prefix)
    if step not in store or not np.array_equal(found.pop(weight).read(), tensors[weight].read()):
        raise DataError(f"{prefix} is of another step than the model; let the run finish")
    return found, int(store[step].read()[0])


def _in_run(name: str) -> str:
    """The name of a variable in a checkpoint of `training.state.checkpoints`; tf.train.Checkpoint doubles the dots."""
    return f"{name.replace('/', '..')}/.ATTRIBUTES/VARIABLE_VALUE"
