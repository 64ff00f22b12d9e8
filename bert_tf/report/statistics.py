"""How sure a measured share is, and a mean."""

import math

import numpy as np


def wilson_interval(correct, total, z=1.959964):
    """Wilson's score interval of a binomial share; unlike the normal one it stays inside 0 to 1.

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


def mean_and_deviation(values):
    """Of several runs' figures; nan where one is.

    Args:
        values: list of float, one at least.

    Returns:
        (mean, standard deviation of the sample: None of a single value).
    """
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
