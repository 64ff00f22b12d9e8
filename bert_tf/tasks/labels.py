"""Base class of the tasks with a set of labels: classification and multi-label classification."""

import abc
import collections
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from bert_tf.config import ExampleData
from bert_tf.config.tasks import LabelsConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import INTEGER, Cell, Labels, ReadReport, Scale, TextExample, is_whole
from bert_tf.tasks.texts import TextTask, write_table
from bert_tf.types import Array, Json, Tensors, Writer

_SHOWN = 5  # labels that a line names


class LabelTask(TextTask):
    """A task with one logit per label.

    Attributes:
        labels: in the order of the logits.
        integers: whether the labels were whole numbers in the training data; None if that is not known.
        class_weights: of each label in the loss; () for equal ones.
        answer: name of the answer in a prediction.
    """

    state = ("labels", "pair", "integers", "class_weights")
    config: LabelsConfig
    integers: bool | None = None
    class_weights: tuple[float, ...] = ()
    example_api = "classify"
    answer: ClassVar[str]

    @abc.abstractmethod
    def _given(self, example: TextExample) -> list[Any]:
        """The labels of an example as in the data, each once."""

    def _named(self, example: TextExample) -> list[str]:
        """The names of an example's labels."""
        integers = self.has_integers if self.integers is None else self.integers
        names = []
        for label in self._given(example):
            if isinstance(label, float):
                raise DataError(
                    f"{example.location}: label {label}; expected text or a whole number (other numbers are for "
                    "RegressionConfig, in Python TextRegressor)"
                )
            names.append(label.partition(".")[0] if integers and is_whole(label) else str(label))
        return names

    def _found(self, examples: list[TextExample]) -> list[tuple[str, str]]:
        """The (name of the label, location) of each label of each example."""
        return [(name, example.location) for example in examples for name in self._named(example)]

    @abc.abstractmethod
    def _balanced(self, counts: Array, examples: int) -> Array:
        """Balanced weights of labels, from the number of training examples of each, above 0, and of all."""

    def fit(self, examples: list[TextExample], labels: Labels | None) -> None:
        if isinstance(labels, Scale):
            raise ConfigError(f"the labels are numbers from {labels.low:g} to {labels.high:g}; use RegressionConfig")
        self.integers = _are_integers([(label, one.location) for one in examples for label in self._given(one)])
        found = self._found(examples)
        counts = collections.Counter(label for label, _ in found)
        self.labels = tuple(self.config.labels or labels or labels_of(counts, examples[0], self.data))
        for label, location in self._unknown(found):
            known = ", ".join(map(repr, self.labels[:20]))
            raise DataError(f"{location}: label {label!r} is not one of the model's: {known}")
        self.class_weights = tuple(map(float, self.config.class_weights))
        if self.config.balanced:
            examples_of = np.array([counts[label] for label in self.labels], np.float64)
            weights = np.ones_like(examples_of)  # of a label without examples it does not matter: no loss has it
            occurs = examples_of > 0
            weights[occurs] = self._balanced(examples_of[occurs], len(examples))
            self.class_weights = tuple(weights.tolist())

    @property
    def has_integers(self) -> bool:
        """Whether all labels are whole numbers, not texts that look like them."""
        return self.integers is not False and all(INTEGER.fullmatch(label) for label in self.labels)

    def _unknown(self, found: Iterable[tuple[Any, str]]) -> list[tuple[Any, str]]:
        """The (label, location) pairs whose label the model does not have."""
        known = set(self.labels)
        return [(label, location) for label, location in found if label not in known]

    def _names(self, examples: list[TextExample]) -> tuple[Any, ...]:
        """The labels, then those in examples that the model does not have: never predicted, they are errors."""
        return (*self.labels, *dict.fromkeys(label for label, _ in self._unknown(self._found(examples))))

    def check(self, examples: list[TextExample], read_report: ReadReport) -> None:
        found = self._found(examples)
        missing = self._unknown(found)
        if missing and len(missing) == len(found):
            raise DataError(
                f"{missing[0][1]}: label {missing[0][0]!r}; neither this label nor any other is one of the model's: "
                f"{', '.join(map(repr, self.labels[:20]))}"
            )
        names = list(dict.fromkeys(repr(label) for label, _ in missing))
        shown = ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
        for _, location in missing:  # one line reports all of them
            read_report.add(f"never predicted: label {shown}, not in the training data", location)

    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        return {"logits": outputs["logits"]}

    def example_outputs(self, columns: Tensors, answers: Tensors) -> Tensors:
        return {"classes": answers["labels"], "scores": answers["probabilities"]}

    @abc.abstractmethod
    def _answers(self, answers: dict[str, Array]) -> Iterable[Any]:
        """The answer to each example in plain Python."""

    def _predictions(self, examples: list[TextExample], answers: dict[str, Array]) -> list[Json]:
        numbers = {label: number for number, label in enumerate(self.labels)}
        rows = zip(examples, self._answers(answers), answers["probabilities"], strict=True)
        return [
            {"id": example.id, self.answer: answer, "probabilities": Probabilities(numbers, shares)}
            for example, answer, shares in rows
        ]

    def writers(self) -> dict[str, Writer]:
        return super().writers() | {".tsv": self._write_table}

    def _write_table(self, path: str, predicted: Iterable[tuple[TextExample, Json]]) -> None:
        """A TSV with a header: the answer, then the probability of each label."""
        rows = ([self._cell(one[self.answer]), *one["probabilities"].values()] for _, one in predicted)
        write_table(path, [self.answer, *self.labels], rows)

    def _cell(self, answer: Any) -> str:
        """An answer in a TSV."""
        return answer


def _are_integers(given: list[tuple[Any, str]]) -> bool:
    """Whether the labels of the training data, with their locations, are whole numbers."""
    texts = [(label, location) for label, location in given if isinstance(label, str) and not isinstance(label, Cell)]
    for number, location in given:
        if texts and isinstance(number, int):
            raise DataError(
                f"{location}: label {number} is a whole number, and label {texts[0][0]!r} of {texts[0][1]} is text; "
                "expected all labels to be of one kind"
            )
    return not texts and all(is_whole(label) for label, _ in given if isinstance(label, Cell))


def _order(label: str) -> tuple[bool, float, str]:
    """Sort key: whole numbers by value, then texts."""
    is_number = label.removeprefix("-").isdecimal()
    return not is_number, float(label) if is_number else 0.0, label


def labels_of(labels: Iterable[str], example: TextExample, data: ExampleData) -> tuple[str, ...]:
    """The distinct labels, sorted; numbers by value.

    Args:
        labels: those of the training examples.
        example: the first training example, for the error message.
        data: the settings of the data, for the error message.
    """
    distinct = sorted(set(labels), key=_order)
    if len(distinct) < 2:
        every = f"every label is {distinct[0]!r}" if distinct else "there is no label"
        raise DataError(
            f"{example.location} and all following: {every}; expected at least two: is data.label (now "
            f"{data.label!r}) the right column?"
        )
    return tuple(distinct)


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
