"""Keras callbacks of users in the loop: what they are told, and that they end a run but change nothing else."""

import csv
import json

import keras
import numpy as np
import pytest

from bert_tf.errors import ConfigError
from bert_tf.training import callbacks
from bert_tf.training.phases import Input
from tests.errors import raises
from tests.training.small import eagerly, epochs, loop_of, trainer, weights_of

pytestmark = pytest.mark.filterwarnings("ignore:Even though")  # functions of tf.data have graphs all the same


class Recorder(keras.callbacks.Callback):
    """All calls, with the number of the epoch or batch, and the logs of each kind."""

    def __init__(self):
        super().__init__()
        self.calls, self.logs = [], {}


def recording(name):
    def numbered(self, number, logs=None):
        self.calls.append((name, number))
        self.logs.setdefault(name, []).append(logs)

    return numbered if "epoch" in name or "batch" in name else lambda self, logs=None: self.calls.append((name,))


for event in (
    *("train_begin", "epoch_begin", "train_batch_begin", "train_batch_end"),
    *("test_begin", "test_end", "epoch_end", "train_end"),
):
    setattr(Recorder, f"on_{event}", recording(event))


def run(folder, *given, total_steps=8, steps_per_epoch=4, evaluate=lambda: {"loss": 0.5}, **settings):
    trained = trainer(bert=False, total_steps=total_steps, **{"log_every": 2} | settings)
    hooks = {"callbacks": given, "steps_per_epoch": steps_per_epoch, "evaluate_every": 4, "evaluate_first": False}
    loop = loop_of(trained, [Input(epochs(), evaluate=evaluate)], folder, **hooks)
    return loop, loop.run()


@pytest.fixture(scope="module", autouse=True)
def _eager():
    with eagerly():
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    recorder = Recorder()
    return recorder, *run(tmp_path_factory.mktemp("recorded"), recorder)


def test_they_are_called_in_the_order_of_keras(recorded):
    theirs = Recorder()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse")
    x = np.zeros((4, 1))  # in each epoch two batches: as many as points are reported
    model.fit(x, x, batch_size=2, epochs=2, validation_data=(x, x), callbacks=[theirs], verbose=0)
    names = [call[0] for call in theirs.calls]
    assert [call[0] for call in recorded[0].calls] == names
    assert [call for call in recorded[0].calls if "epoch" in call[0]] == [c for c in theirs.calls if "epoch" in c[0]]
    # Of four updates the second and the last one are reported.
    assert [call[1] for call in recorded[0].calls if call[0] == "train_batch_end"] == [1, 3, 1, 3]


def test_logs_have_the_names_and_values_of_the_history(recorded):
    recorder, _, history = recorded
    rows = [{name: row[name] for name in row if name not in ("kind", "step", "phase")} for row in history.points]
    assert recorder.logs["train_batch_end"] == rows
    for number, logs in enumerate(recorder.logs["epoch_end"]):
        points = rows[2 * number : 2 * number + 2]
        assert logs["loss"] == pytest.approx(np.mean([row["loss"] for row in points]))
        assert logs["learning_rate"] == points[-1]["learning_rate"] and logs["val_loss"] == 0.5
    assert recorder.params["epochs"] == 2 and recorder.params["steps"] == 4


def test_they_change_nothing(recorded, tmp_path):
    loop, history = run(tmp_path)
    mine, theirs = weights_of(loop.trainer), weights_of(recorded[1].trainer)
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    assert [row["loss"] for row in history.points] == [row["loss"] for row in recorded[2].points]


class Stopper(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


def test_a_callback_ends_a_run_for_good(tmp_path, capsys):
    loop, history = run(tmp_path, Stopper())
    assert loop.trainer.step == 4 and [row["step"] for row in history.evaluations] == [4]
    assert "stopping at step 4" in capsys.readouterr().out
    before = (tmp_path / "history.jsonl").read_bytes()
    again, _ = run(tmp_path, Recorder())
    assert again.trainer.step == 4 and not again.advanced and (tmp_path / "history.jsonl").read_bytes() == before


class Impatient(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


def test_a_run_that_is_stopped_between_evaluations_is_evaluated_where_it_ends(tmp_path):
    _, history = run(tmp_path, Impatient())
    assert [row["step"] for row in history.points] == [row["step"] for row in history.evaluations] == [2]


def test_weights_that_would_be_restored_too_late_are_refused(tmp_path):
    with raises(ConfigError, "restore_best_weights", "train.keep_best"):
        run(tmp_path, keras.callbacks.EarlyStopping(monitor="val_loss", restore_best_weights=True))


def test_points_are_added_where_epochs_end_and_a_resumed_run_begins_in_the_middle_of_one(tmp_path):
    settings = {"total_steps": 6, "steps_per_epoch": 3, "log_every": 100, "save_every": 4}

    def die():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Recorder(), evaluate=die, **settings)
    recorder = Recorder()
    _, history = run(tmp_path, recorder, **settings)
    assert [row["step"] for row in history.points] == [3, 6]
    assert [call for call in recorder.calls if "epoch" in call[0]] == [("epoch_begin", 1), ("epoch_end", 1)]


def test_those_of_keras_work(tmp_path):
    values = iter([3.0, 2.0, 2.5, 2.6, 2.7])
    given = [
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=2),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.weights.h5", save_best_only=True, save_weights_only=True),
    ]
    settings = {"total_steps": 20, "evaluate": lambda: {"loss": next(values)}, "log_every": 4}
    loop, _ = run(tmp_path / "run", *given, **settings)
    assert loop.trainer.step == 16  # two epochs after the best one
    with open(tmp_path / "log.csv") as file:
        assert [row["val_loss"] for row in csv.DictReader(file)] == ["3.0", "2.0", "2.5", "2.6"]
    assert (tmp_path / "best.weights.h5").exists()


def test_the_learning_rate_can_be_read_but_not_set(tmp_path):
    rates = []
    shown = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: rates.append(float(shown.model.optimizer.learning_rate))
    )
    _, history = run(tmp_path / "read", shown)
    assert rates == [row["learning_rate"] for row in history.points[1::2]]
    with raises(ConfigError, "a callback sets the learning rate", "train.learning_rate"):
        run(tmp_path / "set", keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate))


def made(directory):
    return Stopper() if directory == "one" else [Stopper(), Recorder()]


def wrong(directory):
    return [directory]


def test_a_setting_names_the_function_that_makes_them():
    assert callbacks.named("")("x") == []
    assert [type(one) for one in callbacks.named(f"{__name__}:made")("one")[:-1]] == [Stopper]
    assert [type(one) for one in callbacks.named(f"{__name__}:made")("two")[:-1]] == [Stopper, Recorder]
    for name, found in {
        "no_such_module:made": "no_such_module",
        f"{__name__}:no_such_function": "no_such_function",
        "made": "module:function",
        f"{__name__}:wrong": "a str; expected Keras callbacks",
    }.items():
        with raises(ConfigError, f"callbacks is {json.dumps(name)[1:-1]!r}", found):
            callbacks.named(name)("x")
