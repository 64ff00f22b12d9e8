"""The weights of the best evaluation, on disk, and when a run has not become better for too long."""

import math
import os
import re

from bert_tf.checkpoints.tensor import tensor_of_variable
from bert_tf.checkpoints.tensor_files.safetensors import open_tensors, write_tensors
from bert_tf.errors import DataError
from bert_tf.files import leftovers
from bert_tf.progress import log


class Best:
    """Keeps the weights of the best evaluation so far; does nothing unless `config.keep_best`.

    What was best, and since when nothing was better, follows from the evaluations alone. So a run that was killed and
    goes on decides as it would have in peace:

    - Weights are written before their evaluation is noted: a noted one never lacks them.
    - A run falls back to a checkpoint, and evaluations after it are forgotten. So for each checkpoint that is kept,
      the weights of what was best until then are kept, too: at most one file a checkpoint, and the best of all.

    Args:
        folder: of the checkpoints; gets files best-STEP.safetensors.
        model: keras.Model.
        monitor: name of the metric that decides. Of equal values the first is the best; NaN never is.
        mode: "max" or "min".
        config: TrainConfig, resolved.
        write: False in workers other than the chief.
    """

    def __init__(self, folder, model, monitor, mode, config, *, write=True):
        self._folder, self._model, self._config, self._write = folder, model, config, write
        self._name, self._sign = monitor, {"max": 1.0, "min": -1.0}[mode]

    def forget(self, step):
        """Removes what an earlier process kept of evaluations after `step`, from which this one goes on."""
        if self._write:
            for path in leftovers(self._folder):
                os.remove(path)
            for later in self._kept():
                if later > step:
                    os.remove(self._path(later))

    def offer(self, evaluations, step, metrics, checkpoints):
        """Keeps the weights as they are now if they are the best so far.

        Args:
            evaluations: list of dicts, `History.evaluations`, without this one.
            step: updates done.
            metrics: dict name -> float, what this evaluation found.
            checkpoints: `Checkpoints.steps`.

        Raises:
            OSError: with train.on_save_error "stop", if there is no room.
        """
        evaluations = [*evaluations, {"step": step} | metrics]
        if not self._config.keep_best or not self._write or self.step(evaluations) != step:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
            write_tensors(
                self._path(step), {variable.path: tensor_of_variable(variable) for variable in self._model.weights}
            )
        except OSError as error:
            if self._config.on_save_error == "stop":
                raise
            log(f"{self._path(step)} could not be written: {error.strerror}; training goes on (train.on_save_error)")
            return
        needed = {self.step([row for row in evaluations if row["step"] <= until]) for until in (*checkpoints, step)}
        for other in set(self._kept()) - needed:
            os.remove(self._path(other))

    def step(self, evaluations):
        """The step of the best of these evaluations; None if there is none or all are nan."""
        found = [row for row in evaluations if not math.isnan(row[self._name])]
        return max(found, key=lambda row: self._sign * row[self._name])["step"] if found else None

    def exhausted(self, evaluations):
        """Whether `train.patience` evaluations in a row have not been better than one before them."""
        if not self._config.patience:
            return False
        best = self.step(evaluations)
        since = [row for row in evaluations if best is None or row["step"] > best]
        return len(since) >= self._config.patience

    def restore(self, evaluations):
        """Gives the chief's model, which is the one that is saved, the best weights that were kept.

        Returns:
            their step; None where none were: then nothing is changed.

        Raises:
            DataError: the file can not be read.
        """
        if not self._config.keep_best:
            return None
        if not self._write:
            return self.step(evaluations)
        kept = set(self._kept())
        step = self.step([row for row in evaluations if row["step"] in kept])
        if step is None:
            return None
        tensors = open_tensors(self._path(step))
        if tensors.keys() != {variable.path for variable in self._model.weights}:
            raise DataError(f"{self._path(step)} holds another model; remove it and train again")
        for variable in self._model.weights:
            variable.assign(tensors[variable.path].read())
        return step

    def _kept(self):
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        return [int(match[1]) for match in (re.fullmatch(r"best-(\d+)\.safetensors", name) for name in names) if match]

    def _path(self, step):
        return os.path.join(self._folder, f"best-{step}.safetensors")
