import math

import pytest

from bert_tf.metrics.statistics import mean_and_deviation, wilson_interval


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
