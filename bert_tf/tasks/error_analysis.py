"""What there is to see in a model's answers besides its scores: plain values, which a report resamples."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

# Cases of a kind that a task gives, at most: nobody reads more.
LISTED = 50


class ErrorExample(NamedTuple):
    """An example and what the model answered.

    Attributes:
        texts: what the model was given: one text or several, as a reader wants to see them.
        expected: the right answer.
        answered: the model's.
        location: where the example stands.
        confidence: how sure the model was of its answer, from 0 to 1; None where it does not say.
    """

    texts: tuple[str, ...]
    expected: str
    answered: str
    location: str
    confidence: float | None = None


class Table(NamedTuple):
    """Figures by kind, such as one row a type of entity.

    Attributes:
        title: what the rows are.
        header: names of the columns; the first is that of the rows.
        rows: tuples (name, value, ...); floats are shares of 1, ints are counts.
    """

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple]


class Confusion(NamedTuple):
    """Which class was taken for which.

    Attributes:
        labels: names of the classes.
        counts: int [labels, labels]: examples by right class (row) and answered class (column).
    """

    labels: tuple[str, ...]
    counts: Sequence[Sequence[int]]


class ErrorAnalysis(NamedTuple):
    """What a report shows of a task's answers; it leaves out what is empty.

    Attributes:
        intervals: dict name of a score -> (low, high), its 95% bootstrap interval (`metrics.bootstrap`).
        confusion: of a task with classes.
        table: of a task whose scores have parts.
        confidences: how sure the model was of each answer, from 0 to 1; of any number of labels, of each label's.
        correct: whether each of these was right.
        errors: the worst mistakes, worst first: the surest, where the model says how sure it is; up to `LISTED`.
        examples: answers worth seeing, right or wrong; up to `LISTED`.
    """

    intervals: Mapping[str, tuple[float, float]] = {}
    confusion: Confusion | None = None
    table: Table | None = None
    confidences: Sequence[float] = ()
    correct: Sequence[bool] = ()
    errors: Sequence[ErrorExample] = ()
    examples: Sequence[ErrorExample] = ()


def surest_errors(confidences, correct):
    """The wrong answers to show.

    Args:
        confidences: float [answers].
        correct: bool [answers].

    Returns:
        int [up to LISTED], indices of wrong answers, the surest first, of equally sure ones the first.
    """
    wrong = np.flatnonzero(~np.asarray(correct))
    return wrong[np.argsort(-np.asarray(confidences)[wrong], kind="stable")][:LISTED]
