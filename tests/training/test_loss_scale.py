import keras
import pytest
import tensorflow as tf

from bert_tf.training.phases import Input
from bert_tf.training.step import LossScale
from tests.model.small import multiplies_float16
from tests.training.small import epochs, loop_of, trainer, with_nan


def scale(dtype="mixed_float16", growth=3):
    return LossScale(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype=dtype)]), growth)


def after(loss_scale, updates, state=None):
    """The state after updates that were finite (1) or overflowed (0)."""
    state = loss_scale.variable.numpy() if state is None else tf.constant(state)
    for update in updates:
        state = loss_scale.next(state, tf.constant(update == "1"))
    return [float(value) for value in state]


@pytest.mark.parametrize(
    "updates, expected",
    [
        ("11", [2.0**15, 2]),
        ("111", [2.0**16, 0]),
        ("111111", [2.0**17, 0]),
        ("110", [2.0**14, 0]),  # an overflow restarts the count
        ("11011", [2.0**14, 2]),
        ("110111", [2.0**15, 0]),
        ("000", [2.0**12, 0]),
    ],
)
def test_the_scale_doubles_after_a_number_of_finite_updates_and_halves_at_an_overflow(updates, expected):
    assert after(scale(), updates) == expected


def test_the_scale_stays_between_one_and_two_to_the_24th():
    assert after(scale(), "0000", [2.0, 0.0]) == [1.0, 0.0]
    assert after(scale(), "111111", [2.0**23, 0.0]) == [2.0**24, 0.0]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_other_formats_have_no_scale(dtype):
    assert after(scale(dtype, growth=1), "1011")[0] == 1.0


@multiplies_float16
def test_an_overflow_halves_the_scale_and_training_continues_and_both_are_in_the_checkpoint(tmp_path):
    settings = {"dtype": "mixed_float16", "total_steps": 5, "loss_scale_growth": 3}
    trained = trainer(**settings)
    loop_of(trained, [Input(with_nan(epochs(), [3]))], str(tmp_path)).run()
    assert trained.loss_scale.variable.numpy().tolist() == [2.0**15, 1.0]  # doubled, halved, one update since

    again = trainer(**settings, weights=99)
    loop_of(again, [Input(epochs())], str(tmp_path)).run()
    assert again.loss_scale.variable.numpy().tolist() == [2.0**15, 1.0]
    assert int(again.optimizer.slots["updates"]) == 4
