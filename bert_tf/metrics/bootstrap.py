"""95% bootstrap intervals of metrics (Efron's percentile bootstrap)."""

import collections
from collections.abc import Callable, Mapping

import numpy as np

from bert_tf.metrics.checks import check_lengths
from bert_tf.types import Array

RESAMPLES = 1000


def intervals(metrics: Callable[..., Mapping[str, float]], *columns: Array) -> dict[str, tuple[float, float]]:
    """Computes the metrics of resamples of the examples.

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
