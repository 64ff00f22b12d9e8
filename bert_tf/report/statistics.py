"""Confidence interval of a proportion, and mean and standard deviation."""

import math
from collections.abc import Sequence

import numpy as np


def wilson_interval(correct: float, total: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson score interval of a binomial proportion; unlike the normal interval it stays within 0 and 1.

    Args:
        correct: number of successes.
        total: number of trials, at least 1.
        z: standard deviations; the default gives 95%.

    Returns:
        (low, high).
    """
    share = correct / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation of at least one value, such as a metric of several runs.

    Returns:
        (mean, deviation); both are nan if a value is. The deviation of a single value is None.
    """
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
