"""Whose run a model directory holds: run.json, and what may change when a run goes on."""

import contextlib
import glob
import json
import os

from bert_tf.config import run_with_new_names
from bert_tf.errors import ConfigError
from bert_tf.files import leftovers, read_json_object, write_json

# Settings that a run may go on with changed: weights, losses and the order of the data stay bit for bit what they would
# have been. Whatever is not listed counts as changing them, new settings too. What is left out on purpose: train.remat
# and train.accumulation (another order of sums, so other rounding), validation (its curve would be of two different
# things), train.steps (it decides the learning rate), replicas (the dropout of each has a seed of its own).
RESUMABLE_FIELDS = {
    # Paths: what the files hold is compared instead, in `inputs`.
    "data_dir": "a path",
    "init": "a path",
    "config.input": "a path",
    "config.validation": "a path",
    "config.tokenizer.vocab": "a path",
    "config.data.train": "a path",
    "config.data.validation": "a path",
    "config.data.test": "a path",
    # What is seen and saved, and when; steps_per_call is how many updates lie between looks, each computed alone.
    "config.train.steps_per_call": "grouping",
    "config.train.log_every": "grouping of the curves",
    "config.train.evaluate_every": "reads the weights only, where `differences` says so",
    "config.train.save_every": "reads the weights only",
    "config.train.keep": "reads the weights only",
    # Whether a run ends early, not what it computes until then.
    "config.train.on_save_error": "limit",
    "config.train.max_nonfinite_steps": "limit",
    "config.data.max_bad_share": "limit",
    # Where the same batches are made; masks are integers, which no compiler rounds.
    "config.data.service": "where batches are made",
    "config.data.service_workers": "where batches are made",
    "config.data.mask_on": "where batches are made",
    # Only a name for settings that are compared each by itself.
    "config.train.recipe": "a name",
}


class AnotherRunError(ConfigError):
    """A directory is another run's, or nobody's.

    Args:
        found: what lies in it.
        remedy: what to do.
    """

    def __init__(self, found, remedy):
        super().__init__(f"{found}; {remedy}")
        self.found = found


@contextlib.contextmanager
def remedy(text):
    """Says of directories that are another run's to do this, for programs that choose the model directories."""
    try:
        yield
    except AnotherRunError as error:
        raise AnotherRunError(error.found, text) from None


class RunManifest:
    """The record of a run, in run.json.

    Args:
        directory: the model directory.
        run: dict, JSON-ready: what decides the run's result, and the settings in `RESUMABLE_FIELDS`.
        accept: whether the run may go on where the two differ.

    Raises:
        AnotherRunError: another thing lies there, or a run whose result would be another; says what differs.
    """

    def __init__(self, directory, run, accept=False):
        self._path, self._run = os.path.join(directory, "run.json"), json.loads(json.dumps(run))
        self._history, self._changes = [], {}
        if not os.path.exists(self._path):
            found = set(os.listdir(directory)) if os.path.isdir(directory) else set()
            # A run that was killed while it wrote its record may begin again.
            found -= {os.path.basename(path) for path in leftovers(directory)}
            if found:
                raise AnotherRunError(
                    f"{directory} is not empty (it holds {min(found)!r}) and no run of bert_tf",
                    "choose another --model_dir",
                )
        # Else a run failed before it had learned anything, often for a setting mended since.
        elif _has_begun(directory):
            before = run_with_new_names(read_json_object(self._path))
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
                    "choose another --model_dir, or let this run go on changed with --accept_config_change",
                )

    def write(self, step):
        """Writes the record anew, once it is known that the run can go on from `step`; keeps what has changed there.

        Of several runs `step` is the number of those that have ended.
        """
        if self._changes:
            self._history.append({"step": step, "changes": self._changes})
            self._changes = {}
        directory = os.path.dirname(self._path)
        os.makedirs(directory, exist_ok=True)
        for path in leftovers(directory):  # one may be as large as the model
            os.remove(path)
        write_json(self._path, self.value)

    @property
    def value(self):
        """dict, what run.json holds: the run and, if it ever went on changed, `changes`.

        `changes` is a list of dicts: step, and changes, a dict of name -> [value before, value from that step on].
        """
        return self._run | ({"changes": self._history} if self._history else {})


def _has_begun(directory):
    """Whether a run there has learned something: it has checkpoints or, if it is several runs, one of these has or is
    at its end, where checkpoints are removed.
    """
    signs = ("checkpoints", "*/checkpoints", "*/results.json")
    return any(glob.glob(os.path.join(glob.escape(directory), sign)) for sign in signs)


def differences(before, now):
    """What of two records decides the result and differs: dict name -> [value before, value now]; None for none."""
    before, now = dict(_flat(before)), dict(_flat(now))
    names = sorted(before.keys() | now.keys())
    # Of which evaluations there are, the best decides which model is kept, and where `patience` ends the run.
    free = RESUMABLE_FIELDS.keys() - (
        {"config.train.evaluate_every"} if before.get("config.train.keep_best") else set()
    )
    changed = [name for name in names if name not in free and before.get(name) != now.get(name)]
    return {name: [before.get(name), now.get(name)] for name in changed}


def _flat(value, prefix=""):
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, inner in items:
            yield from _flat(inner, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, value
