"""95% intervals of any metric, by drawing the examples again (Efron's percentile bootstrap)."""

import numpy as np

from bert_tf.errors import DataError
from bert_tf.metrics.checks import check_lengths

# Numbers gathered at a time: draws are worked on in parts so that memory stays flat in the number of examples.
_PART = 1 << 22


def interval(metric, *columns, draws=1000, seed=0, confidence=0.95):
    """Interval of a metric that needs the examples themselves.

    The draws depend on the seed and the number of examples alone. So two models' metrics are drawn in pairs, and the
    interval of their difference is that of a metric which takes both models' columns:
    `interval(lambda labels, one, two: {"gain": f1(labels, two) - f1(labels, one)}, labels, one, two)`.

    Args:
        metric: function of columns to a dict of floats.
        *columns: [examples] each, labels and predictions for example: arrays, or lists of anything.
        draws: how many times the examples are drawn.
        seed: of the draws.
        confidence: share of the draws within the interval; the rest is cut off in halves.

    Returns:
        dict name -> (low, high); nan where the metric was nan in a draw.

    Raises:
        DataError: no examples, or lengths that differ.
    """
    examples = check_lengths(**{f"values of column {place}": column for place, column in enumerate(columns, 1)})
    measured = [
        metric(*(column[row] if isinstance(column, np.ndarray) else [column[i] for i in row] for column in columns))
        for rows in _draws(examples, draws, seed, 1)
        for row in rows
    ]
    return {name: _percentiles([draw[name] for draw in measured], confidence) for name in measured[0]}


def interval_of_sums(metric, terms, draws=1000, seed=0, confidence=0.95):
    """Interval of a metric that is a function of sums over the examples, which all draws are computed at once for.

    Accuracy and exact match are (one term, and `metric` divides by the number of examples), F1 of entities
    (`tagging.entity_counts` and `tagging.entity_f1`). Draws are the same as those of `interval`, and paired in the same
    way.

    Args:
        metric: function of float64 [draws, terms] to [draws].
        terms: [examples, terms] or [examples], numbers.
        draws, seed, confidence: as for `interval`.

    Returns:
        (low, high); nan where the metric was nan in a draw.

    Raises:
        DataError: no examples.
    """
    examples = check_lengths(examples=terms)
    terms = np.asarray(terms, np.float64).reshape(examples, -1)
    sums = np.concatenate([terms[rows].sum(1) for rows in _draws(examples, draws, seed, terms.shape[1])])
    return _percentiles(metric(sums), confidence)


def intervals_of_counts(metric, columns, sizes, draws=1000, seed=0, confidence=0.95):
    """Intervals of a metric that is a function of how often each value comes: of classes, or of examples.

    Draws are the same as those of `interval`, and paired in the same way.

    Args:
        metric: function of int [draws, size], one for each column, to a dict of [draws].
        columns: list of int [examples], each from 0 to its size.
        sizes: list of int.
        draws, seed, confidence: as for `interval`.

    Returns:
        dict name -> (low, high); nan where the metric was nan in a draw.

    Raises:
        DataError: no examples, or lengths that differ.
    """
    examples = check_lengths(**{f"values of column {place}": column for place, column in enumerate(columns, 1)})
    measured = [
        metric(
            *(
                np.stack([np.bincount(column[row], minlength=size) for row in rows])
                for column, size in zip(columns, sizes, strict=True)
            )
        )
        for rows in _draws(examples, draws, seed, 1 + sum(sizes) // examples)
    ]
    return {name: _percentiles(np.concatenate([part[name] for part in measured]), confidence) for name in measured[0]}


def interval_of_mean(values, draws=1000, seed=0, confidence=0.95):
    """Interval of a mean over the examples: accuracy, or exact match and F1 of `squad.question_scores`.

    Args:
        values: [examples], numbers.
        draws, seed, confidence: as for `interval`.

    Returns:
        (low, high).

    Raises:
        DataError: no examples.
    """
    return interval_of_sums(lambda sums: sums[:, 0] / len(values), values, draws, seed, confidence)


def _draws(examples, draws, seed, terms):
    """Yields int [part, examples], which examples each draw takes; `draws` rows in all, the same whatever the parts."""
    if draws < 1:
        raise DataError(f"{draws} draws; expected at least one")
    generator = np.random.default_rng(seed)
    part = max(1, _PART // (examples * terms))
    for start in range(0, draws, part):
        yield generator.integers(examples, size=(min(part, draws - start), examples))


def _percentiles(values, confidence):
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
