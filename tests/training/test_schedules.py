"""Learning rates against values computed by hand, and google-research/bert's against its formula in NumPy."""

import numpy as np
import pytest

from bert_tf.config import TrainConfig
from bert_tf.training.schedules import learning_rate


class Rates(list):
    """Equal to a list of the same numbers up to float32's rounding."""

    def __eq__(self, other):
        return list(self) == pytest.approx(list(other), rel=1e-6, abs=1e-7)


def rates(steps, total_steps=12, **settings):
    settings = {"learning_rate": 1.0, "warmup_steps": 4} | settings
    rate = learning_rate(TrainConfig(**settings).resolved(), total_steps)
    return Rates(float(rate(step)) for step in steps)


def test_the_rate_rises_in_equal_steps_to_the_peak():
    assert rates(range(4)) == [0.25, 0.5, 0.75, 1.0]


def test_linear_falls_in_a_straight_line_to_zero():
    assert rates(range(4, 13)) == [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0]


def test_linear_falls_to_the_final_rate():
    # From 1 to 0.2 in eight steps of 0.1; the last update, number 11, is one step before the end.
    assert rates([4, 8, 11, 12], end_learning_rate=0.2) == [1.0, 0.6, 0.3, 0.2]


def test_polynomial_is_a_power_of_the_remaining_share():
    left = [1.0, 0.5, 0.125, 0.0]
    assert rates([4, 8, 11, 12], schedule="polynomial", power=2.0) == [share**2 for share in left]
    assert rates([4, 8, 11, 12], schedule="polynomial", power=0.5) == [share**0.5 for share in left]
    # 0.2 + 0.8 * 0.25
    assert rates([8], schedule="polynomial", power=2.0, end_learning_rate=0.2) == [0.4]


def test_cosine_is_halfway_down_in_the_middle():
    # A third of the way down: (1 + cos(60 degrees)) / 2.
    assert rates([6, 9, 12, 15], total_steps=15, warmup_steps=3, schedule="cosine") == [
        (1 + np.cos(np.pi / 4)) / 2, 0.5, (1 - np.cos(np.pi / 4)) / 2, 0.0,
    ]  # fmt: skip
    assert rates([4, 8, 12], schedule="cosine", end_learning_rate=0.2) == [1.0, 0.6, 0.2]


def test_noam_is_the_formula_of_vaswani_et_al():
    # Section 5.3: width ** -0.5 * min(n ** -0.5, n * warmup ** -1.5), for update n from 1.
    width, warmup = 512, 4000
    peak = (width * warmup) ** -0.5
    numbers = [1, 2000, 4000, 4001, 16000, 100000]
    expected = [width**-0.5 * min(n**-0.5, n * warmup**-1.5) for n in numbers]
    settings = {"schedule": "noam", "learning_rate": peak, "warmup_steps": warmup}
    assert rates([n - 1 for n in numbers], total_steps=100000, **settings) == expected
    assert expected[2] == pytest.approx(peak) and expected[4] == pytest.approx(peak / 2)


def test_stable_stays_at_the_peak_and_falls_with_the_root_of_what_is_left_to_do():
    """Haegele et al. (2024), the form "1-sqrt", over the last third of twelve updates."""
    found = rates([3, 4, 7, 8, 9, 11, 12, 13], schedule="stable", decay=1 / 3, end_learning_rate=0.1)
    assert list(found) == pytest.approx([1, 1, 1, 1, 1 - 0.9 * 0.25**0.5, 1 - 0.9 * 0.75**0.5, 0.1, 0.1])
    assert rates([8, 11], schedule="stable", decay=0.0) == [1.0, 1.0]


def test_constant_stays_at_the_peak():
    assert rates([0, 3, 4, 11, 12, 1000], schedule="constant") == [0.25, 1.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule, end", [("linear", 0.0), ("linear", 0.1), ("polynomial", 0.1), ("cosine", 0.1)])
def test_after_the_end_the_rate_stays_constant(schedule, end):
    assert rates([12, 13, 1000], schedule=schedule, end_learning_rate=end) == [end] * 3


@pytest.mark.parametrize("schedule", ["linear", "cosine", "noam", "constant"])
def test_without_warm_up_the_first_rate_is_the_peak(schedule):
    assert rates([0], warmup_steps=0, schedule=schedule) == [1.0]


def test_warm_up_may_take_the_whole_run():
    assert rates(range(5), total_steps=4) == [0.25, 0.5, 0.75, 1.0, 0.0]


def test_warm_up_as_a_share_is_rounded_down_and_overridden_by_a_number():
    assert rates([0, 2, 3], warmup_steps=None, warmup=0.3) == [1 / 3, 1.0, 1.0]  # 3.6 of 12 updates
    assert rates([0, 3], warmup_steps=4, warmup=0.9) == [0.25, 1.0]


@pytest.mark.parametrize("step", [0, 3, 7])
def test_the_peak_scales_the_rate(step):
    assert rates([step], learning_rate=3.0) == [3.0 * rate for rate in rates([step])]


def google(step, peak, warmup, total):
    """create_optimizer of google-research/bert's optimization.py: polynomial_decay of power 1, then the warm-up."""
    rate = peak * (1 - min(step, total) / total)
    return peak * step / warmup if step < warmup else rate


def test_the_recipe_google_starts_at_zero_and_drops_after_the_warm_up():
    found = rates(range(13), recipe="google")
    assert found == [google(step, 1.0, 4, 12) for step in range(13)]
    assert Rates(found[:6]) == [0.0, 0.25, 0.5, 0.75, 8 / 12, 7 / 12]


def test_the_recipe_google_without_warm_up_starts_at_the_peak():
    assert rates([0, 6, 11], recipe="google", warmup_steps=0) == [1.0, 0.5, 1 / 12]


def test_each_quirk_of_google_can_be_set_alone():
    assert rates([0, 3, 4, 5], warmup_from_zero=True) == [0.0, 0.75, 1.0, 0.875]
    assert rates([0, 3, 4, 5], decay_from_start=True) == [0.25, 1.0, 8 / 12, 7 / 12]
    assert rates([0, 3, 4, 5], recipe="google", warmup_from_zero=False, decay_from_start=False) == rates([0, 3, 4, 5])
