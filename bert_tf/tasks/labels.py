"""Labels of texts: the label set, label indices and class weights."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.config import ExampleData
from bert_tf.config.tasks import LabelsConfig
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import ReadReport, TextExample
from bert_tf.types import Array

_SHOWN = 5  # labels that a line names


def class_weights(config: LabelsConfig, counts: Sequence[int], balance: Callable[[Array], Array]) -> tuple[float, ...]:
    """The weight of each label in the loss; () if the config has none.

    Args:
        config: the settings.
        counts: training examples of each label.
        balance: maps nonzero counts to balanced weights.
    """
    if not config.balanced:
        return tuple(map(float, config.class_weights))
    examples = np.asarray(counts, np.float64)
    weights = np.ones_like(examples)  # the weight of a label without examples does not matter: no training loss has it
    weights[examples > 0] = balance(examples[examples > 0])
    return tuple(weights.tolist())


def labels_of(labels: Iterable[str], example: TextExample, data: ExampleData) -> tuple[str, ...]:
    """The distinct labels, sorted; numbers by value.

    Args:
        labels: those of the training examples.
        example: the first training example, for the error message.
        data: the settings of the data, for the error message.
    """
    distinct = sorted(set(labels), key=lambda text: (0, float(text), text) if text.isdecimal() else (1, 0.0, text))
    if len(distinct) < 2:
        every = f"every label is {distinct[0]!r}" if distinct else "there is no label"
        raise DataError(
            f"{example.location} and all following: {every}; expected at least two: is data.label (now "
            f"{data.label!r}) the right column?"
        )
    return tuple(distinct)


def check_known(found: Iterable[tuple[Any, str]], labels: Iterable[str]) -> None:
    """Raises DataError for a training label that is not one of the labels.

    Args:
        found: (label, location) of the training examples.
        labels: of the task.
    """
    for label, location in unknown(found, labels):
        known = ", ".join(map(repr, list(labels)[:20]))
        raise DataError(f"{location}: label {label!r} is not one of the model's: {known}")


def unknown(found: Iterable[tuple[Any, str]], labels: Iterable[str]) -> list[tuple[Any, str]]:
    """The (label, location) pairs whose label the model does not have."""
    known = set(labels)
    return [(label, location) for label, location in found if label not in known]


def with_unknown(labels: Sequence[str], found: Iterable[tuple[Any, str]]) -> tuple[str, ...]:
    """The labels, then those in evaluated examples that the model does not have: never predicted, they are errors."""
    return (*labels, *dict.fromkeys(label for label, _ in unknown(found, labels)))


def report_unknown(found: Iterable[tuple[Any, str]], labels: Sequence[str], read_report: ReadReport) -> None:
    """Counts labels that the model does not have, so that one line reports all of them."""
    missing = unknown(found, labels)
    names = list(dict.fromkeys(repr(label) for label, _ in missing))
    shown = ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
    for _, location in missing:
        read_report.add(f"never predicted: label {shown}, not in the training data", location)


class Probabilities(Mapping[str, float]):
    """The probability of each label, in an array: a dict for each example is too large if there are many labels.

    Args:
        numbers: label -> index in `shares`, in the order of the labels; shared by all examples.
        shares: float [labels].
    """

    def __init__(self, numbers: Mapping[str, int], shares: Array) -> None:
        self._numbers, self._shares = numbers, shares

    def __getitem__(self, label: str) -> float:
        return float(self._shares[self._numbers[label]])

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)
