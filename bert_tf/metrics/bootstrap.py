"""95% intervals of metrics, by drawing the examples again (Efron's percentile bootstrap).

The resamples depend on the seed and the number of examples alone, so two models that answer the same examples are drawn in
pairs. A metric gets what it needs of all resamples at once: computed from the examples of each it would take minutes.
"""

import numpy as np

from bert_tf.errors import DataError
from bert_tf.metrics.checks import check_lengths

# Numbers gathered at a time: resamples are worked on in parts so that memory stays flat in the number of examples.
_PART = 1 << 22


def interval_of_sums(metric, terms, resamples=1000, seed=0, confidence=0.95):
    """Interval of a metric that is a function of sums over the examples.

    Accuracy and exact match are (one term, and `metric` divides by the number of examples), F1 of entities
    (`tagging.entity_counts` and `counts.precision_recall_f1`).

    Args:
        metric: function of float64 [resamples, terms] to [resamples].
        terms: [examples, terms] or [examples], numbers.
        resamples: how many times the examples are drawn.
        seed: of the resamples.
        confidence: share of the resamples within the interval; the rest is cut off in halves.

    Returns:
        (low, high); nan where the metric was nan in a draw.

    Raises:
        DataError: no examples.
    """
    examples = check_lengths(examples=terms)
    terms = np.asarray(terms, np.float64).reshape(examples, -1)
    # Each example's terms as often as it is drawn: to gather them for every draw takes six times as long, of 900 terms.
    sums = np.concatenate([_times(rows, examples) @ terms for rows in _resamples(examples, resamples, seed, 1)])
    return _percentiles(metric(sums), confidence)


def intervals_of_counts(metric, columns, sizes, resamples=1000, seed=0, confidence=0.95):
    """Intervals of a metric that is a function of how often each value comes: of classes, or of examples.

    Args:
        metric: function of int [resamples, size], one for each column, to a dict of [resamples].
        columns: list of int [examples], each from 0 to its size.
        sizes: list of int.
        resamples, seed, confidence: as for `interval_of_sums`.

    Returns:
        dict name -> (low, high); nan where the metric was nan in a draw.

    Raises:
        DataError: no examples, or lengths that differ.
    """
    examples = check_lengths(**{f"values of column {index}": column for index, column in enumerate(columns, 1)})
    measured = [
        metric(*(_times(column[rows], size) for column, size in zip(columns, sizes, strict=True)))
        for rows in _resamples(examples, resamples, seed, 1 + sum(sizes) // examples)
    ]
    return {name: _percentiles(np.concatenate([part[name] for part in measured]), confidence) for name in measured[0]}


def interval_of_mean(values, resamples=1000, seed=0, confidence=0.95):
    """Interval of a mean over the examples: accuracy, or exact match and F1 of `squad.question_scores`.

    Args:
        values: [examples], numbers.
        resamples, seed, confidence: as for `interval_of_sums`.

    Returns:
        (low, high).

    Raises:
        DataError: no examples.
    """
    return interval_of_sums(lambda sums: sums[:, 0] / len(values), values, resamples, seed, confidence)


def _resamples(examples, resamples, seed, terms):
    """Yields int [part, examples], which examples each draw takes; `resamples` rows in all, the same whatever the parts."""
    if resamples < 1:
        raise DataError(f"{resamples} resamples; expected at least one")
    generator = np.random.default_rng(seed)
    part = max(1, _PART // (examples * terms))
    for start in range(0, resamples, part):
        yield generator.integers(examples, size=(min(part, resamples - start), examples))


def _times(values, size):
    """int [resamples, size], how often each number below `size` is among the values of a draw: int [resamples, examples]."""
    return np.stack([np.bincount(row, minlength=size) for row in values])


def _percentiles(values, confidence):
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
