"""Training state on disk: the last N checkpoints, and the record of whose they are."""

import json
import os

import tensorflow as tf

from bert_tf.errors import BertTfError, ConfigError
from bert_tf.files import read_json, write_text


def claim(directory, run):
    """Takes `directory` for the run that the dict `run` describes, or finds that it is this run's already.

    Raises:
        ConfigError: if another run's or other things lie there, with what differs.
    """
    path = os.path.join(directory, "run.json")
    if not os.path.exists(path):
        if os.path.isdir(directory) and os.listdir(directory):
            found = sorted(os.listdir(directory))[0]
            raise ConfigError(
                f"{directory} is not empty (it holds {found!r}) and no run of bert_tf; choose another --model_dir"
            )
        os.makedirs(directory, exist_ok=True)
        write_text(path, json.dumps(run, indent=1, ensure_ascii=False))
        return
    if not os.path.exists(os.path.join(directory, "checkpoints")):
        # A run that failed before it had learned anything, often for a setting that has been mended since.
        write_text(path, json.dumps(run, indent=1, ensure_ascii=False))
        return
    before, now = (dict(_flat(value)) for value in (read_json(path), run))
    differing = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if differing:
        shown = ", ".join(f"{name}: {before.get(name)!r} there, {now.get(name)!r} now" for name in differing[:5])
        raise ConfigError(f"{directory} belongs to another run ({shown}); choose another --model_dir or remove it")


def _flat(value, prefix=""):
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, json.loads(json.dumps(value))


class Checkpoints:
    """Saves and restores named tf.Variables.

    Args:
        directory: where the checkpoints go.
        variables: dict name -> tf.Variable.
        keep: how many to keep.
    """

    def __init__(self, directory, variables, keep):
        self._checkpoint = tf.train.Checkpoint(**{_attribute(name): variable for name, variable in variables.items()})
        # The manager writes the data first and then, by renaming, the file that names the newest: a kill in between
        # leaves the one before in force.
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, directory, max_to_keep=keep, checkpoint_name="step"
        )

    def restore(self, report):
        """Restores the newest checkpoint that can be read; True if there was one. `report` gets a line on each bad one.

        Raises:
            BertTfError: if there are checkpoints and none can be read.
        """
        for path in reversed(self._manager.checkpoints):
            try:
                self._checkpoint.restore(path).assert_consumed()
                return True
            except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:  # IndexError: cut short
                report(f"{path} can not be read ({' '.join(str(error).split())[:120]}); trying the one before")
        if self._manager.checkpoints:
            raise BertTfError(
                f"{self._manager.directory}: no checkpoint can be read; remove the directory to start again"
            )
        return False

    def save(self, step):
        """Writes a checkpoint.

        Raises:
            BertTfError: if it can not be written, e.g. because the disk is full; those before it are kept.
        """
        try:
            self._manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            reason = " ".join(str(getattr(error, "message", error)).split())[:200]
            kept = self._manager.latest_checkpoint or "none"
            raise BertTfError(
                f"checkpoint of step {step} could not be written: {reason}; last good one: {kept}"
            ) from None


def _attribute(name):
    return name.replace("/", ".")
