"""Checkpoints of the training state: the last N, written by a thread while training continues."""

import concurrent.futures
import contextlib
import glob
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import tensorflow as tf

from bert_tf.errors import BertTfError
from bert_tf.files import cause, write_text
from bert_tf.progress import log

_NAME = "step"
# TensorFlow's list of the checkpoints: a protocol buffer as text. TensorFlow ignores the paths unless each has a time
# after the last one, which is the start of the first process, and not in the future.
_PATH, _TIME = rf'"{_NAME}-\d+"\n', r"(\d+(?:\.\d+)?(?:e\+?\d+)?)\n"
_LIST = re.compile(
    rf"model_checkpoint_path: {_PATH}((?:all_model_checkpoint_paths: {_PATH})+)"
    rf"(?:all_model_checkpoint_timestamps: {_TIME})+last_preserved_timestamp: {_TIME}"
)


class Checkpoints:
    """Saves and restores named tf.Variables; use it in a `with` block, which waits for the last write at its end.

    `save` copies the variables to host memory and returns; a thread writes them. The file `checkpoint` lists the
    complete checkpoints and is replaced once the data of a new one are complete. So after a kill at any moment it lists
    no incomplete checkpoint, and the next process that saves removes the files `step-*` that it does not list.

    Args:
        directory: gets the checkpoints.
        variables: by name.
        keep: number of checkpoints to keep.
        on_error: if a checkpoint cannot be written: "stop" raises an error, "go_on" prints a line on standard error.
            Earlier checkpoints are kept in either case, and nothing of the failed one.

    Attributes:
        newest: path, without extensions, of the newest checkpoint that this process wrote or restored; None before.
    """

    # TensorFlow's own CheckpointOptions(enable_async=True) was tried instead of a thread of ours. After a failed write
    # it raises that error in place of the next save, which is lost; its sync() raises nothing; an error of the last
    # write is a stack trace at exit, with status 0; and a second copy of all variables stays in memory between saves.

    def __init__(self, directory: str, variables: Mapping[str, tf.Variable], keep: int, on_error: str = "stop") -> None:
        self._directory, self._keep, self._on_error = directory, keep, on_error
        self._variables = {_attribute(name): variable for name, variable in variables.items()}
        # Variables without a shape: between saves they are empty.
        with tf.device("CPU:0"):
            self._copies = {
                name: tf.Variable(
                    tf.zeros([0], variable.dtype), shape=tf.TensorShape(None), trainable=False, validate_shape=False
                )
                for name, variable in self._variables.items()
            }
        self._restore_list()
        self._manager = self._new_manager()
        self.newest: str | None = None
        self._writer = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        # The last write, until its outcome has been reported.
        self._writing: concurrent.futures.Future[None] | None = None
        self._begun: set[int] = set()  # the step of the last write, as soon as it has begun
        self._tidy = False

    @property
    def steps(self) -> set[int]:
        """Steps of all checkpoints, including the one that is being written."""
        return set(map(_step, self._manager.checkpoints)) | self._begun

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
            BertTfError: there are checkpoints, but all are unreadable.
        """
        checkpoint = tf.train.Checkpoint(**self._variables)
        for path in reversed(self._manager.checkpoints):
            try:
                checkpoint.restore(path).assert_consumed()
                if restored_step() != _step(path):
                    raise ValueError(f"it holds step {restored_step()}")
                self.newest = path
                return path
            # IndexError: cut short; MemoryError: a size in it is damaged.
            except (tf.errors.OpError, AssertionError, ValueError, IndexError, MemoryError) as error:
                report(f"{path} cannot be read ({cause(error)}); trying the previous one")
        if self._manager.checkpoints:
            raise BertTfError(
                f"{self._directory}: no checkpoint can be read; if settings of the model or the optimizer have "
                "changed, set them back; else remove the directory to start again"
            )
        return None

    def save(self, step: int) -> None:
        """Saves the variables with their current values; they may change as soon as this returns.

        Waits for the previous write if it is still in progress. Only one process may save into a directory.

        Args:
            step: number of the checkpoint.

        Raises:
            BertTfError: with on_error "stop", if the previous write failed.
        """
        self.wait()
        if not self._tidy:  # not earlier: a process that only reads must not remove files that another one is writing
            self._remove_incomplete()
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
            BertTfError: with on_error "stop", if a checkpoint could not be written, e.g. because the disk is full.
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
        try:
            self.newest = self._manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            self._handle_failure(step, error)
        finally:
            for copy in self._copies.values():
                copy.assign(tf.zeros([0], copy.dtype))

    def _handle_failure(self, step: int, error: Exception) -> None:
        # The manager failed halfway, so its state may differ from the disk's.
        self._manager = self._new_manager()
        self._remove_incomplete()
        if self.newest not in self._manager.checkpoints:
            self.newest = self._manager.latest_checkpoint
        message = (
            f"checkpoint of step {step} could not be written: {cause(error)}; "
            f"last good checkpoint: {self.newest or 'none'}"
        )
        if self._on_error == "go_on":
            log(f"{message}; training continues (train.on_save_error)")
        else:
            raise BertTfError(f"{message}; make room and run the same command again to resume from it") from None

    def _new_manager(self) -> tf.train.CheckpointManager:
        # The manager writes the data first and then, by renaming, the file that names the newest: after a kill in
        # between, the previous checkpoint is still the newest.
        return tf.train.CheckpointManager(
            tf.train.Checkpoint(**self._copies), self._directory, max_to_keep=self._keep, checkpoint_name=_NAME
        )

    def _restore_list(self) -> None:
        """Writes a lost or damaged list of the checkpoints again: TensorFlow would start without any of them.

        It would do so after the clock was set back, too.
        """
        path, pattern = os.path.join(self._directory, "checkpoint"), f"{_NAME}-*.index"
        # A checkpoint's index is written last.
        found = glob.glob(os.path.join(glob.escape(self._directory), pattern))
        names = sorted((os.path.basename(one).removesuffix(".index") for one in found), key=_step)
        with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as file:
            valid = _LIST.fullmatch(text := file.read())
            *times, last = map(float, re.findall(f"timestamps?: {_TIME}", text)) if valid else [0.0]
            if valid and len(times) == valid[1].count("\n") and last < min(*times, time.time()):
                return
            if not names:
                os.remove(path)
        if names:
            log(f"{path}, the list of checkpoints, is missing, damaged or from the future; found {', '.join(names)}")
            lines = [f'model_checkpoint_path: "{names[-1]}"']
            lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
            lines += ["all_model_checkpoint_timestamps: 2.0"] * len(names) + ["last_preserved_timestamp: 1.0"]
            write_text(path, "\n".join(lines) + "\n")

    def _remove_incomplete(self) -> None:
        """Removes the files of incomplete checkpoints, whose write failed or was killed."""
        listed = {os.path.basename(path) for path in self._manager.checkpoints}
        for path in glob.glob(os.path.join(glob.escape(self._directory), f"{_NAME}-*")):
            if path.endswith("_temp"):  # the directory in which TensorFlow collects the parts of a checkpoint
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.basename(path).split(".")[0] not in listed:
                os.remove(path)


def _step(path: str) -> int:
    return int(path.rsplit("-", 1)[1])


def _attribute(name: str) -> str:
    return name.replace("/", ".")
