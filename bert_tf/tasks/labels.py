"""Labels of texts: the label set, label indices and class weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.config import ExampleData
from bert_tf.config.tasks import LabelsConfig
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.types import Array


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


def number_of(label: Any, numbers: Mapping[str, int], location: str) -> int:
    """The index of a label.

    Args:
        label: as in the file; not necessarily text.
        numbers: label -> index, in their order.
        location: of the example, for the error message.
    """
    if label not in numbers:
        known = ", ".join(map(repr, list(numbers)[:20]))
        raise DataError(f"{location}: label {label!r} is not one of the model's: {known}")
    return numbers[label]
