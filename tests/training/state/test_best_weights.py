import dataclasses
import math
import os
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_tf.config import TrainConfig
from bert_tf.errors import ConfigError
from bert_tf.training.phases import Input
from bert_tf.training.state import best_weights as best_module
from bert_tf.training.state.best_weights import BestWeights
from bert_tf.training.state.history import History
from tests.errors import raises
from tests.training.small import Stop, epochs, loop_of, trainer

# Best at 6; checkpoints at 5, 10 and 12, so that evaluations lie between them.
LOSSES = {3: 5.0, 6: 4.0, 9: 6.0, 12: 4.0}
SETTINGS = {"total_steps": 12, "save_every": 5, "keep_best": True}


class Run:
    """A run whose evaluations have the given losses, by step; it records the weights at each evaluation."""

    def __init__(self, folder, losses=LOSSES, **settings):
        self.folder, self.seen = folder, {}
        self.trained = trainer(bert=False, **(SETTINGS | settings))
        source = Input(epochs(), evaluate=lambda: self._evaluate(losses))
        self._loop = lambda: loop_of(self.trained, [source], folder, evaluate_every=3, evaluate_first=False)

    def start(self):
        self.loop = self._loop()
        return self.loop.run()

    def _evaluate(self, losses):
        step = self.trained.step
        self.seen[step] = self.weights()
        if isinstance(losses[step], Exception):
            raise losses[step]
        return {"loss": losses[step]}

    def weights(self):
        return {variable.path: variable.numpy() for variable in self.trained.model.weights}

    def kept(self):
        return sorted(int(path.stem.split("-")[1]) for path in self.folder.glob("checkpoints/best-*.safetensors"))


