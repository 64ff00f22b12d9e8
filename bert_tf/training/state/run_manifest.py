"""run.json: identifies the run that owns a model directory and decides whether it may resume with changed settings."""

import contextlib
import glob
import json
import os
from collections.abc import Iterator
from typing import Any

from bert_tf.checkpoints.directory import FILES
from bert_tf.checkpoints.run_files import read_run
from bert_tf.errors import ConfigError
from bert_tf.files import check_output, remove_leftovers, write_json
from bert_tf.training.reporter import CURVES, PAGE
from bert_tf.types import Json

# Settings that may change when a run resumes: weights, losses and the order of the data stay bit for bit the same. Any
# setting not listed counts as changing them, new ones too. Left out on purpose: train.remat and train.accumulation
# (another order of summation, so other rounding), validation (its curve would mix two data sets), train.steps (it
# determines the learning rate), replicas (each has its own dropout seed).
RESUMABLE_FIELDS = {
    # Paths: the contents of the files are compared instead, in `inputs`.
    "data_dir": "a path",
    "init": "a path",
    "teacher": "a path",
    "config.task.teacher": "a path",
    "config.input": "a path",
    "config.validation": "a path",
    "config.data.languages": "paths; their names are compared in `inputs`",
    "config.tokenizer.vocab": "a path",
    # None stands for what the vocabulary decides; the settings in use are compared with its contents, in `inputs`.
    "config.tokenizer.lower_case": "in `inputs`",
    "config.tokenizer.strip_accents": "in `inputs`",
    "config.tokenizer.split_cjk": "in `inputs`",
    "config.data.train": "a path",
    "config.data.validation": "a path",
    "config.data.test": "a path",
    "config.distillation.texts": "a path",
    "config.distillation.answers": "a path",
    # When metrics are logged and state is saved; steps_per_call groups updates, each of which is computed by itself.
    "config.train.steps_per_call": "grouping",
    "config.train.log_every": "grouping of the curves",
    "config.train.evaluate_every": "reads the weights only, unless keep_best: see `differences`",
    "config.train.save_every": "reads the weights only",
    "config.train.keep": "reads the weights only",
    # Whether a run ends early, not its computations until then.
    "config.train.on_save_error": "a former limit, in the run.json of earlier runs",
    "config.train.max_nonfinite_steps": "limit",
    "config.data.max_bad_share": "limit",
    "config.callbacks": "read the weights, or end the run",
    # Where the same batches are made; masks are integers, so no compiler rounds them.
    "config.data.service": "where batches are made",
    "config.data.service_workers": "where batches are made",
    "config.data.mask_on": "where batches are made",
    # Only a name for settings that are compared individually.
    "config.train.recipe": "a name",
}


class AnotherRunError(ConfigError):
    """A directory belongs to another run, or holds files that are not of a run.

    Args:
        found: what was found.
        remedy: what to do.
    """

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}; {remedy}")
        self.found = found


@contextlib.contextmanager
def remedy(text: str) -> Iterator[None]:
    """Replaces the remedy in each `AnotherRunError`, for programs that choose the model directories themselves."""
    try:
        yield
    except AnotherRunError as error:
        raise AnotherRunError(error.found, text) from None


class RunManifest:
    """The identity of a run, in run.json.

    Args:
        directory: the model directory.
        run: JSON-ready: everything that determines the run's result, and the settings in `RESUMABLE_FIELDS`.
        accept: whether the run may resume if its result would be different.

    Raises:
        AnotherRunError: the directory holds other files, or a run with a different result.
        ConfigError: a file that the run will write would replace a directory, or the reverse.
    """

    def __init__(self, directory: str, run: Json, accept: bool = False) -> None:
        self._path = os.path.join(directory, "run.json")
        self._run: Json = json.loads(json.dumps(run))
        self._history: list[Json] = []
        self._changes: dict[str, list[Any]] = {}
        if not os.path.exists(self._path):
            names = os.listdir(directory) if os.path.isdir(directory) else []
            # Without hidden ones: the lock, and what a run that was killed while it wrote run.json has left.
            found = [name for name in names if not name.startswith(".")]
            if found:
                raise AnotherRunError(
                    f"{directory} is not empty (it holds {min(found)!r}) and has no run of bert_tf",
                    "choose another --model_dir",
                )
        # Else a run failed before its first checkpoint, often because of a setting that has been fixed since.
        elif has_progress(directory):
            before = read_run(self._path)
            self._history = before.pop("changes", [])
            if before.get("program") != run.get("program"):
                raise AnotherRunError(
                    f"{directory} belongs to another run ({before.get('program')} there, {run.get('program')} now)",
                    "choose another --model_dir",
                )
            self._changes = differences(before, self._run)
            if self._changes and not accept:
                shown = ", ".join(f"{name}: {a!r} there, {b!r} now" for name, (a, b) in self._changes.items())
                raise AnotherRunError(
                    f"{directory} belongs to another run ({shown})",
                    "choose another --model_dir, or accept the changes with --accept_config_change",
                )
        # Before the run, not when it is over.
        for name in (*FILES, CURVES, PAGE):
            check_output(os.path.join(directory, name))
        for name in ("checkpoints", "tensorboard"):
            check_output(os.path.join(directory, name), directory=True)

    def claim(self) -> None:
        """Writes run.json if there is none: before other files than a run's, which would be another owner's."""
        if not os.path.exists(self._path):
            self.write(0)

    def write(self, step: int) -> None:
        """Writes run.json again once it is certain that the run can resume from `step`, with the changes at this step.

        For several runs, `step` is the number of finished runs.
        """
        if self._changes:
            self._history.append({"step": step, "changes": self._changes})
            self._changes = {}
        directory = os.path.dirname(self._path)
        os.makedirs(directory, exist_ok=True)
        remove_leftovers(directory)  # one may be as large as the model
        write_json(self._path, self.value)

    @property
    def value(self) -> Json:
        """The contents of run.json: the run and, if it was ever resumed with changed settings, `changes`.

        `changes` is a list of dicts: step, and changes, a dict of name -> [value before, value from that step on].
        """
        return self._run | ({"changes": self._history} if self._history else {})


def has_progress(directory: str) -> bool:
    """Whether there are results to lose: checkpoints or a model, or, for several runs, those of one of them."""
    signs = ("checkpoints", "config.json", "*/checkpoints", "*/results.json")
    return any(glob.glob(os.path.join(glob.escape(directory), sign)) for sign in signs)


def differences(before: Json, now: Json) -> dict[str, list[Any]]:
    """Settings that affect the result and differ: name -> [value before, value now]; None for a missing value."""
    before, now = dict(_flat(before)), dict(_flat(now))
    names = sorted(before.keys() | now.keys())
    # With keep_best, the choice of evaluations affects which model is kept, and where `patience` ends the run.
    free = RESUMABLE_FIELDS.keys() - (
        {"config.train.evaluate_every"} if before.get("config.train.keep_best") else set()
    )
    if not now.get("config.search"):  # nothing reads the grid, whose defaults have changed
        free |= {name for name in names if name.startswith("config.grid.")}
    changed = [name for name in names if name not in free and before.get(name) != now.get(name)]
    return {name: [before.get(name), now.get(name)] for name in changed}


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) of every nested value."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, inner in items:
            yield from _flat(inner, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, value
