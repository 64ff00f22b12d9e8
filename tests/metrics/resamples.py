"""Intervals of any metric, draw by draw: what those that are computed of all resamples at once are compared with."""

import numpy as np

from bert_tf.metrics import bootstrap


def interval(metric, *columns, resamples=1000, seed=0, confidence=0.95):
    """Intervals of a metric that gets the examples of each draw.

    Args:
        metric: function of columns to a dict of floats.
        *columns: [examples] each, labels and predictions for example: arrays, or lists of anything.
        resamples, seed, confidence: as for `bootstrap.interval_of_sums`.

    Returns:
        dict name -> (low, high).
    """
    measured = [
        metric(*(column[row] if isinstance(column, np.ndarray) else [column[i] for i in row] for column in columns))
        for rows in bootstrap._resamples(len(columns[0]), resamples, seed, 1)
        for row in rows
    ]
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    return {name: tuple(np.quantile([draw[name] for draw in measured], ends)) for name in measured[0]}


def few_draws(monkeypatch):
    """Has only fifty of the resamples made: draw by draw a metric is slow."""
    draw = bootstrap._resamples
    monkeypatch.setattr(bootstrap, "_resamples", lambda examples, _, *others: draw(examples, 50, *others))
