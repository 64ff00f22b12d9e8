import functools
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.inputs.corpus.corpus import check_unchanged, corpus_identity
from bert_tf.inputs.identity import batch_fingerprint
from bert_tf.training.phases import Input
from bert_tf.training.state.signals import Interrupted, Terminated, terminable
from tests.errors import raises
from tests.training.small import Stop, curve, difference, epochs, features, loop_of, trainer, weights_of, with_nan


def train(folder, batches=None, *, evaluate=None, evaluate_every=0, **settings):
    """Trains the regression, or with bert=True one layer of BERT. Returns the Trainer and the History."""
    trained = trainer(**({"bert": False} | settings))
    source = Input(batches or epochs(settings.get("batch_size", 8)), evaluate=evaluate)
    history = loop_of(trained, [source], str(folder), evaluate_every=evaluate_every).run()
    return trained, history


def batch_of(batches, epoch, number):
    return next(iter(batches(tf.constant(epoch, tf.int64)).skip(number)))


EIGHT = {"bert": True, "total_steps": 60, "learning_rate": 2e-2, "log_every": 1, "steps_per_call": 20}


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory):
    """The History of one layer of BERT on eight examples."""
    return train(tmp_path_factory.mktemp("eight"), epochs(examples=8), **EIGHT)[1]


def test_bert_overfits_eight_examples(overfitted):
    losses = [point["loss"] for point in overfitted.points]
    assert losses[-1] < 0.5 * losses[0]
    assert overfitted.points[-1]["mlm_accuracy"] > 0.9


def test_different_rates_of_layers_that_share_their_weights_are_refused():
    with raises(ConfigError, "train.layer_decay is 0.8", "share their weights", "set it to 1"):
        trainer(shape={"shared_layers": True}, layer_decay=0.8)


