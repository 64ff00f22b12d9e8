"""Where the input pipeline stood at each checkpoint: a run goes on without reading again what it has read."""

import contextlib
import os
import re
import shutil

import tensorflow as tf

from bert_tf.inputs.batching import stream


class InputState:
    """States of one worker's iterator over `batching.stream`, in files beside the checkpoints.

    A state is what the pipeline holds at that moment, two or three groups of tokenized documents and some batches:
    neither its size nor the time to restore it grows with the run. It only saves time. Where it is missing or can not
    be used (another version of TensorFlow; a tf.data service, whose jobs have none), the pipeline reads its epoch again
    up to the position that the checkpoint holds.

    Args:
        directory: of the checkpoints.
        strategy: tf.distribute.Strategy; each of several workers has its own files.
        keep: how many states to keep.
        pipeline: names what makes the batches. A state that another pipeline left could be read without an error and
            be wrong, so states of another name are not looked at, and removed with the next save.
    """

    def __init__(self, directory, strategy, keep, pipeline=""):
        resolver = strategy.cluster_resolver
        worker = (resolver.task_id or 0) if resolver else 0
        self._directory, self._keep = directory, keep
        self._worker = f"input-{worker}-"
        self._name = f"{self._worker}tensorflow-{tf.__version__}" + (f"-{pipeline}" if pipeline else "")

    def save(self, iterator, step):
        """Writes the state of `iterator`; those of steps that came after, in a run that was cut off, are removed."""
        try:
            self._save(iterator, step)
        except (tf.errors.OpError, OSError):
            self._remove(step)  # half a state, on a full disk

    def _save(self, iterator, step):
        written = self._steps()
        before = [earlier for earlier in written if earlier < step]
        kept = before[max(0, len(before) + 1 - self._keep) :]
        for gone in set(written) - set(kept):
            self._remove(gone)
        os.makedirs(self._directory, exist_ok=True)
        for name in os.listdir(self._directory):
            if name.startswith(self._worker) and name.endswith("_temp"):  # of a write that was killed
                shutil.rmtree(os.path.join(self._directory, name), ignore_errors=True)
            elif name.startswith(self._worker) and not re.match(rf"{re.escape(self._name)}-\d+\.", name):
                os.remove(os.path.join(self._directory, name))
        tf.train.Checkpoint(iterator=iterator).write(self._path(step))

    def open(self, batches, position, step):
        """An iterator of `batching.stream`.

        Args:
            batches: function of the epoch to a Dataset.
            position: (epoch, batches of it used) to go on from.
            step: whose state that is; None where there can be none.

        Returns:
            iterator of (features, position).
        """
        if step in self._steps():
            iterator = iter(stream(batches, position))
            try:
                tf.train.Checkpoint(iterator=iterator).read(self._path(step)).assert_consumed()
                return iterator
            except (tf.errors.OpError, AssertionError, ValueError, IndexError):  # IndexError: cut short
                self._remove(step)
        if position[1]:
            print(
                f"reads epoch {position[0]} again up to batch {position[1]}, which are not trained on twice: "
                f"{self._path(step)} is missing or no use"
            )
        return iter(stream(batches, position))

    def _path(self, step):
        return os.path.join(self._directory, f"{self._name}-{step}")

    def _steps(self):
        """Steps with a state, ascending."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._directory):
                match = re.fullmatch(rf"{re.escape(self._name)}-(\d+)\.index", name)
                found += [int(match[1])] if match else []
        return sorted(found)

    def _remove(self, step):
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._directory):
                if name.startswith(f"{self._name}-{step}."):
                    os.remove(os.path.join(self._directory, name))
