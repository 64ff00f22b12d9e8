"""Confidence interval of a proportion, and mean and standard deviation."""

from collections.abc import Sequence

import numpy as np


def wilson_interval(correct: float, total: int) -> tuple[float, float]:
    """95% Wilson score interval (low, high) of a proportion; unlike the normal interval it stays within 0 and 1.

    Args:
        correct: number of successes.
        total: number of trials, at least 1.
    """
    # Imported here: it takes long to load, and few programs need it.
    from scipy.stats import binomtest

    interval = binomtest(round(correct), int(total)).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation of at least one value, such as a metric of several runs.

    Returns:
        (mean, deviation); both are nan if a value is. The deviation of a single value is None.
    """
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
