"""Checkpoints of the training state: the last N, written by a thread while training continues."""

import concurrent.futures
import glob
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

import tensorflow as tf

from bert_tf.errors import BertTfError
from bert_tf.files import cause, numbers_of, replacing, write_text
from bert_tf.progress import log

_NAME = "step"
_FILE = re.compile(rf"{_NAME}-\d+\.(index|data-\d+-of-\d+)")


class Checkpoints:
    """Saves and restores named tf.Variables; use it in a `with` block, which waits for the last write at its end.

    `save` copies the variables to host memory and returns; a thread writes them. A checkpoint that has its index is
    complete: the files get their names once all are written, the index last. The next process that saves removes what
    a killed one left. The file `checkpoint` lists the complete checkpoints for other programs, as TensorFlow does.

    Args:
        directory: gets the checkpoints.
        variables: by name.
        keep: number of checkpoints to keep.
        sums: names of variables that keep their value if a checkpoint has them in another shape: sums for curves, of
            which a version may have more.

    Attributes:
        newest: path, without extensions, of the newest checkpoint that this process wrote or restored; None before.
    """

    # TensorFlow's own CheckpointOptions(enable_async=True) was tried instead of a thread of ours. After a failed write
    # it raises that error in place of the next save, which is lost; its sync() raises nothing; an error of the last
    # write is a stack trace at exit, with status 0; and a second copy of all variables stays in memory between saves.

    def __init__(
        self, directory: str, variables: Mapping[str, tf.Variable], keep: int, sums: Collection[str] = ()
    ) -> None:
        self._directory, self._keep, self._sums = directory, keep, set(map(_attribute, sums))
        self._variables = {_attribute(name): variable for name, variable in variables.items()}
        # Variables without a shape: between saves they are empty.
        with tf.device("CPU:0"):
            self._copies = {
                name: tf.Variable(
                    tf.zeros([0], variable.dtype), shape=tf.TensorShape(None), trainable=False, validate_shape=False
                )
                for name, variable in self._variables.items()
            }
        self._checkpoint = tf.train.Checkpoint(**self._copies)
        self._checkpoint.save_counter.assign_add(1)  # created here: `restore` expects one
        self.newest: str | None = None
        self._writer = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        # The last write, until its outcome has been reported.
        self._writing: concurrent.futures.Future[None] | None = None
        self._begun: set[int] = set()  # the step of the last write, as soon as it has begun
        self._tidy = False

    @property
    def steps(self) -> set[int]:
        """Steps of all checkpoints, including the one that is being written."""
        return set(map(_step, self._complete())) | self._begun

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except BertTfError as failure:
            if kind is None:
                raise
            log(str(failure))  # the caller must see the error that ended the block
        finally:
            self._writer.shutdown()

    def restore(self, report: Callable[[str], object], restored_step: Callable[[], int]) -> str | None:
        """Restores the newest readable checkpoint and returns its path; None if there are no checkpoints.

        Args:
            report: called with a line about each unreadable checkpoint.
            restored_step: returns the step that the variables hold; a checkpoint of another step than its name says,
                such as an old one that was copied over it, counts as unreadable.

        Raises:
            BertTfError: there are checkpoints, but all are unreadable; or a directory has the name of one.
        """
        for file in self._files():
            if os.path.isdir(file):
                raise BertTfError(f"{file} is a directory, but has the name of a file of a checkpoint; move it away")
        paths = self._complete()
        for path in reversed(paths):
            try:
                tf.train.Checkpoint(**self._matching(path)).restore(path).assert_consumed()
                if restored_step() != _step(path):
                    raise ValueError(f"it holds step {restored_step()}")
                self.newest = path
                return path
            # IndexError: cut short; MemoryError: a size in it is damaged.
            except (tf.errors.OpError, AssertionError, ValueError, IndexError, MemoryError) as error:
                report(f"{path} cannot be read ({cause(error)}); trying the previous one")
        if paths:
            raise BertTfError(
                f"{self._directory}: no checkpoint can be read; if settings of the model or the optimizer have "
                "changed, set them back; else move the directory away to start again"
            )
        return None

    def _matching(self, path: str) -> dict[str, tf.Variable]:
        """The variables, but for sums of another shape one that is not used."""
        shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
        stored = {name: shapes.get(f"{name}/.ATTRIBUTES/VARIABLE_VALUE") for name in self._sums}
        return self._variables | {
            name: tf.Variable(tf.zeros(shape, self._variables[name].dtype))
            for name, shape in stored.items()
            if shape and shape != self._variables[name].shape.as_list()
        }

    def save(self, step: int) -> None:
        """Saves the variables with their current values; they may change as soon as this returns.

        Waits for the previous write if it is still in progress. Only one process may save into a directory.

        Args:
            step: number of the checkpoint.

        Raises:
            BertTfError: the previous write failed.
        """
        self.wait()
        if not self._tidy:  # not earlier: a process that only reads must not remove files that another one is writing
            last = _step(self.newest) if self.newest else step  # later ones could not be restored
            self._keep_only([path for path in self._complete() if _step(path) <= last])
            self._tidy = True
        with tf.device("CPU:0"):
            for name, variable in self._variables.items():
                # On a CPU this copies nothing yet: both share memory until an update allocates new memory.
                self._copies[name].assign(tf.convert_to_tensor(variable))
        self._begun = {step}
        self._writing = self._writer.submit(self._write, step)

    def check(self) -> None:
        """Raises the error of a finished write, once; does not wait.

        Raises:
            BertTfError: a checkpoint could not be written, e.g. because the disk is full; earlier ones are kept, and
                nothing of this one.
        """
        if self._writing and self._writing.done():
            writing, self._writing = self._writing, None
            writing.result()

    def wait(self) -> None:
        """Waits for the write in progress, and raises as `check` does."""
        if self._writing:
            concurrent.futures.wait([self._writing])
            self.check()

    def _write(self, step: int) -> None:
        path = self._path(step)
        try:
            with replacing(f"{path}.index") as index:
                self._checkpoint.write(index.removesuffix(".index"))
            kept = self._complete()[-self._keep :]
            self._write_list(kept)
            self.newest = path
            self._keep_only(kept)
        except (tf.errors.OpError, OSError) as error:
            if self.newest != path:
                self._keep_only([other for other in self._complete() if other != path])
            raise BertTfError(
                f"checkpoint of step {step} could not be written: {cause(error)}; last good checkpoint: "
                f"{self.newest or 'none'}; make room and run the same command again to resume from it"
            ) from None
        finally:
            for copy in self._copies.values():
                copy.assign(tf.zeros([0], copy.dtype))

    def _complete(self) -> list[str]:
        """Paths of the complete checkpoints without extensions, oldest first."""
        return [self._path(step) for step in numbers_of(self._directory, f"{_NAME}-", ".index")]

    def _files(self) -> list[str]:
        """Paths of the files of all checkpoints, complete or not; those with other names are not ours."""
        found = glob.glob(os.path.join(glob.escape(self._directory), f"{_NAME}-*"))
        return [file for file in found if _FILE.fullmatch(os.path.basename(file))]

    def _path(self, step: int) -> str:
        return os.path.join(self._directory, f"{_NAME}-{step}")

    def _write_list(self, paths: Sequence[str]) -> None:
        names = [os.path.basename(path) for path in paths]
        lines = [f'model_checkpoint_path: "{names[-1]}"', *(f'all_model_checkpoint_paths: "{name}"' for name in names)]
        write_text(os.path.join(self._directory, "checkpoint"), "\n".join(lines) + "\n")

    def _keep_only(self, paths: Sequence[str]) -> None:
        """Removes all files of other checkpoints."""
        names = {os.path.basename(path) for path in paths}
        for file in sorted(self._files(), reverse=True):  # an index first
            if os.path.basename(file).split(".")[0] not in names:
                os.remove(file)


def _step(path: str) -> int:
    return int(path.rsplit("-", 1)[1])


def _attribute(name: str) -> str:
    return name.replace("/", ".")
