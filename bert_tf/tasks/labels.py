"""What the tasks with a set of labels have in common: classification and multi-label classification."""

import abc
import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from bert_tf.config.tasks import LabelsConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import (
    INTEGER,
    Cell,
    Labels,
    ReadReport,
    Scale,
    TextExample,
    is_whole,
)
from bert_tf.tasks.task import FineTuningTask, State
from bert_tf.tasks.texts import TextCodec, write_table
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Array, Json, Tensors, Writer

_SHOWN = 5  # labels that a line names


@dataclasses.dataclass
class LabelsState(State):
    """State of a task with labels.

    Attributes:
        labels: in the order of the logits.
        pair: as for `TextCodec`.
        integers: whether the labels were whole numbers in the training data; None if that is not known.
        class_weights: of each label in the loss; () for equal ones.
    """

    labels: Sequence[str] = ()
    pair: bool | None = None
    integers: bool | None = None
    class_weights: tuple[float, ...] = ()

    @property
    def has_integers(self) -> bool:
        """Whether all labels are whole numbers, not texts that look like them."""
        return self.integers is not False and all(INTEGER.fullmatch(label) for label in self.labels)


class Decision(abc.ABC):
    """Whether a text has one label or several.

    Args:
        config: of the task.

    Attributes:
        answer: name of the answer in a prediction.
    """

    answer: ClassVar[str]

    def __init__(self, config: Any) -> None:
        self._config = config

    @abc.abstractmethod
    def given(self, example: TextExample) -> list[Any]:
        """The labels of an example as in the data, each once."""

    @abc.abstractmethod
    def balanced(self, counts: Array, examples: int) -> Array:
        """Balanced weights of labels, from the number of training examples of each, above 0, and of all."""

    @abc.abstractmethod
    def targets(self, named: list[list[str]], labels: Sequence[str]) -> tf.Tensor:
        """The targets [examples, ...], from the names of each example's labels."""

    @abc.abstractmethod
    def placeholder(self, labels: Sequence[str]) -> Any:
        """A label for `Codec.unlabelled`."""

    @abc.abstractmethod
    def decide(self, logits: tf.Tensor, labels: Sequence[str]) -> Tensors:
        """The answers in graph code, `probabilities` float32 [examples, labels] among them, from such logits."""

    @abc.abstractmethod
    def answers(self, answers: dict[str, Array], labels: Sequence[str]) -> Iterable[Any]:
        """The answer to each example in plain Python, from what `decide` returned."""

    @abc.abstractmethod
    def cell(self, answer: Any) -> str:
        """An answer in a TSV."""


