"""95% bootstrap intervals of metrics (Efron's percentile bootstrap).

The resamples depend on the seed and the number of examples only, so two models are compared on the same resamples of
the same examples. A metric is computed for all resamples at once, from sums or counts: from the examples of each
resample it would take minutes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bert_tf.errors import DataError
from bert_tf.metrics.checks import Values, check_lengths
from bert_tf.types import Array

# Numbers gathered at a time: resamples are processed in chunks so that memory stays flat in the number of examples.
_CHUNK = 1 << 22


def interval_of_sums(
    metric: Callable[[Array], Array],
    terms: Values,
    resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Interval of a metric that is a function of sums over the examples.

    Accuracy and exact match are such metrics (one term, and `metric` divides by the number of examples), and so is F1
    of entities (`tagging.entity_counts` and `counts.precision_recall_f1`).

    Args:
        metric: maps float64 [resamples, terms] to [resamples].
        terms: [examples, terms] or [examples], numbers.
        resamples: number of resamples.
        seed: of the resamples.
        confidence: share of the resamples within the interval; half of the rest is cut off on each side.

    Returns:
        (low, high); nan if the metric was nan in a resample.
    """
    examples = check_lengths(examples=terms)
    terms = np.asarray(terms, np.float64).reshape(examples, -1)
    # Terms weighted by how often each example is drawn: gathering them takes six times as long, for 900 terms.
    sums = np.concatenate([_counts(rows, examples) @ terms for rows in _resamples(examples, resamples, seed, 1)])
    return _percentiles(metric(sums), confidence)


def intervals_of_counts(
    metric: Callable[..., Mapping[str, Array]],
    columns: Sequence[Array],
    sizes: Sequence[int],
    resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, tuple[float, float]]:
    """Intervals of metrics that are functions of the counts of values, such as classes or examples.

    Args:
        metric: maps int [resamples, size], one for each column, to a dict of [resamples].
        columns: int [examples] each, values from 0 to below the column's size.
        sizes: number of values of each column.
        resamples, seed, confidence: as for `interval_of_sums`.

    Returns:
        dict name -> (low, high); nan if the metric was nan in a resample.
    """
    examples = check_lengths(**{f"values of column {index}": column for index, column in enumerate(columns, 1)})
    chunks = [
        metric(*(_counts(column[rows], size) for column, size in zip(columns, sizes, strict=True)))
        for rows in _resamples(examples, resamples, seed, 1 + sum(sizes) // examples)
    ]
    return {name: _percentiles(np.concatenate([chunk[name] for chunk in chunks]), confidence) for name in chunks[0]}


def interval_of_mean(
    values: Values, resamples: int = 1000, seed: int = 0, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of a mean over the examples: accuracy, or exact match and F1 of `squad.question_scores`.

    Args:
        values: [examples], numbers.
        resamples, seed, confidence: as for `interval_of_sums`.

    Returns:
        (low, high).
    """
    return interval_of_sums(lambda sums: sums[:, 0] / len(values), values, resamples, seed, confidence)


def _resamples(examples: int, resamples: int, seed: int, terms: int) -> Iterator[Array]:
    """Yields int [chunk, examples], the examples of each resample; the same for every size of chunks."""
    if resamples < 1:
        raise DataError(f"{resamples} resamples; expected at least one")
    generator = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // (examples * terms))
    for start in range(0, resamples, chunk):
        yield generator.integers(examples, size=(min(chunk, resamples - start), examples))


def _counts(values: Array, size: int) -> Array:
    """Counts of each number below `size` in each resample of values: int [resamples, examples] to [resamples, size]."""
    return np.stack([np.bincount(row, minlength=size) for row in values])


def _percentiles(values: Array, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
