"""Users' Keras callbacks in the training loop."""

import importlib
import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from bert_tf.config import to_dict
from bert_tf.errors import ConfigError
from bert_tf.training.trainer import Trainer
from bert_tf.types import Json, Metrics

# Parts of a row of history.jsonl that are no values of it.
_NOT_LOGGED = ("kind", "step", "phase")


class _ShownOptimizer:
    """What callbacks read of `model.optimizer`."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def learning_rate(self) -> tf.Tensor:
        """Of the last update."""
        return tf.constant(self._trainer.rate)

    @learning_rate.setter
    def learning_rate(self, _: object) -> None:
        raise ConfigError(
            "a callback sets the learning rate, which is that of the schedule; leave the callback out, and set "
            "train.learning_rate or train.schedule"
        )

    @property
    def iterations(self) -> tf.Tensor:
        """Updates done."""
        return tf.constant(self._trainer.step, tf.int64)

    def get_config(self) -> Json:
        """The fields of TrainConfig."""
        return to_dict(self._trainer.config)


class Callbacks:
    """Calls Keras callbacks; without any it does nothing.

    An epoch begins at a multiple of `steps_per_epoch`, and where a run resumes. A batch is reported where a point of
    the curves is: by `on_train_batch_end` with the number of the last update in its epoch, from 0. The logs have the
    names of history.jsonl, in `on_epoch_end` with the means of the epoch's points, and with "val_" before those of an
    evaluation.

    Args:
        callbacks: called in this order.
        trainer: whose model is theirs. While they are called, it has an optimizer from which learning rate, number of
            updates and settings can be read.
        directory: of the run, in their `params`.
        steps_per_epoch: updates.
        call: False in workers other than the chief.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        trainer: Trainer,
        directory: str,
        steps_per_epoch: int,
        *,
        call: bool = True,
    ) -> None:
        self.steps_per_epoch = steps_per_epoch if callbacks else 0  # the same in all workers
        self._model, self._list = trainer.model, None
        for one in callbacks:
            if isinstance(one, keras.callbacks.EarlyStopping) and one.restore_best_weights:
                raise ConfigError(
                    "EarlyStopping would restore its best weights after the last ones have been saved and evaluated; "
                    "leave restore_best_weights out, and set train.keep_best (keep_best=True in Python)"
                )
        if callbacks and call:
            self._model.optimizer = _ShownOptimizer(trainer)
            epochs = math.ceil(trainer.total_steps / steps_per_epoch)
            params = {"epochs": epochs, "steps": steps_per_epoch, "verbose": 0, "directory": directory}
            self._list = keras.callbacks.CallbackList([*callbacks], model=self._model, **params)
        self._epoch: int | None = None  # in progress
        self._points: list[Json] = []  # of it
        self._evaluated: Metrics = {}
        self._logs: Metrics = {}  # of the last epoch
        self._reported = 0  # the step of the last point

    @property
    def stopped(self) -> bool:
        """Whether one of them has set `model.stop_training`."""
        return self._list is not None and bool(self._model.stop_training)

    def begin(self, step: int) -> None:
        """Called before the first update of this process, after `step` updates."""
        self._reported = step
        if self._list:
            self._model.stop_training = False
            self._list.on_train_begin()

    def before(self, step: int) -> None:
        """Called before each call of the compiled updates, after `step` updates."""
        if not self._list:
            return
        if self._epoch is None:
            self._epoch = step // self.steps_per_epoch
            self._list.on_epoch_begin(self._epoch)
        if self._reported == step:
            self._list.on_train_batch_begin(step % self.steps_per_epoch)

    def point(self, row: Json) -> None:
        """Called with each point of the curves."""
        if self._list:
            self._points.append(row | {"updates": row["step"] - self._reported})
            logs = {name: value for name, value in row.items() if name not in _NOT_LOGGED}
            self._list.on_train_batch_end((row["step"] - 1) % self.steps_per_epoch, logs)
        self._reported = row["step"]

    def evaluation(self, metrics: Metrics | None) -> None:
        """Called with the metrics of an evaluation, if there was one after these updates."""
        if self._list and metrics:
            self._evaluated = metrics
            self._list.on_test_begin()
            self._list.on_test_end(dict(metrics))

    def after(self, step: int) -> None:
        """Called after updates and what follows them."""
        if self._list and step % self.steps_per_epoch == 0:
            self._end_epoch()

    def end(self) -> None:
        """Called when no more updates are done."""
        if self._list:
            self._end_epoch()
            self._list.on_train_end(self._logs)
            del self._model.optimizer

    def _end_epoch(self) -> None:
        if self._list and self._epoch is not None:
            self._logs = self._means() | {f"val_{name}": value for name, value in self._evaluated.items()}
            self._list.on_epoch_end(self._epoch, self._logs)
            self._epoch, self._points, self._evaluated = None, [], {}

    def _means(self) -> Metrics:
        """Of the points of the epoch, each for so many updates; the learning rate is the last one."""
        logs: Metrics = {}
        for name in dict.fromkeys(name for row in self._points for name in row):
            rows = [row for row in self._points if name in row]
            updates = sum(row["updates"] for row in rows)
            if name not in (*_NOT_LOGGED, "updates") and updates:
                logs[name] = sum(row[name] * row["updates"] for row in rows) / updates
        return logs | {name: self._points[-1][name] for name in ("learning_rate",) if self._points}


def named(name: str) -> Callable[[str], list[keras.callbacks.Callback]]:
    """The function from the directory of a run to its callbacks.

    Args:
        name: "module:function"; "" for none. The function gets the directory, and returns a callback or a list of them.
    """
    if not name:
        return lambda directory: []
    module, _, function = name.partition(":")
    where = f"callbacks is {name!r}"
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{where}, which cannot be found ({error}); expected 'module:function'") from None

    def made(directory: str) -> list[keras.callbacks.Callback]:
        found = make(directory)
        all_found = [*found] if isinstance(found, list | tuple) else [found]
        for one in all_found:
            if not isinstance(one, keras.callbacks.Callback):
                raise ConfigError(f"{where}, which returned a {type(one).__name__}; expected Keras callbacks")
        # One more that does nothing: whether there are any must be the same in all workers.
        return [*all_found, keras.callbacks.Callback()]

    return made
