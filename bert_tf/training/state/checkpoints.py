"""Training state on disk: the last N checkpoints, written while training goes on."""

import concurrent.futures
import glob
import os
import shutil

import tensorflow as tf

from bert_tf.errors import BertTfError
from bert_tf.progress import log

_NAME = "step"


class Checkpoints:
    """Saves and restores named tf.Variables; use it in a `with`, which waits for the last write.

    `save` copies the variables to host memory and returns; a thread writes them. The file `checkpoint`, replaced when
    the data of one are whole, says which there are: after a kill at any moment it names none that is not whole, and
    the next process that saves removes the files `step-*` that it does not name.

    Args:
        directory: where the checkpoints go.
        variables: dict name -> tf.Variable.
        keep: how many to keep.
        on_error: what happens where a checkpoint can not be written: "stop", an error, or "go_on", a line on standard
            error. Those before it are kept in either case, and nothing of the one that failed.

    Attributes:
        newest: path, without endings, of the newest checkpoint that this process wrote or restored; None before.
    """

    # TensorFlow's own CheckpointOptions(enable_async=True) was tried instead of a thread of ours. After a failed write
    # it raises that error in place of the next save, which is lost; its sync() raises nothing; an error of the last
    # write is a stack trace at exit, with status 0; and a second copy of all variables stays in memory between saves.

    def __init__(self, directory, variables, keep, on_error="stop"):
        self._directory, self._keep, self._on_error = directory, keep, on_error
        self._variables = {_attribute(name): variable for name, variable in variables.items()}
        # Variables without a shape: between saves they hold nothing.
        with tf.device("CPU:0"):
            self._copies = {
                name: tf.Variable(
                    tf.zeros([0], variable.dtype), shape=tf.TensorShape(None), trainable=False, validate_shape=False
                )
                for name, variable in self._variables.items()
            }
        self._manager = self._managed()
        self.newest = None
        self._writer = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._writing = None  # the Future of a write whose outcome has not been told yet
        self._begun = set()  # the step of the last write, as soon as it has begun
        self._tidy = False

    @property
    def steps(self):
        """Steps of the checkpoints that there are, the one that is being written included: set of int."""
        return {int(path.rsplit("-", 1)[1]) for path in self._manager.checkpoints} | self._begun

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.wait()
        except BertTfError as error:
            if kind is None:
                raise
            log(error)  # what ended the block is what the caller must see
        finally:
            self._writer.shutdown()

    def restore(self, report):
        """Restores the newest checkpoint that can be read; its path, or None if there is none.

        Args:
            report: function of a str, called with a line on each that can not be read.

        Raises:
            BertTfError: if there are checkpoints and none can be read.
        """
        checkpoint = tf.train.Checkpoint(**self._variables)
        for path in reversed(self._manager.checkpoints):
            try:
                checkpoint.restore(path).assert_consumed()
                self.newest = path
                return path
            except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:  # IndexError: cut short
                report(f"{path} can not be read ({' '.join(str(error).split())[:120]}); trying the one before")
        if self._manager.checkpoints:
            raise BertTfError(
                f"{self._directory}: no checkpoint can be read; if settings of the model or the optimizer have "
                "changed, set them back; else remove the directory to start again"
            )
        return None

    def save(self, step):
        """Saves the variables as they are now; they may change as soon as this returns.

        Waits for the write before, if that is still in progress. Only one process may save into a directory.

        Args:
            step: int, the checkpoint's number.

        Raises:
            BertTfError: with on_error "stop", if the write before failed.
        """
        self.wait()
        if not self._tidy:  # not before: a process that only reads must not remove what another one writes
            self._remove_unnamed()
            self._tidy = True
        with tf.device("CPU:0"):
            for name, variable in self._variables.items():
                # On a CPU no copy yet: both share their memory until an update, which then gives one its own.
                self._copies[name].assign(tf.convert_to_tensor(variable))
        self._begun = {step}
        self._writing = self._writer.submit(self._write, step)

    def check(self):
        """Raises what a write that is over has failed with, once; does not wait.

        Raises:
            BertTfError: with on_error "stop", if a checkpoint could not be written, e.g. because the disk is full.
        """
        if self._writing and self._writing.done():
            writing, self._writing = self._writing, None
            writing.result()

    def wait(self):
        """Waits until the write in progress is over, and raises as `check` does."""
        if self._writing:
            concurrent.futures.wait([self._writing])
            self.check()

    def _write(self, step):
        try:
            self.newest = self._manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            self._failed(step, error)
        finally:
            for copy in self._copies.values():
                copy.assign(tf.zeros([0], copy.dtype))

    def _failed(self, step, error):
        # What the manager believes may not be what is on the disk: it failed in the middle.
        self._manager = self._managed()
        self._remove_unnamed()
        if self.newest not in self._manager.checkpoints:
            self.newest = self._manager.latest_checkpoint
        reason = " ".join(str(getattr(error, "message", error)).split())[:200]
        message = f"checkpoint of step {step} could not be written: {reason}; last good one: {self.newest or 'none'}"
        if self._on_error == "go_on":
            log(f"{message}; training goes on (train.on_save_error)")
        else:
            raise BertTfError(f"{message}; when there is room, the same command goes on from there") from None

    def _managed(self):
        # The manager writes the data first and then, by renaming, the file that names the newest: a kill in between
        # leaves the one before in force.
        return tf.train.CheckpointManager(
            tf.train.Checkpoint(**self._copies), self._directory, max_to_keep=self._keep, checkpoint_name=_NAME
        )

    def _remove_unnamed(self):
        """Removes the files of checkpoints that are not whole: of writes that failed or were killed."""
        named = {os.path.basename(path) for path in self._manager.checkpoints}
        for path in glob.glob(os.path.join(glob.escape(self._directory), f"{_NAME}-*")):
            if path.endswith("_temp"):  # where TensorFlow collects the parts of a checkpoint
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.basename(path).split(".")[0] not in named:
                os.remove(path)


def _attribute(name):
    return name.replace("/", ".")
