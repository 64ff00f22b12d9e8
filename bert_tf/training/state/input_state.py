"""State of the input pipeline at each checkpoint: a run resumes without reading its data again."""

import contextlib
import glob
import os
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from bert_tf.files import numbers_of, replacing
from bert_tf.inputs.batching import stream
from bert_tf.inputs.identity import digest, file_identity
from bert_tf.types import Tensors

# Of the operations that make the batches, to be increased with every change of them: a state is read by their names.
_STRUCTURE = 4
_DIGEST = ".sha256"  # ending of the file with the digest of a state's other files


class InputState:
    """States of one worker's iterator over `batching.stream`, in files next to the checkpoints.

    A state holds the contents of the pipeline, two or three groups of tokenized documents and some batches: neither its
    size nor the time to restore it grows with the run. It only saves time. If it is missing or unusable (another
    version of TensorFlow; a tf.data service, whose jobs have no state), the pipeline reads its epoch again up to the
    position in the checkpoint.

    Args:
        directory: of the checkpoints.
        strategy: with several workers, each has its own files.
        keep: number of states to keep.
        pipeline: identifies everything that determines the batches. The state of another pipeline could be read without
            an error and be wrong, so states of other names are ignored, and removed with the next save.
    """

    def __init__(self, directory: str, strategy: tf.distribute.Strategy, keep: int, pipeline: str = "") -> None:
        resolver = strategy.cluster_resolver
        worker = (resolver.task_id or 0) if resolver else 0
        self._directory, self._keep = directory, keep
        self._worker = f"input-{worker}-"
        self._name = f"{self._worker}tensorflow-{tf.__version__}-{_STRUCTURE}" + (f"-{pipeline}" if pipeline else "")

    def save(self, iterator: Iterator[Any], step: int) -> None:
        """Writes the state of `iterator`; removes states of later steps, which an interrupted run left."""
        earlier = [number for number in self._steps() if number < step]
        kept = tuple(f"{self._name}-{number}." for number in earlier[max(0, len(earlier) + 1 - self._keep) :])
        with contextlib.suppress(tf.errors.OpError, OSError):  # such as a full disk
            self._remove(lambda name: name.startswith(self._worker) and not name.startswith(kept))
            with replacing(f"{self._path(step)}.index") as index:
                path = index.removesuffix(".index")
                tf.train.Checkpoint(iterator=iterator, step=tf.Variable(step)).write(path)
                with open(path + _DIGEST, "w", encoding="ascii") as file:
                    file.write(_digest(path))

    def open(
        self,
        batches: Callable[[tf.Tensor], tf.data.Dataset],
        position: tuple[int, int],
        step: int | None,
    ) -> Iterator[tuple[Tensors, tf.Tensor]]:
        """An iterator over `batching.stream`.

        Args:
            batches: function of the epoch.
            position: (epoch, batches of it used) from which to continue.
            step: of the state; None if there can be no state.

        Returns:
            Iterator of (features, position).
        """
        if step is not None and step in self._steps():
            iterator = iter(stream(batches, position))
            try:
                with open(self._path(step) + _DIGEST, "rb") as file:
                    if file.read() != _digest(self._path(step)).encode():  # reading it could end the process
                        raise ValueError("its files are damaged")
                held = tf.Variable(-1)
                state = tf.train.Checkpoint(iterator=iterator, step=held)
                state.read(self._path(step)).assert_nontrivial_match()
                if int(held) != step:
                    raise ValueError(f"it is the state at step {int(held)}")
                return iterator
            except (tf.errors.OpError, AssertionError, ValueError, OSError):
                self._remove(lambda name: name.startswith(f"{self._name}-{step}."))
        if position[1]:
            print(
                f"reading epoch {position[0]} again up to batch {position[1]}, without training on it twice: "
                f"{self._path(step)} is missing or unusable"
            )
        return iter(stream(batches, position))

    def _path(self, step: int | None) -> str:
        return os.path.join(self._directory, f"{self._name}-{step}")

    def _steps(self) -> list[int]:
        """Steps with a state, ascending."""
        return numbers_of(self._directory, f"{self._name}-", ".index")

    def _remove(self, is_obsolete: Callable[[str], bool]) -> None:
        """Removes files by their names."""
        with contextlib.suppress(FileNotFoundError):
            for name in filter(is_obsolete, os.listdir(self._directory)):
                if os.path.isfile(path := os.path.join(self._directory, name)):
                    os.remove(path)


def _digest(path: str) -> str:
    """A digest of the files of the state at `path`, a path without endings."""
    files = sorted(glob.glob(f"{glob.escape(path)}.*"))
    return digest({file.removeprefix(path): file_identity(file) for file in files if not file.endswith(_DIGEST)})