@pytest.mark.parametrize("bert", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_four_micro_batches_of_eight_train_as_one_batch_of_32(tmp_path, bert):
    # The examples have different numbers of masks, so a mean of the micro-batches' means would differ.
    settings = {"bert": bert, "batch_size": 32, "total_steps": 6, "clip_norm": 0.5}
    # With BERT's epsilon, Adam makes full steps for gradients that are only rounding. With one above all gradients
    # it is momentum, and weights differ as much as the sums that make a gradient: by a few rounding errors of float32,
    # and by the 1e-5 that each microbatch adds to the number of masks, about 80 here.
    settings |= {"epsilon": 1.0, "learning_rate": 0.1}
    whole, _ = train(tmp_path / "whole", **settings)
    parts, _ = train(tmp_path / "parts", **settings, accumulation=4)
    assert difference(weights_of(whole), weights_of(parts)) < 1e-5


def test_several_steps_per_call_train_like_one_and_a_point_of_the_curve_is_the_mean_since_the_previous_one(tmp_path):
    one, single = train(tmp_path / "one", epochs(shuffle=False), steps_per_call=1, log_every=1, dropout=0.1)
    many, grouped = train(tmp_path / "many", epochs(shuffle=False), steps_per_call=3, log_every=4, dropout=0.1)
    assert difference(weights_of(one), weights_of(many)) < 1e-6
    assert [point["step"] for point in grouped.points] == [4, 8, 12]
    masks = features()["masked_lm_weights"].reshape(3, 4, -1).sum(-1)  # of each batch
    for name, weights in (("loss", masks), ("error", masks), ("gradient_norm", np.ones([3, 4]))):
        updates = np.reshape([point[name] for point in single.points], [3, 4])
        expected = (updates * weights).sum(1) / weights.sum(1)
        np.testing.assert_allclose([point[name] for point in grouped.points], expected, rtol=1e-5)


def test_dropout_makes_a_difference_and_follows_the_seed(tmp_path):
    runs = [weights_of(train(tmp_path / str(seed), dropout=0.5, seed=seed, total_steps=4)[0]) for seed in range(2)]
    assert difference(*runs) > 1e-3


def test_an_update_with_a_non_finite_gradient_changes_nothing():
    trained = trainer(bert=False, total_steps=4)
    before = weights_of(trained)
    batch = batch_of(with_nan(epochs(), [0]), 0, 0)
    assert not trained.train_step.on_replica([batch], tf.constant(0, tf.int64), tf.constant(1.0))[2]
    assert difference(before, weights_of(trained)) == 0


@pytest.mark.parametrize("steps_per_call", [pytest.param(1, marks=pytest.mark.slow), 10])
def test_too_many_consecutive_nonfinite_steps_stop_the_run_and_name_batch_and_checkpoint(tmp_path, steps_per_call):
    batches = with_nan(epochs(), [13, 14, 15])  # 12 batches per epoch
    settings = {"max_nonfinite_steps": 3, "steps_per_call": steps_per_call, "save_every": 5, "total_steps": 30}
    with raises(BertTfError, "3 steps", "step 16", "learning_rate") as caught:
        train(tmp_path, batches, **settings)
    message = str(caught.value)
    assert "\n" not in message
    assert "batch 3 of epoch 1," in message
    # Written after two of the three were skipped, and as good as that of step 13 would be.
    assert f"last good checkpoint: {tmp_path}/checkpoints/step-15;" in message
    fingerprints = [
        bytes(batch_fingerprint(batch_of(batches, *place)).numpy()).hex() for place in ((1, 3), (1, 2), (0, 3))
    ]
    assert [f"fingerprint {one};" in message for one in fingerprints] == [True, False, False]


def test_skipped_updates_are_counted_over_the_whole_run_also_after_resuming(tmp_path, capsys):
    batches = with_nan(epochs(), [1, 2, 7])
    with pytest.raises(Interrupted):
        stop = stopping_at(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        train(tmp_path, batches, total_steps=9, evaluate=stop, evaluate_every=4)
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write('{"kind": "trai')
    trained, _ = train(tmp_path, batches, total_steps=9)
    assert trained.skipped == 3
    assert "lacks lines" not in capsys.readouterr().err


def test_nonfinite_steps_that_are_not_consecutive_do_not_stop_the_run(tmp_path):
    before = weights_of(trainer(bert=False))
    batches = with_nan(epochs(), [1, 2, 4, 5, 7, 8])
    trained, history = train(tmp_path, batches, max_nonfinite_steps=3, steps_per_call=1)
    assert (trained.step, trained.skipped) == (12, 6)
    assert difference(weights_of(trained), before) > 1e-3
    assert all(np.isfinite(value).all() for value in weights_of(trained).values())
    assert np.isfinite([point["loss"] for point in history.points]).all()


@pytest.mark.slow  # test_loss_scale.py has the scale
def test_float16_trains_with_a_scaled_loss(tmp_path, overfitted):
    trained, history = train(tmp_path, epochs(examples=8), dtype="mixed_float16", **EIGHT)
    assert trained.loss_scale.variable[0] > 1
    assert all(np.isfinite(value).all() for value in weights_of(trained).values())
    assert history.points[-1]["loss"] < 0.5 * history.points[0]["loss"]
    # The reported and clipped gradient is the one without the scale; float16 has three digits of it.
    assert history.points[0]["gradient_norm"] == pytest.approx(overfitted.points[0]["gradient_norm"], rel=1e-2)


def test_the_error_for_a_batch_that_cannot_be_split_names_a_size_that_can():
    with raises(ConfigError, "batch_size", "8", "3"):
        trainer(bert=False, accumulation=3)


def test_a_last_batch_with_fewer_examples_than_microbatches_is_trained_on(tmp_path):
    # 9 examples: a batch of 8 and one of 1, split into 4 microbatches, three of which are empty.
    trained, history = train(tmp_path, epochs(examples=9), accumulation=4, total_steps=4, log_every=1)
    assert all(np.isfinite(point["loss"]) for point in history.points)
    assert all(np.isfinite(value).all() for value in weights_of(trained).values())


def test_evaluations_come_before_during_and_after_and_a_short_run_has_a_point_at_its_end(tmp_path):
    _, history = train(tmp_path, total_steps=7, log_every=100, evaluate=lambda: {"accuracy": 0.5}, evaluate_every=3)
    assert [point["step"] for point in history.points] == [7]
    assert [row["step"] for row in history.evaluations] == [0, 3, 6, 7]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_work_meanwhile_is_done_once_and_its_error_ends_nothing(tmp_path):
    calls = []

    def meanwhile():
        calls.append(0)
        raise Stop

    trained = trainer(bert=False, total_steps=3)
    loop_of(trained, [Input(epochs())], str(tmp_path), meanwhile=meanwhile).run()
    assert (calls, trained.step) == ([0], 3)


def stopping_at(number, how):
    """An evaluation that ends the run at its call of this number."""
    calls = []

    def evaluate():
        calls.append(0)
        if len(calls) == number:
            how()
        return {"accuracy": 0.5}

    return evaluate


def die():
    raise Stop


INTERRUPTED = {
    "dropout": 0.1, "total_steps": 27, "log_every": 5, "steps_per_call": 2, "save_every": 7, "evaluate_every": 6,
}  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The weights and the History of a run without interruption."""
    trained, history = train(tmp_path_factory.mktemp("whole"), evaluate=lambda: {"accuracy": 0.5}, **INTERRUPTED)
    return weights_of(trained), history


@pytest.mark.parametrize("how", ["exception", "signal"])
def test_a_stopped_run_resumes_bit_for_bit(tmp_path, uninterrupted, how):
    stop = die if how == "exception" else lambda: os.kill(os.getpid(), signal.SIGTERM)
    expected = Stop if how == "exception" else Interrupted
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(expected) as caught:
        train(tmp_path, evaluate=stopping_at(4, stop), **INTERRUPTED)  # in the second epoch
    assert how == "exception" or caught.value.exit_status == 0
    # Other initial weights: all relevant state must come from the checkpoint.
    trained, history = train(tmp_path, evaluate=lambda: {"accuracy": 0.5}, weights=99, **INTERRUPTED)

    mine, (theirs, whole) = weights_of(trained), uninterrupted
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    assert curve(history.points) == curve(whole.points)
    assert history.evaluations == whole.evaluations
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_sigint_exits_with_130_and_says_how_to_resume(tmp_path):
    stop = stopping_at(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with raises(Interrupted, "step 6") as caught:
        train(tmp_path, evaluate=stop, evaluate_every=4)
    assert caught.value.exit_status == 130


@pytest.mark.parametrize("patience, evaluations", [(0, [0, 2, 4]), (1, [0, 2])])
def test_a_signal_during_the_last_evaluation_stops_the_run_and_it_resumes_with_the_same_result(
    tmp_path, patience, evaluations
):
    interrupt = stopping_at(len(evaluations), lambda: os.kill(os.getpid(), signal.SIGINT))
    settings = {"total_steps": 4, "evaluate_every": 2, "patience": patience, "log_every": 3}
    last = evaluations[-1]
    with raises(Interrupted, last) as caught:
        train(tmp_path, evaluate=lambda: interrupt() | {"loss": 0.5}, **settings)
    assert caught.value.exit_status == 130
    before = (tmp_path / "history.jsonl").read_bytes()
    trained, history = train(tmp_path, evaluate=die, **settings)  # which does no update
    assert trained.step == last
    assert (tmp_path / "history.jsonl").read_bytes() == before
    assert [row["step"] for row in history.evaluations] == evaluations


def test_sigterm_outside_of_updates_is_a_success_too():
    before = signal.getsignal(signal.SIGTERM)
    expected = pytest.raises(Terminated, match="run the same command again to resume from runs/mine")
    with expected as caught, terminable("runs/mine"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.exit_status == 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_run_that_lost_its_last_evaluation_repeats_it(tmp_path):
    with pytest.raises(Stop):
        train(tmp_path, total_steps=4, evaluate=stopping_at(2, die))
    _, history = train(tmp_path, total_steps=4, evaluate=lambda: {"accuracy": 0.75})
    assert [(row["step"], row["accuracy"]) for row in history.evaluations] == [(0, 0.5), (4, 0.75)]


def test_a_shortened_history_is_reported_when_the_run_resumes(tmp_path, capsys):
    # Updates without a point: a skipped one, and those since the last point.
    settings = {"total_steps": 12, "log_every": 4, "save_every": 5, "steps_per_call": 1}
    stop = stopping_at(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(tmp_path, with_nan(epochs(), [2, 8]), evaluate=stop, evaluate_every=5, **settings)
    path = tmp_path / "history.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(row for row in rows if '"step": 8' not in row))
    capsys.readouterr()
    trained, _ = train(tmp_path, with_nan(epochs(), [2, 8]), evaluate=lambda: {"accuracy": 0.5}, **settings)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bert_tf: ")]
    assert trained.step == 12 and "history.jsonl lacks lines from before step 11;" in line


def test_too_little_room_for_the_checkpoints_is_reported_before_the_first_update(tmp_path, monkeypatch):
    size = sum(variable.numpy().nbytes for variable in trainer(bert=False).variables().values())
    disk = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk._replace(free=3 * size))
    settings = {"save_every": 2, "keep": 9}
    with raises(DataError, "6 more") as caught:
        train(tmp_path, **settings)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())
    train(tmp_path / "fewer", **settings | {"keep": 1})


@pytest.mark.parametrize("evaluate, steps", [(None, [3]), (lambda: {"accuracy": 0.5}, [1, 2, 3])])
def test_checkpoints_are_written_at_evaluations_only_where_something_is_evaluated(tmp_path, evaluate, steps):
    train(tmp_path, total_steps=3, evaluate=evaluate, evaluate_every=1, keep=9)
    names = sorted(path.stem for path in (tmp_path / "checkpoints").glob("step-*.index"))
    assert names == [f"step-{step}" for step in steps]


def test_data_that_changed_during_the_run_stop_it_before_a_checkpoint_is_written(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one\n\ntwo\n")
    check = functools.partial(check_unchanged, [str(corpus)], corpus_identity([str(corpus)]))

    def evaluate():  # before the first update
        corpus.write_text("one\n")
        return {"loss": 0.0}

    source = Input(epochs(), evaluate=evaluate, check=check)
    with raises(DataError, "corpus.txt", "9", "4 bytes"):
        loop_of(trainer(bert=False), [source], str(tmp_path / "run")).run()
    assert not list((tmp_path / "run").rglob("*.index"))


def test_a_finished_run_is_not_trained_again(tmp_path):
    done, history = train(tmp_path, total_steps=4)
    again, again_history = train(tmp_path, total_steps=4, weights=99)
    assert difference(weights_of(done), weights_of(again)) == 0
    assert again_history.points == history.points
