"""Runs in phases: the data of each, the learning rate, and resuming inside of a phase."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import PhaseConfig, PretrainingData, TrainConfig
from bert_tf.errors import ConfigError
from bert_tf.training import phases, schedules
from bert_tf.training.phases import Input
from tests.errors import raises
from tests.training.small import Stop, curve, epochs, loop_of, trainer, weights_of


def ramp(**last):
    """Batches of 4, 8 and 16, the last in two micro-batches."""
    return (
        PhaseConfig(share=0.25, batch_size=4),
        PhaseConfig(share=0.25, batch_size=8),
        PhaseConfig(share=0.5, batch_size=16, accumulation=2, **last),
    )


def train(folder, phases=None, total_steps=20, evaluate=None, sizes=(4, 8, 16), **settings):
    """Trains the regression and records the rows of each batch: the Trainer, the History, and the rows in order."""
    trained = trainer(bert=False, total_steps=total_steps, phases=phases or ramp(), steps_per_call=3, **settings)
    seen = []

    def batches(size):
        def note(features):
            tf.py_function(lambda ids: seen.append(ids.numpy()), [features["input_word_ids"]], [])
            return features

        return lambda epoch: epochs(size)(epoch).map(note)

    inputs = [Input(batches(size) if evaluate is None else epochs(size), evaluate=evaluate) for size in sizes]
    history = loop_of(trained, inputs, folder, evaluate_every=0 if evaluate is None else 4).run()
    return trained, history, seen


def test_each_phase_trains_on_its_own_batches(tmp_path):
    trained, history, seen = train(tmp_path, log_every=1)
    assert [(phase.first, phase.end) for phase in trained.phases] == [(0, 5), (5, 10), (10, 20)]
    assert trained.step == len(history.points) == 20
    # Prefetching reads ahead, so at least this many, and no smaller one after a larger one.
    sizes = [len(ids) for ids in seen]
    assert sizes == sorted(sizes) and [sizes.count(4) >= 5, sizes.count(8) >= 5, sizes.count(16) >= 10] == [True] * 3
    # A phase starts with an epoch that the previous one has not used.
    for size, epoch in ((4, 0), (8, 1), (16, 2)):
        (first,) = epochs(size)(tf.constant(epoch, tf.int64)).take(1)
        np.testing.assert_array_equal(next(ids for ids in seen if len(ids) == size), first["input_word_ids"])


def test_a_phase_equals_a_run_with_its_settings_from_the_weights_of_the_previous_phase(tmp_path):
    settings = {"schedule": "constant", "warmup": 0.0, "log_every": 1}
    two = (PhaseConfig(share=0.5), PhaseConfig(share=0.5, batch_size=16, accumulation=2))
    whole, _, _ = train(tmp_path / "whole", two, sizes=(8, 16), **settings)

    first = trainer(bert=False, total_steps=10, **settings)
    loop_of(first, [Input(epochs(8))], str(tmp_path / "first")).run()
    second = trainer(bert=False, total_steps=10, batch_size=16, **settings)
    for path, value in weights_of(first).items():
        own = {weight.path: weight for weight in second.model.weights} | second.optimizer.slots
        own[path].assign(value)
    loop_of(second, [Input(lambda epoch: epochs(16)(epoch + 1))], str(tmp_path / "second")).run()

    for path, value in weights_of(second).items():
        np.testing.assert_allclose(weights_of(whole)[path], value, rtol=1e-4, atol=1e-7)


def evaluation(stop=None):
    """An evaluation that ends the run when called after `stop` calls."""
    calls = itertools.count()

    def evaluate():
        if next(calls) == stop:
            raise Stop
        return {"accuracy": 0.5}

    return evaluate


INTERRUPTED = {"dropout": 0.1, "save_every": 1}
EVALUATED = [0, 4, 5, 8, 10, 12, 16, 20]  # every four updates, and at the ends of phases


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The weights and the History of a run without interruption."""
    trained, history, _ = train(tmp_path_factory.mktemp("whole"), evaluate=evaluation(), **INTERRUPTED)
    return weights_of(trained), history


def test_validation_text_is_evaluated_at_the_ends_of_phases_too(uninterrupted):
    assert [row["step"] for row in uninterrupted[1].evaluations] == EVALUATED


# Between two phases, inside of one, inside of one in micro-batches.
@pytest.mark.parametrize("stop_at", [*(pytest.param(step, marks=pytest.mark.slow) for step in (5, 8)), 16])
def test_a_run_stopped_in_a_phase_or_between_two_resumes_bit_for_bit(tmp_path, uninterrupted, stop_at):
    with pytest.raises(Stop):
        train(tmp_path, evaluate=evaluation(EVALUATED.index(stop_at)), **INTERRUPTED)
    trained, history, _ = train(tmp_path, evaluate=evaluation(), weights=99, **INTERRUPTED)

    mine, (theirs, whole) = weights_of(trained), uninterrupted
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    assert curve(history.points) == curve(whole.points)
    assert history.evaluations == whole.evaluations


