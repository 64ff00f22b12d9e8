"""The weights of the best evaluation, kept on disk, and early stopping."""

import math
import os
from collections.abc import Iterable, Sequence

import keras

from bert_tf.checkpoints.tensor import tensor_of_variable
from bert_tf.checkpoints.tensor_files.safetensors import metadata, open_tensors, write_tensors
from bert_tf.config import TrainConfig
from bert_tf.errors import DataError
from bert_tf.files import numbers_of, remove_leftovers
from bert_tf.model.encoder import ranges_of
from bert_tf.progress import log
from bert_tf.types import Json, Metrics


class BestWeights:
    """Keeps the weights of the best evaluation so far; does nothing unless `config.keep_best`.

    Both the best evaluation and the number of evaluations since then follow from the list of evaluations alone. So a
    run that was killed and resumed decides as it would have without the interruption:

    - Weights are written before their evaluation is recorded: a recorded evaluation never lacks them.
    - A run falls back to a checkpoint, and the evaluations after it are removed. So for each checkpoint that is kept,
      the best weights up to that checkpoint are kept, too: at most one file per checkpoint, and the overall best.

    Args:
        folder: of the checkpoints; gets files best-STEP.safetensors.
        monitor: name of the metric that decides. Of equal values the first is the best; NaN never is.
        mode: "max" or "min".
        config: resolved (`TrainConfig.resolved`).
        write: False in workers other than the chief.
    """

    def __init__(
        self, folder: str, model: keras.Model, monitor: str, mode: str, config: TrainConfig, *, write: bool = True
    ) -> None:
        self._folder, self._model, self._config, self._write = folder, model, config, write
        self._monitor, self._sign = monitor, {"max": 1.0, "min": -1.0}[mode]

    def remove_after(self, step: int) -> None:
        """Removes the weights that an earlier process kept after `step`, from which this one resumes."""
        if self._write:
            remove_leftovers(self._folder)
            for later in self._kept():
                if later > step:
                    os.remove(self._path(later))

    def lost(self, evaluations: Iterable[Json], step: int) -> bool:
        """Whether the evaluation of any weights that were kept before `step` is missing."""
        return any(kept < step for kept in set(self._kept()) - {row["step"] for row in evaluations})

    def update(self, evaluations: Sequence[Json], step: int, metrics: Metrics, checkpoints: Iterable[int]) -> None:
        """Keeps the current weights if they are the best so far.

        Args:
            evaluations: `History.evaluations`, without this one.
            step: updates done.
            metrics: of this evaluation.
            checkpoints: `Checkpoints.steps`.

        Raises:
            OSError: the weights cannot be written, e.g. because the disk is full.
        """
        evaluations = [*evaluations, {"step": step} | metrics]
        if not self._config.keep_best or not self._write or self.step(evaluations) != step:
            return
        os.makedirs(self._folder, exist_ok=True)
        tensors = {path: tensor_of_variable(variable) for path, variable in self._variables().items()}
        write_tensors(self._path(step), tensors, step=str(step))
        needed = {self.step([row for row in evaluations if row["step"] <= until]) for until in (*checkpoints, step)}
        for other in set(self._kept()) - needed:
            os.remove(self._path(other))

    def step(self, evaluations: Iterable[Json]) -> int | None:
        """The step of the best evaluation; None if there are no evaluations or all are nan."""
        rows = [row for row in evaluations if not math.isnan(row.get(self._monitor, math.nan))]
        return max(rows, key=lambda row: self._sign * row[self._monitor])["step"] if rows else None

    def exhausted(self, evaluations: Sequence[Json]) -> bool:
        """Whether the last `train.patience` evaluations have not improved on an earlier one."""
        if not self._config.patience:
            return False
        best = self.step(evaluations)
        since = [row for row in evaluations if best is None or row["step"] > best]
        return len(since) >= self._config.patience

    def restore(self, evaluations: Sequence[Json]) -> int | None:
        """Loads the best weights that were kept into the chief's model, which is the model that is saved.

        If the file of the best evaluation is missing or damaged, logs a line and takes the next best.

        Returns:
            Their step; None if no weights were kept: then nothing is changed.
        """
        if not self._config.keep_best:
            return None
        if not self._write:
            return self.step(evaluations)
        rows = list(evaluations)
        while (step := self.step(rows)) is not None:
            try:
                self._load(step)
                return step
            except DataError as error:
                rows = [row for row in rows if row["step"] != step and row["step"] in self._kept()]
                instead = self.step(rows)
                found = "those of the last update" if instead is None else f"those of the evaluation at step {instead}"
                log(f"{error}; instead of these best weights, the model gets {found}")
        return None

    def _load(self, step: int) -> None:
        path = self._path(step)
        if not os.path.exists(path):
            raise DataError(f"{path} is missing")
        written = metadata(path).get("step")
        if written != str(step):
            raise DataError(f"{path} holds the weights of step {written or 'unknown'}")
        tensors = open_tensors(path)
        variables = self._variables()
        shapes = {path: tuple(variable.shape) for path, variable in variables.items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != shapes:
            raise DataError(f"{path} holds the weights of another model")
        for tensor in tensors.values():  # first, so that damaged ones change nothing
            tensor.read()
        for path, variable in variables.items():
            variable.assign(tensors[path].read())

    def _variables(self) -> dict[str, keras.Variable]:
        return {variable.path: variable for variable in self._model.weights} | ranges_of(self._model).by_path

    def _kept(self) -> list[int]:
        return numbers_of(self._folder, "best-", ".safetensors")

    def _path(self, step: int) -> str:
        return os.path.join(self._folder, f"best-{step}.safetensors")
