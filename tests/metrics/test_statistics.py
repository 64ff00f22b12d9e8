import math

import numpy as np
import pytest
from scipy import stats

from bert_tf.errors import DataError
from bert_tf.metrics import statistics
from bert_tf.metrics.statistics import bootstrap_intervals, mean_and_deviation, wilson_interval
from tests.errors import raises


def mean(values):
    return {"mean": values.mean()}


def test_nineteen_of_twenty_intervals_contain_the_true_accuracy(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 400)
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        low, high = bootstrap_intervals(mean, rng.random(150) < 0.8)["mean"]
        hits += low <= 0.8 <= high
    # The range that 200 trials give in all but one of a thousand cases if the true share is 0.93 to 0.96: at this size
    # the percentile method is known to be slightly below 0.95.
    assert stats.binom.ppf(5e-4, 200, 0.93) <= hits <= stats.binom.ppf(1 - 5e-4, 200, 0.96)


def test_the_intervals_equal_scipys(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)
    values = np.random.default_rng(1).gamma(2, size=400)
    expected = stats.bootstrap((values,), np.median, n_resamples=4000, method="percentile", rng=2).confidence_interval
    found = bootstrap_intervals(lambda drawn: {"median": np.median(drawn)}, values)["median"]
    assert found == pytest.approx(expected, abs=0.1 * (expected.high - expected.low))


def test_the_interval_of_a_mean_of_many_examples_is_that_of_the_normal_distribution():
    values = np.random.default_rng(1).normal(3, 2, 2000)
    low, high = bootstrap_intervals(mean, values)["mean"]
    half = 1.96 * values.std() / np.sqrt(2000)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)


def test_every_example_is_drawn_as_often_as_the_others():
    found = bootstrap_intervals(lambda drawn: dict(zip("abcd", drawn.mean(0), strict=True)), np.eye(4))
    # Each mean is a binomial count of 4 draws, divided by 4: 0 in 32% of the resamples, 3 or 4 in 5%.
    assert list(found.values()) == [(0, 0.75)] * 4


def test_models_are_compared_on_the_same_resamples():
    rng = np.random.default_rng(4)
    one = rng.random(300) < 0.7
    two = one | (rng.random(300) < 0.1)  # never wrong where the first is right
    first, second = bootstrap_intervals(mean, one)["mean"], bootstrap_intervals(mean, two)["mean"]
    gain = bootstrap_intervals(lambda one, two: {"gain": two.mean() - one.mean()}, one, two)["gain"]
    assert second[0] < first[1]  # separately, the intervals overlap
    assert 0 < gain[0] < two.mean() - one.mean() < gain[1]
    assert bootstrap_intervals(mean, one)["mean"] == first


def test_a_metric_is_computed_from_the_resamples_that_define_it():
    # Half of the resamples of two examples contain both.
    found = bootstrap_intervals(lambda kinds: {"only": 1.0} if len(set(kinds)) == 2 else {"other": 2.0}, np.arange(2))
    assert found == {"only": (1, 1), "other": (2, 2)}


def test_empty_and_mismatched_inputs_are_refused():
    with raises(DataError, "column 1"):
        bootstrap_intervals(mean, np.array([]))
    with raises(DataError, "2 values", "column 1", "3 values", "column 2"):
        bootstrap_intervals(lambda *columns: {}, np.zeros(2), np.zeros(3))


def test_wilson_interval_equals_published_values():
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    for (correct, total), expected in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
    }.items():
        assert wilson_interval(correct, total) == pytest.approx(expected, abs=5e-5)


def test_the_standard_deviation_is_that_of_the_sample():
    assert mean_and_deviation([1.0, 2.0, 6.0]) == (3.0, pytest.approx(7**0.5))
    assert mean_and_deviation([2.0]) == (2.0, None)
    assert all(map(math.isnan, mean_and_deviation([1.0, math.nan])))