class LabelsCodec(TextCodec):
    """Of a task with one logit per label."""

    example_api = "classify"
    config: LabelsConfig
    state: LabelsState

    def __init__(self, tokenizer: BaseTokenizer, config: Any, state: LabelsState, decision: Decision) -> None:
        super().__init__(tokenizer, config, state)
        self.decision = decision

    def named(self, example: TextExample) -> list[str]:
        """The names of an example's labels."""
        integers = self.state.has_integers if self.state.integers is None else self.state.integers
        names = []
        for label in self.decision.given(example):
            if isinstance(label, float):
                raise DataError(
                    f"{example.location}: label {label}; expected text or a whole number (other numbers are for "
                    "RegressionConfig, in Python TextRegressor)"
                )
            names.append(label.partition(".")[0] if integers and is_whole(label) else str(label))
        return names

    def found(self, examples: list[TextExample]) -> list[tuple[str, str]]:
        """The (name of the label, location) of each label of each example."""
        return [(name, example.location) for example in examples for name in self.named(example)]

    def unknown(self, found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """The (label, location) pairs whose label the model does not have."""
        known = set(self.state.labels)
        return [(label, location) for label, location in found if label not in known]

    def names(self, examples: list[TextExample]) -> tuple[str, ...]:
        """The labels, then those in examples that the model does not have: never predicted, they are errors."""
        return (*self.state.labels, *dict.fromkeys(label for label, _ in self.unknown(self.found(examples))))

    def targets(self, examples: list[TextExample]) -> tf.Tensor:
        return self.decision.targets(list(map(self.named, examples)), self.state.labels)

    def unlabelled(self, examples: list[TextExample]) -> list[TextExample]:
        label = self.decision.placeholder(self.state.labels)
        return [example._replace(label=label) for example in examples]

    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        return {"logits": outputs["logits"]}

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        logits = tf.math.unsorted_segment_mean(decoded["logits"], rows, tf.shape(columns["text"])[0])
        return self.decision.decide(logits, self.state.labels)

    def served(self, answers: Tensors) -> Tensors:
        """Adds `labels`, the names of the labels in the shape of `probabilities`."""
        return answers | {"labels": tf.repeat([self.state.labels], tf.shape(answers["probabilities"])[0], 0)}

    def example_outputs(self, columns: Tensors, answers: Tensors) -> Tensors:
        return {"classes": answers["labels"], "scores": answers["probabilities"]}

    def _predictions(self, examples: list[TextExample], answers: dict[str, Array]) -> list[Json]:
        numbers = {label: number for number, label in enumerate(self.state.labels)}
        rows = zip(examples, self.decision.answers(answers, self.state.labels), answers["probabilities"], strict=True)
        return [
            {"id": example.id, self.decision.answer: answer, "probabilities": Probabilities(numbers, shares)}
            for example, answer, shares in rows
        ]

    def writers(self) -> dict[str, Writer]:
        return super().writers() | {".tsv": self._write_table}

    def _write_table(self, path: str, predicted: Iterable[tuple[TextExample, Json]]) -> None:
        """A TSV with a header: the answer, then the probability of each label."""
        name = self.decision.answer
        rows = ([self.decision.cell(one[name]), *one["probabilities"].values()] for _, one in predicted)
        write_table(path, [name, *self.state.labels], rows)


class LabelTask(FineTuningTask):
    """Base class of the tasks with a set of labels."""

    State = LabelsState
    example = TextExample
    codec: LabelsCodec

    def _learn(self, examples: list[TextExample], labels: Labels | None) -> None:
        if isinstance(labels, Scale):
            raise ConfigError(f"the labels are numbers from {labels.low:g} to {labels.high:g}; use RegressionConfig")
        config, state, codec = self.config, self.state, self.codec
        given = [(label, one.location) for one in examples for label in codec.decision.given(one)]
        state.integers = are_integers(given)
        found = codec.found(examples)
        counts = collections.Counter(label for label, _ in found)
        state.labels = tuple(
            config.labels
            or labels
            or labels_of(counts, examples[0].location, f": is data.label (now {self.data.label!r}) the right column?")
        )
        for label, location in codec.unknown(found):
            known = ", ".join(map(repr, state.labels[:20]))
            raise DataError(f"{location}: label {label!r} is not one of the model's: {known}; correct it")
        state.class_weights = tuple(map(float, config.class_weights))
        if config.balanced:
            examples_of = np.array([counts[label] for label in state.labels], np.float64)
            weights = np.ones_like(examples_of)  # of a label without examples it does not matter: no loss has it
            occurs = examples_of > 0
            weights[occurs] = codec.decision.balanced(examples_of[occurs], len(examples))
            state.class_weights = tuple(weights.tolist())

    def check(self, examples: list[TextExample], read_report: ReadReport) -> None:
        found = self.codec.found(examples)
        missing = self.codec.unknown(found)
        if missing and len(missing) == len(found):
            raise DataError(
                f"{missing[0][1]}: label {missing[0][0]!r}; neither this label nor any other is one of the model's: "
                f"{', '.join(map(repr, self.state.labels[:20]))}"
            )
        names = list(dict.fromkeys(repr(label) for label, _ in missing))
        shown = ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
        for _, location in missing:  # one line reports all of them
            read_report.add(f"never predicted: label {shown}, not in the training data", location)


def are_integers(given: list[tuple[Any, str]]) -> bool:
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


def labels_of(labels: Iterable[str], location: str, hint: str = "", kind: str = "label") -> tuple[str, ...]:
    """The distinct labels, sorted; numbers by value.

    Args:
        labels: those of the training examples.
        location: of the first training example, for the error message.
        hint: end of the error message.
        kind: a word for a label in the error message.
    """
    distinct = sorted(set(labels), key=_order)
    if len(distinct) < 2:
        every = f"every {kind} is {distinct[0]!r}" if distinct else f"there is no {kind}"
        raise DataError(f"{location} and all following: {every}; expected at least two{hint}")
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
