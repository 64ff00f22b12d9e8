"""Analysis of a model's predictions beyond its metrics: plain values for the report."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.types import Array

# At most this many examples of each kind: nobody reads more.
LISTED = 50


class ErrorExample(NamedTuple):
    """An example and the model's answer to it.

    Attributes:
        texts: the model's input as one text or several, readable.
        expected: the correct answer.
        answered: the model's answer.
        location: of the example, e.g. "file:line".
        confidence: of the model in its answer, from 0 to 1; None if the task has none.
    """

    texts: tuple[str, ...]
    expected: str
    answered: str
    location: str
    confidence: float | None = None


class Table(NamedTuple):
    """Metrics by group, such as one row per entity type.

    Attributes:
        title: heading of the table.
        header: names of the columns; the first is for the names of the rows.
        rows: (name, value, ...) each; floats are fractions of 1, ints are counts.
    """

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


class Confusion(NamedTuple):
    """Confusion matrix.

    Attributes:
        labels: names of the classes.
        counts: int [labels, labels]: examples by true class (row) and predicted class (column).
    """

    labels: Sequence[str]
    counts: Array


class ErrorAnalysis(NamedTuple):
    """What a report shows of a task's predictions; it leaves out empty parts.

    Attributes:
        intervals: name of a metric -> (low, high), its 95% bootstrap interval (`metrics.bootstrap`).
        confusion: for a task with classes.
        table: for a task with metrics by group.
        confidences: of the model in each answer, from 0 to 1; with multi-label tasks, in each label's decision.
        correct: whether each of these answers was correct.
        errors: the worst errors, worst first: the most confident ones, if there are confidences; up to `LISTED`.
        examples: answers worth showing, right or wrong; up to `LISTED`.
    """

    intervals: Mapping[str, tuple[float, float]] = {}
    confusion: Confusion | None = None
    table: Table | None = None
    confidences: Sequence[float] | Array = ()
    correct: Sequence[bool] | Array = ()
    errors: Sequence[ErrorExample] = ()
    examples: Sequence[ErrorExample] = ()


def surest_errors(confidences: Sequence[float] | Array, correct: Sequence[bool] | Array) -> Array:
    """int [up to LISTED]: indices of the wrong answers to show, the most confident first, ties in their order."""
    wrong = np.flatnonzero(~np.asarray(correct))
    return wrong[np.argsort(-np.asarray(confidences)[wrong], kind="stable")][:LISTED]