def rates(config, total_steps):
    rate = phases.learning_rate(phases.split(config, total_steps))
    return [float(rate(tf.constant(step, tf.int64))) for step in range(total_steps)]


def test_the_schedule_spans_phases():
    config = TrainConfig(learning_rate=1.0, warmup=0.1, batch_size=16)
    whole = schedules.learning_rate(config.resolved(), 40)
    phased = dataclasses.replace(config, phases=ramp())
    assert rates(phased, 40) == rates(config, 40) == [float(whole(step)) for step in range(40)]


def test_a_phase_with_its_own_rate_restarts_the_schedule_up_to_the_next_such_phase():
    four = (PhaseConfig(0.25), PhaseConfig(0.25, batch_size=16), PhaseConfig(0.25, learning_rate=0.5, warmup=0.5))
    config = TrainConfig(learning_rate=1.0, warmup=0.1, phases=(*four, PhaseConfig(0.25)))
    found = rates(config, 40)
    assert found[:20] == rates(TrainConfig(learning_rate=1.0, warmup=0.1), 20)
    assert found[20:] == rates(TrainConfig(learning_rate=0.5, warmup=0.5), 20)
    assert found[19] < 0.1 < max(found[20:]) == 0.5


def test_a_stable_schedule_may_fall_in_its_last_phase_alone():
    two = (PhaseConfig(0.5, learning_rate=1.0, decay=0.0), PhaseConfig(0.5, learning_rate=0.5, warmup=0.0, decay=0.2))
    found = rates(TrainConfig(schedule="stable", warmup=0.1, phases=two), 40)
    assert found[:20] == [0.5, *[1.0] * 19] and found[20:37] == [0.5] * 17 and 0 < found[39] < 0.1


def test_data_settings_of_a_phase_override_the_runs():
    data = PretrainingData(max_length=128, max_predictions=20, masking="span")
    assert data.in_phase(PhaseConfig(max_length=512, max_predictions=76)) == PretrainingData(
        max_length=512, max_predictions=76, masking="span"
    )
    assert data.in_phase(PhaseConfig(batch_size=2)) == data


def test_a_phase_has_its_own_rotary_base_and_its_shape_does_not_matter(tmp_path):
    def train(name, shape, phases=()):
        settings = {"total_steps": 2, "log_every": 1, "steps_per_call": 1, "phases": phases}
        trained = trainer(shape={"positions": "rotary", "initializer_range": 0.5} | shape, **settings)
        loop = loop_of(trained, [Input(epochs(8))] * max(len(phases), 1), str(tmp_path / name))
        return [point["loss"] for point in loop.run().points]

    found = train("phases", {"rotary_base": 3.0}, (PhaseConfig(0.5, rotary_base=50.0), PhaseConfig(0.5)))
    assert found[0] == train("before", {"rotary_base": 50.0})[0] != train("after", {"rotary_base": 3.0})[0]
    whole = train(
        "whole", {"rotary_base": 3.0}, (PhaseConfig(0.5, rotary_base=50.0), PhaseConfig(0.5, rotary_base=50.0))
    )
    assert found[0] == whole[0] and found[1] != whole[1]
    with raises(ConfigError, "rotary_base", "model.positions is 'table'"):
        trainer(phases=(PhaseConfig(1.0, rotary_base=50.0),))


@pytest.mark.parametrize(
    "phases, message",
    [
        ((PhaseConfig(0.5), PhaseConfig(0.4)), ("train.phases", "0.5", "0.4", "1")),
        ((PhaseConfig(0.0), PhaseConfig(1.0)), ("train.phases[0].share", "0.0", "0")),
        ((PhaseConfig(0.5), PhaseConfig(0.5, batch_size=0)), ("train.phases[1].batch_size", "0")),
        (
            (PhaseConfig(0.5), PhaseConfig(0.5, warmup=0.1)),
            ("train.phases[1].warmup", "0.1", "learning_rate"),
        ),
        ((PhaseConfig(1.0, decay=0.1),), ("train.phases[0].decay", "0.1", "learning_rate")),
    ],
)
def test_invalid_phases_are_refused(phases, message):
    with raises(ConfigError, *message):
        TrainConfig(phases=phases).check()


def test_a_phase_without_a_step_and_one_whose_batch_cannot_be_split_are_refused():
    short = TrainConfig(phases=(PhaseConfig(0.01), PhaseConfig(0.99)))
    with raises(ConfigError, "train.phases[0].share", "0.01", "20 steps"):
        phases.split(short, 20)
    with raises(ConfigError, "phases[1]", "train.batch_size", "9", "1 replicas", "2"):
        trainer(bert=False, phases=(PhaseConfig(0.5), PhaseConfig(0.5, batch_size=9, accumulation=2)))
