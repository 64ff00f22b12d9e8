"""Analysis of a model's predictions beyond its metrics: plain values for the report."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.metrics import bootstrap
from bert_tf.types import Array, Metrics

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


def analysis_of_choices(
    metrics: Callable[[Array, Array], Metrics],
    gold: Array,
    predicted: Array,
    confidences: Array,
    describe: Callable[[int], tuple[tuple[str, ...], str, str, str]],
) -> ErrorAnalysis:
    """Analyses a choice per example, such as that of a class.

    Args:
        metrics: function of `gold` and `predicted`.
        gold, predicted: int [examples], the right and the predicted choice.
        confidences: float [examples], of the model in its choices.
        describe: maps the index of an example to its fields in ErrorExample up to `location`.
    """
    correct = gold == predicted
    wrong = np.flatnonzero(~correct)
    surest = wrong[np.argsort(-confidences[wrong], kind="stable")][:LISTED]  # ties in their order
    return ErrorAnalysis(
        intervals=bootstrap.intervals(metrics, gold, predicted),
        confidences=confidences.tolist(),
        correct=correct.tolist(),
        errors=[ErrorExample(*describe(index), float(confidences[index])) for index in surest],
    )
