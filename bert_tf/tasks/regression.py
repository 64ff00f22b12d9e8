"""Regression on one text or a pair of texts, such as their similarity (paper, section 4.1: STS-B)."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import RegressionConfig
from bert_tf.config.values import shown
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import Labels, Scale, TextExample, TextGroup
from bert_tf.metrics.accuracy_and_f1 import binary_f1, correlations
from bert_tf.metrics.glue import glue_scores
from bert_tf.metrics.statistics import bootstrap_intervals
from bert_tf.model.activations import activation
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.tasks.benchmark import LISTED, Benchmark, ErrorAnalysis, ErrorExample, submission_writers
from bert_tf.tasks.objective import Objective, SoftOutput, rows_of, truncated_share, whole_examples
from bert_tf.tasks.task import FineTuningTask, State
from bert_tf.tasks.texts import TextCodec, write_table
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.packing import truncate
from bert_tf.types import Array, Json, Metrics, Tensors, Writer

# KLUE counts two sentences as paraphrases from this score on (Park et al., 2021, section 3.2).
_PARAPHRASE = 3.0
# The loss is a sum of squares in float32, whose largest number is 3e38.
_LARGEST = 1e18
# Functions of the head's output, by which models are published.
ACTIVATIONS = ("linear", "sigmoid", "tanh", "relu", "erf_gelu")


@dataclasses.dataclass
class RegressionState(State):
    """State of a regression.

    Attributes:
        labels: one name, that of the number.
        pair: as for `TextCodec`.
        scale: (low, high), to which predictions are clipped; None for any number. A cosine always has one, by default
            the lowest and the highest number of the training examples.
        activation: applied to the output of the head to get the number, one of `ACTIVATIONS`; "linear" unless the model
            was published with another.
    """

    labels: Sequence[str] = ()
    pair: bool | None = None
    scale: tuple[float, float] | None = None
    activation: str = "linear"

    def numbers(self, logits: tf.Tensor, *, apart: bool) -> tf.Tensor:
        """float32 [rows]: the numbers that a model predicts.

        Args:
            logits: float32 [rows, 1].
            apart: as for `RegressionCodec`.
        """
        values = activation(self.activation)(logits[:, 0])
        if not apart:
            return values
        assert self.scale is not None  # `learn` gives every cosine a scale
        low, high = self.scale
        return low + (high - low) * values


class RegressionCodec(TextCodec):
    """Of numbers.

    Attributes:
        apart: whether the texts of a pair are encoded separately.
    """

    config: RegressionConfig
    state: RegressionState
    example_api = "regress"

    def __init__(self, tokenizer: BaseTokenizer, config: RegressionConfig, state: RegressionState) -> None:
        super().__init__(tokenizer, config, state)
        self.apart = config.head == "cosine"

    def to_tensors(self, examples: list[TextExample], *, labelled: bool) -> Tensors:
        columns = super().to_tensors(examples, labelled=labelled)
        if labelled and len(examples) < 2:
            raise DataError(f"{examples[0].location}: the only example; a correlation needs at least two")
        return columns

    def targets(self, examples: list[TextExample]) -> tf.Tensor:
        return tf.constant([number(example) for example in examples], tf.float32)

    def unlabelled(self, examples: list[TextExample]) -> list[TextExample]:
        return [example._replace(label=0.0) for example in examples]

    def preprocess(self, columns: Tensors) -> Tensors:
        if not self.apart:
            return super().preprocess(columns)
        packed, truncated = [], []
        for text in (columns[spec.name] for spec in self.inputs()):
            ids, _, lost = truncate(
                self.tokenizer.tokenize(text),
                budget=self.config.max_length - self.tokenizer.specials(),
                keep=self.config.long_texts,
            )
            packed.append(self.tokenizer.pack(ids))
            truncated.append(lost)
        ids, types = (tf.stack(values, 1) for values in zip(*packed, strict=True))  # [rows, 2, None]
        rows = tf.range(tf.size(truncated[0], tf.int64))
        features = {"input_word_ids": ids, "input_type_ids": types, "row": rows}
        features["truncated"] = tf.reduce_any(truncated, 0)
        return features | {name: columns[name] for name in ("labels",) if name in columns}

    def pad(self, features: Tensors, *, few_lengths: bool = False) -> Tensors:
        dense = super().pad(features, few_lengths=few_lengths)
        if self.apart:  # two sequences per example, also if there is no example
            for name in ("input_word_ids", "input_mask", "input_type_ids"):
                dense[name] = tf.reshape(dense[name], tf.stack([-1, 2, tf.shape(dense[name])[2]]))
        return dense

    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        return {"values": self.state.numbers(outputs["logits"], apart=self.apart)[:, tf.newaxis]}

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        values = tf.math.unsorted_segment_mean(decoded["values"], rows, tf.shape(columns["text"])[0])[:, 0]
        return {"value": tf.clip_by_value(values, *self.state.scale) if self.state.scale else values}

    def example_outputs(self, columns: Tensors, answers: Tensors) -> Tensors:
        return {"outputs": answers["value"]}

    def _predictions(self, examples: list[TextExample], answers: dict[str, Array]) -> list[Json]:
        values = answers["value"].tolist()
        return [{"id": example.id, "value": value} for example, value in zip(examples, values, strict=True)]

    def writers(self) -> dict[str, Writer]:
        return super().writers() | {".tsv": _write_table}


class RegressionObjective(Objective):
    """Mean squared error.

    Args:
        head: a key of `model.head_table.HEADS`.
        state: of the task.
        start: mean and standard deviation of the training examples' numbers, to initialize the head.
    """

    metric_names = ("truncated_share",)

    def __init__(self, head: str, state: RegressionState, start: tuple[float, float]) -> None:
        self._head, self._state, self._start = head, state, start
        self._apart = head == "cosine"
        self.soft_outputs = {"logits": SoftOutput("number", read=self._numbers)}

    def _numbers(self, logits: tf.Tensor) -> tf.Tensor:
        return self._state.numbers(logits, apart=self._apart)[:, tf.newaxis]

    def start_near(self, outputs: Mapping[str, Array]) -> None:
        self._start = _spread(outputs["logits"])

    def build(self, encoder: BertEncoder) -> keras.Model:
        model = build(encoder, self._head, 1)
        if self._apart:
            return model
        # At usual learning rates the head would need thousands of updates to get from 0 to numbers around 100.
        mean, deviation = self._start
        layer = model.get_layer("classifier")
        layer.kernel.assign(layer.kernel * deviation)
        layer.bias.assign(layer.bias + mean)
        return model

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"loss": rows_of(features)}

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        errors = self._state.numbers(outputs["logits"], apart=self._apart) - features["labels"]
        return {
            "loss": (tf.reduce_sum(tf.square(errors)), rows_of(features)),
            "truncated_share": truncated_share(features),
        }

    def answered(self, features: Tensors) -> dict[str, tf.Tensor]:
        return whole_examples(features)


def _with_paraphrases(gold: Array, predicted: Array) -> Metrics:
    return correlations(gold, predicted) | binary_f1(gold >= _PARAPHRASE, predicted >= _PARAPHRASE)


# Data set -> the metric that selects the best checkpoint, and its metrics of true and predicted numbers.
_MEASURES: dict[str, tuple[str, Callable[[Array, Array], Metrics]]] = {
    "": ("spearman", correlations),
    "klue/sts": ("pearson", _with_paraphrases),
    "glue/stsb": ("score", functools.partial(glue_scores, "stsb")),
}


class RegressionBenchmark(Benchmark[RegressionCodec]):
    """Pearson's and Spearman's correlation.

    For STS-B also GLUE's "score", and for KLUE's STS the F1 of paraphrase detection, which its authors report.
    """

    def __init__(self, codec: RegressionCodec, metrics: str) -> None:
        super().__init__(codec, metrics)
        self.monitor, self._metrics = _MEASURES.get(metrics, _MEASURES[""])

    def official_metrics(self, examples: list[TextExample], predictions: list[Json]) -> Metrics:
        return self._metrics(*_values(examples, predictions))

    def baseline(self, examples: list[TextExample]) -> Metrics:
        mean = float(np.mean([number(example) for example in examples]))
        return self.official_metrics(examples, [{"value": mean}] * len(examples))

    def error_analysis(self, examples: list[TextExample], predictions: list[Json]) -> ErrorAnalysis:
        gold, predicted = _values(examples, predictions)
        worst = np.argsort(-np.abs(gold - predicted), kind="stable")[:LISTED]
        return ErrorAnalysis(
            intervals=bootstrap_intervals(self._metrics, gold, predicted),
            errors=[
                ErrorExample(
                    examples[index].texts, f"{gold[index]:g}", f"{predicted[index]:.3g}", examples[index].location
                )
                for index in worst
            ],
        )

    def writers(self) -> dict[str, Writer]:
        return submission_writers(self.metrics)


class Regression(FineTuningTask):
    """Regression on texts."""

    name = "regression"
    problem_type = "regression"
    Config = RegressionConfig
    State = RegressionState
    example = TextExample
    codec: RegressionCodec
    objective: RegressionObjective
    _start = (0.0, 1.0)  # as for `RegressionObjective`

    def _parts(self, metrics: str) -> tuple[RegressionCodec, RegressionObjective, RegressionBenchmark]:
        codec = RegressionCodec(self.tokenizer, self.config, self.state)
        head = self.head({"head": self.config.head})
        return codec, RegressionObjective(head, self.state, self._start), RegressionBenchmark(codec, metrics)

    @classmethod
    def head(cls, settings: Json) -> str:
        return "cosine" if settings.get("head") == "cosine" else "classification"

    def _learn(self, examples: list[TextExample], labels: Labels | None) -> None:
        if labels is not None and not isinstance(labels, Scale):
            raise ConfigError(f"the labels are classes such as {labels[0]!r}; use ClassificationConfig")
        scale = None if labels is None else (labels.low, labels.high)
        values = [number(example) for example in examples]
        if self.config.head == "cosine":
            if len(examples[0].texts) != 2:
                raise ConfigError("task.head is cosine, which compares two texts, but the data has one; leave "
                                  "task.head out, or name the second text's column in data.second_text")  # fmt: skip
            scale = scale or (min(values), max(values))
            if scale[0] == scale[1]:
                raise DataError(f"{examples[0].location}: the number is {scale[0]:g}, as in all other examples; a "
                                "cosine needs at least two different numbers")  # fmt: skip
        self.state.labels, self.state.scale = ("value",), scale
        self._start = _spread(values)

    @classmethod
    def from_settings(cls, settings: Json, tokenizer: BaseTokenizer) -> Self:
        task = super().from_settings(settings, tokenizer)
        names = task.state.labels
        if len(names) != 1:
            raise DataError(f"the model predicts {len(names)} numbers per text ({', '.join(names)}); expected one")
        if task.state.activation not in ACTIVATIONS:
            raise DataError(f"activation is {task.state.activation!r}; expected one of {', '.join(ACTIVATIONS)}")
        return task


def _spread(values: Sequence[float] | Array) -> tuple[float, float]:
    """Mean and standard deviation of numbers, 1.0 if all are the same."""
    return float(np.mean(values)), float(np.std(values)) or 1.0


def number(example: TextExample | TextGroup) -> float:
    """The label as a float."""
    label: Any = example.label
    try:
        value = math.nan if "_" in str(label) else float(label)  # Python reads "1_5" as 15
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not str(example.label).strip():
        raise DataError(f"{example.location}: the label is empty; expected a number")
    if not abs(value) <= _LARGEST:
        limit = f" from {-_LARGEST:g} up to {_LARGEST:g}" if math.isfinite(value) else ""
        raise DataError(f"{example.location}: label {shown(example.label)}; expected a number{limit}")
    return value


def _values(examples: list[TextExample], predictions: list[Json]) -> tuple[Array, Array]:
    """float [examples]: the true and the predicted numbers."""
    gold = np.array([number(example) for example in examples])
    return gold, np.array([prediction["value"] for prediction in predictions])


def _write_table(path: str, predicted: Iterable[tuple[TextExample, Json]]) -> None:
    """A TSV with a header and one column."""
    write_table(path, ["value"], ([prediction["value"]] for _, prediction in predicted))
