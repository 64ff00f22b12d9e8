"""Base classes of the tasks on groups of texts: sentence encoders and rerankers."""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.batching import Rows
from bert_tf.inputs.datasets.examples import Labels, Scale, TextGroup
from bert_tf.metrics.statistics import bootstrap_intervals
from bert_tf.tasks.benchmark import Benchmark
from bert_tf.tasks.codec import Codec
from bert_tf.tasks.regression import number
from bert_tf.tasks.task import FineTuningTask, State
from bert_tf.text.packing import dense_features, length_steps
from bert_tf.types import Array, Json, Metrics, Tensors

# The encoder's inputs.
FEATURES = ("input_word_ids", "input_mask", "input_type_ids")
# Lengths of training batches are rounded up to a multiple of this.
LENGTH_MULTIPLE = 4


@dataclasses.dataclass
class GroupsState(State):
    """What is known of the examples.

    Attributes:
        kind: a key of `GroupsTask.objectives`.
        texts: number of texts that an example has at most.
        scale: of scored pairs, the numbers that count as 0 and 1: the lowest and the highest, unless all are between.
    """

    kind: str = ""
    texts: int = 0
    scale: tuple[float, float] = (0.0, 1.0)


class GroupsCodec(Codec):
    """Base class of codecs whose training batches consist of whole groups."""

    state: Any

    @property
    def windows(self) -> bool:
        return True

    def unlabelled(self, examples: list[TextGroup]) -> list[TextGroup]:
        return examples

    def scaled(self, example: TextGroup) -> float:
        """The number of a scored pair, from 0 to 1."""
        low, high = self.state.scale
        return (number(example) - low) / (high - low)

    @functools.cached_property
    def training_rows(self) -> Rows:
        """Batches of whole groups."""
        return Rows(self._groups, self._padded_groups, windows=False)

    @abc.abstractmethod
    def _groups(self, columns: Tensors) -> Tensors:
        """Features of groups: ragged [examples, None, None]."""

    @abc.abstractmethod
    def _padded_groups(self, features: Tensors, *, few_lengths: bool = False) -> Tensors:
        """Dense features of groups, with absent texts in the place of those that an example does not have."""


def padded_texts(ids: tf.RaggedTensor, types: tf.RaggedTensor, places: int, most: int, *, few_lengths: bool) -> Tensors:
    """Dense features [rows, places, length] of groups, with a text that is all padding where a row has fewer.

    Args:
        ids, types: int32 [rows, None, None].
        places: number of texts.
        most: tokens of a text.
        few_lengths: as for `Codec.pad`.
    """
    lengths = length_steps(most) if few_lengths else ()
    dense = dense_features(ids, types, length_multiple=LENGTH_MULTIPLE, lengths=lengths, max_length=most)
    absent = [[0, 0], [0, places - tf.shape(dense["input_mask"])[1]], [0, 0]]
    return {name: tf.ensure_shape(tf.pad(value, absent), [None, places, None]) for name, value in dense.items()}


_Codec = TypeVar("_Codec", bound=GroupsCodec)


class GroupsBenchmark(Benchmark[_Codec]):
    """Base class of benchmarks with a value for each example, or query, from which metrics are made."""

    @abc.abstractmethod
    def _columns(self, examples: list[TextGroup], predictions: list[Json]) -> dict[str, Array]:
        """The values by name."""

    @abc.abstractmethod
    def _metrics(self, columns: dict[str, Array]) -> Metrics:
        """Metrics of these values, or of some resampled ones."""

    def official_metrics(self, examples: list[TextGroup], predictions: list[Json]) -> Metrics:
        return self._metrics(self._columns(examples, predictions))

    def _intervals(self, columns: dict[str, Array]) -> dict[str, tuple[float, float]]:
        names = list(columns)
        return bootstrap_intervals(
            lambda *values: self._metrics(dict(zip(names, values, strict=True))), *columns.values()
        )


class GroupsTask(FineTuningTask):
    """Base class of these tasks.

    Attributes:
        objectives: what can be learned, by the kind of the examples; the first is the default.
    """

    objectives: ClassVar[Mapping[str, tuple[str, ...]]]
    State = GroupsState
    example = TextGroup

    def _learn_groups(self, examples: list[TextGroup], labels: Labels | None, kind: str) -> None:
        """Sets the state and the objective for examples of this kind."""
        state, first, fitting = self.state, examples[0], self.objectives[kind]
        state.kind, state.texts = kind, max(len(example.texts) for example in examples)
        for example in examples:
            if example.label is None and example.texts[1:2] and example.texts[1] in example.texts[2:]:
                raise DataError(
                    f"{example.location}: a negative is equal to the text that belongs to the first; remove it"
                )
        if self.config.objective and self.config.objective not in fitting:
            raise ConfigError(
                f"task.objective is {self.config.objective!r}, and the examples are {kind}, such as {first.location}; "
                f"expected {' or '.join(fitting)}"
            )
        self.config = dataclasses.replace(self.config, objective=self.config.objective or fitting[0])
        if kind == "scored pairs":
            numbers = [number(example) for example in examples]
            low, high = (labels.low, labels.high) if isinstance(labels, Scale) else (min(numbers), max(numbers))
            state.scale = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
            if min(numbers) == max(numbers):
                raise DataError(
                    f"{first.location}: the number is {numbers[0]:g}, as in all other examples; expected different ones"
                )


def kind_of(examples: list[TextGroup]) -> str:
    """The kind of the examples, a key of `config.embeddings.OBJECTIVES`; DataError if they differ, or are none."""
    kinds: dict[str, TextGroup] = {}
    for example in examples:
        kinds.setdefault(_kind(example), example)
    if {*kinds} == {"pairs", "triplets"}:
        return "triplets"
    if len(kinds) > 1:
        (one, first), (other, second) = list(kinds.items())[:2]
        raise DataError(f"{second.location}: {other}, and {first.location}: {one}; expected examples of one kind")
    (kind,) = kinds
    return kind


def _kind(example: TextGroup) -> str:
    count, label = len(example.texts), example.label
    if isinstance(label, tuple):
        if count < 3:
            raise DataError(f"{example.location}: scores for {count - 1} text; expected at least two texts to compare")
        return "scored texts"
    if count == 1:
        if label is None:
            raise DataError(
                f"{example.location}: a single text without a class; expected a pair of texts, a class, or a teacher "
                "(task.teacher)"
            )
        return "classes"
    if label is None:
        return "pairs" if count == 2 else "triplets"
    if count > 2:
        raise DataError(
            f"{example.location}: one number for {count - 1} texts; expected a list of scores, one for each"
        )
    number(example)
    return "scored pairs"
