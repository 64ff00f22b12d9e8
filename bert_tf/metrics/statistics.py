"""Confidence intervals of metrics and proportions, and mean and standard deviation."""

import collections
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_tf.metrics.checks import check_lengths
from bert_tf.types import Array

RESAMPLES = 1000  # of a bootstrap


def bootstrap_intervals(metrics: Callable[..., Mapping[str, float]], *columns: Array) -> dict[str, tuple[float, float]]:
    """Computes 95% intervals of metrics from resamples of the examples (Efron's percentile bootstrap).

    The resamples depend on the number of examples only, so two models are compared on the same resamples of the same
    examples. `metrics` is called a thousand times: pass each example's contribution, such as its counts, rather than
    texts.

    Args:
        metrics: function of columns of resampled examples to metrics. A metric that a resample lacks, such as one of
            the questions without an answer, is left out of that resample.
        *columns: arrays [examples, ...], one or more.

    Returns:
        dict name -> (low, high).
    """
    examples = check_lengths(**{f"values of column {number}": column for number, column in enumerate(columns, 1)})
    generator = np.random.default_rng(0)
    values: dict[str, list[float]] = collections.defaultdict(list)
    for _ in range(RESAMPLES):
        rows = generator.integers(examples, size=examples)
        for name, value in metrics(*(column[rows] for column in columns)).items():
            values[name].append(value)
    return {name: tuple(np.quantile(of_name, (0.025, 0.975)).tolist()) for name, of_name in values.items()}


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