def assert_same(ones, others):
    assert ones.keys() == others.keys()
    for name in ones:
        np.testing.assert_array_equal(ones[name], others[name], err_msg=name)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A run without interruption."""
    run = Run(tmp_path_factory.mktemp("peace"))
    run.history = run.start()
    return run


def test_the_model_gets_the_weights_of_the_best_evaluation(uninterrupted):
    assert uninterrupted.loop.best.restore(uninterrupted.history.evaluations) == 6
    assert_same(uninterrupted.weights(), uninterrupted.seen[6])
    assert any((uninterrupted.seen[6][name] != uninterrupted.seen[12][name]).any() for name in uninterrupted.seen[6])
    # The best before the checkpoint of step 5, to which the run may have to fall back, was at 3.
    assert uninterrupted.kept() == [3, 6]
    assert_same(load_file(uninterrupted.folder / "checkpoints/best-6.safetensors"), uninterrupted.seen[6])


def test_the_first_of_equal_values_is_best_and_nan_never(tmp_path):
    model, config = None, TrainConfig()
    rows = [{"step": step, "f1": f1} for step, f1 in ((1, math.nan), (2, 0.5), (3, 0.7), (4, 0.7), (5, math.nan))]
    assert BestWeights(tmp_path, model, "f1", "max", config).step(rows) == 3
    assert BestWeights(tmp_path, model, "f1", "min", config).step(rows) == 2
    assert BestWeights(tmp_path, model, "f1", "max", config).step(rows[:1]) is None


MOMENTS = {
    "in an evaluation after the best": ({9: Stop()}, None),
    "in the best evaluation": ({6: Stop()}, None),
    "while the best is written": ({}, (best_module, "write_tensors", 6)),
    "before the best is noted": ({}, (History, "evaluation", 6)),
}


QUICK = "before the best is noted"


@pytest.mark.parametrize(
    "moment", [QUICK, *(pytest.param(one, marks=pytest.mark.slow) for one in MOMENTS if one != QUICK)]
)
def test_a_run_killed_at_any_moment_ends_with_the_same_best_weights(tmp_path, uninterrupted, monkeypatch, moment):
    losses, place = MOMENTS[moment]
    killed = Run(tmp_path, LOSSES | losses)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        if place:
            owner, name, step = place
            original = getattr(owner, name)

            def die(*arguments, **keywords):
                if killed.trained.step == step:
                    raise Stop
                return original(*arguments, **keywords)

            patch.setattr(owner, name, die)
        killed.start()
    assert killed.trained.step in (6, 9)

    (tmp_path / "checkpoints/.best-6.safetensors.k1lled_1.partial").mkdir()
    again = Run(tmp_path, weights=99)
    history = again.start()
    assert min(again.seen) == 6  # from the checkpoint of step 5
    assert again.loop.best.restore(history.evaluations) == 6
    assert_same(again.weights(), uninterrupted.seen[6])
    assert not list(tmp_path.glob("checkpoints/.*"))


def test_a_run_that_falls_back_and_gets_worse_keeps_the_best_up_to_its_checkpoint(tmp_path, uninterrupted):
    better = {3: 5.0, 6: 4.0, 9: 3.0}
    killed = Run(tmp_path, better | {12: Stop()}, keep=3)
    with pytest.raises(Stop):
        killed.start()
    assert killed.kept() == [3, 9]  # 3 was the best at the checkpoint of step 5
    for path in tmp_path.glob("checkpoints/step-1*.index"):
        path.write_bytes(b"")  # damaged: only that of step 5 is left

    again = Run(tmp_path, {6: 7.0, 9: 7.0, 12: 7.0}, keep=3)
    history = again.start()
    assert [row["step"] for row in history.evaluations] == [3, 6, 9, 12]
    assert again.loop.best.restore(history.evaluations) == 3
    assert_same(again.weights(), uninterrupted.seen[3])


def test_patience_ends_the_run_and_it_stays_finished(tmp_path):
    losses = {3: 2.0, 6: 1.0, 9: 1.5, 12: 1.0}
    settings = {"total_steps": 30, "save_every": 7, "patience": 2, "keep_best": False}  # implied by patience
    run = Run(tmp_path, losses, **settings)
    history = run.start()
    assert run.trained.step == 12 and run.loop.advanced
    again = Run(tmp_path, {}, **settings)
    history = again.start()
    assert again.trained.step == 12 and not again.loop.advanced and not again.seen
    assert again.loop.best.restore(history.evaluations) == 6
    assert_same(again.weights(), run.seen[6])


def test_without_patience_a_run_continues_despite_bad_evaluations(tmp_path):
    run = Run(tmp_path, {3: 1.0, 6: 2.0, 9: math.nan, 12: 4.0})
    run.start()
    assert run.trained.step == 12


def test_a_run_with_only_nan_is_stopped_too_and_keeps_the_last_weights(tmp_path):
    run = Run(tmp_path, dict.fromkeys(LOSSES, math.nan), patience=2)
    history = run.start()
    last = run.weights()
    assert run.trained.step == 6 and run.loop.best.restore(history.evaluations) is None
    assert_same(run.weights(), last)


def test_a_full_disk_ends_the_run_before_the_evaluation_is_recorded(tmp_path, monkeypatch):
    write, calls = best_module.write_tensors, []

    def full(*arguments, **metadata):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        write(*arguments, **metadata)

    monkeypatch.setattr(best_module, "write_tensors", full)
    with pytest.raises(OSError, match="No space left"):
        Run(tmp_path).start()
    assert [row["step"] for row in History(str(tmp_path), 9, write=False).evaluations] == [3]


def test_best_weights_are_only_kept_on_request(tmp_path):
    run = Run(tmp_path, keep_best=False)
    history = run.start()
    assert not run.kept() and run.loop.best.restore(history.evaluations) is None


def test_patience_implies_keep_best_and_is_not_negative():
    assert TrainConfig(patience=3).resolved().keep_best
    assert not TrainConfig().resolved().keep_best
    with raises(ConfigError, "train.patience", "-1"):
        dataclasses.replace(TrainConfig(), patience=-1).check()


def test_best_weights_of_another_model_are_not_used(uninterrupted, capsys):
    other = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    before = other.get_weights()
    best = BestWeights(str(uninterrupted.folder / "checkpoints"), other, "loss", "min", TrainConfig(keep_best=True))
    assert best.restore(uninterrupted.history.evaluations) is None
    assert all(map(np.array_equal, other.get_weights(), before))
    first, last = capsys.readouterr().err.splitlines()
    assert "best-6.safetensors holds the weights of another model" in first
    assert last.endswith("instead of these best weights, the model gets those of the last update")


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "one bit": flip,
    "missing": os.remove,
    "half a file": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "a copy of others": lambda path: shutil.copy(path.with_name("best-3.safetensors"), path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_if_the_best_weights_are_damaged_the_next_best_are_used_with_a_line(tmp_path, uninterrupted, capsys, damage):
    shutil.copytree(uninterrupted.folder / "checkpoints", tmp_path, dirs_exist_ok=True)
    DAMAGES[damage](tmp_path / "best-6.safetensors")
    config = TrainConfig(keep_best=True)
    best = BestWeights(str(tmp_path), uninterrupted.trained.model, "loss", "min", config)
    assert best.restore(uninterrupted.history.evaluations) == 3
    assert_same(uninterrupted.weights(), uninterrupted.seen[3])
    (line,) = capsys.readouterr().err.splitlines()
    assert "best-6.safetensors" in line and line.endswith("the model gets those of the evaluation at step 3")


def test_kept_weights_without_their_evaluation_show_that_the_history_was_shortened(uninterrupted):
    best, evaluations = uninterrupted.loop.best, uninterrupted.history.evaluations
    assert not best.lost(evaluations, 12)
    assert best.lost([row for row in evaluations if row["step"] != 6], 12)
    assert not best.lost([row for row in evaluations if row["step"] != 6], 6)  # killed between weights and evaluation
