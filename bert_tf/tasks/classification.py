"""Classification of one text or of a pair of texts (paper, sections 4.1 and figure 4a, 4b)."""

import collections
import functools
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import tensorflow as tf

from bert_tf.config import ClassificationConfig, ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import ReadReport, Scale, TextExample
from bert_tf.inputs.datasets.formats import OUT_OF_SCOPE
from bert_tf.metrics import bootstrap
from bert_tf.metrics.classification import accuracy, macro_f1, scope
from bert_tf.metrics.glue import glue_scores, sets_of
from bert_tf.tasks.error_analysis import Confusion, ErrorAnalysis, ErrorExample, surest_errors
from bert_tf.tasks.fine_tuning_task import strings, truncated_share
from bert_tf.tasks.labels import (
    Probabilities,
    check_known,
    class_weights,
    labels_of,
    report_unknown,
    with_unknown,
)
from bert_tf.tasks.texts import TextTask, pooled, write_table
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.types import Array, Json, Metrics, Tensors, Writer

_UNKNOWN = -1  # target of an evaluated example whose class the model does not have


class Classification(TextTask):
    """Classification of texts.

    The metrics are accuracy and macro F1; for GLUE's tasks GLUE's own. CLINC150 also gets the metrics of its paper; its
    out-of-scope queries are one more class ("oos", learned from the file's hundred "oos_train" queries).

    Attributes:
        labels: the classes, in the order of the logits.
        class_weights: of each class in the loss; () for equal ones.
    """

    name = "classification"
    Config = ClassificationConfig
    state = ("labels", "pair", "class_weights")
    config: ClassificationConfig
    class_weights: tuple[float, ...] = ()
    example_api = "classify"
    losses = ("loss",)
    metric_names = ("accuracy", "truncated_share")

    @property
    def monitor(self) -> str:
        return "score" if self.glue else "macro_f1" if self.data.format == "klue/ynat" else "accuracy"

    @classmethod
    def head(cls, settings: Json) -> str:
        return "classification_bilstm" if settings.get("head") == "bilstm" else "classification"

    @classmethod
    def create(
        cls,
        tokenizer: Tokenizer,
        config: ClassificationConfig,
        data: ExampleData,
        examples: list[TextExample],
        labels: tuple[str, ...] | Scale | None,
    ) -> Self:
        if isinstance(labels, Scale):
            raise ConfigError(f"the labels are numbers from {labels.low:g} to {labels.high:g}; use RegressionConfig")
        found = _found(examples)
        counts = collections.Counter(label for label, _ in found)
        labels = config.labels or labels or labels_of(counts, examples[0], data)
        check_known(found, labels)
        weights = class_weights(
            config, [counts[label] for label in labels], lambda counts: counts.sum() / (len(counts) * counts)
        )
        return cls(tokenizer, config, data, labels=tuple(labels), class_weights=weights)

    def to_tensors(self, examples: list[TextExample], *, labelled: bool) -> Tensors:
        columns = self.text_columns(examples)
        if labelled:
            numbers = {label: number for number, label in enumerate(self.labels)}
            targets = [numbers.get(label, _UNKNOWN) for label, _ in _found(examples)]
            columns["labels"] = tf.constant(targets, tf.int32)
        return columns

    def check(self, examples: list[TextExample], read_report: ReadReport) -> None:
        report_unknown(_found(examples), self.labels, read_report)

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"loss": tf.reduce_sum(self._weights_of(features["labels"]))}

    def _weights_of(self, labels: tf.Tensor) -> tf.Tensor:
        """float32 [rows]: the weight of each row's class; 0 for a class that the model does not have."""
        weights = tf.gather(tf.constant(self.class_weights or [1.0] * len(self.labels)), tf.maximum(labels, 0))
        return tf.where(labels == _UNKNOWN, 0.0, weights)

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        labels = features["labels"]
        weights = self._weights_of(labels)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), outputs["logits"])
        right = tf.cast(tf.argmax(outputs["logits"], -1, tf.int32) == labels, tf.float32)
        return {
            "loss": (tf.reduce_sum(weights * loss), tf.reduce_sum(weights)),
            "accuracy": (tf.reduce_sum(right), tf.cast(tf.size(right), tf.float32)),
            "truncated_share": truncated_share(features),
        }

    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        return {"logits": outputs["logits"]}

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        examples = tf.shape(columns["text"])[0]
        probabilities = tf.nn.softmax(pooled(decoded["logits"], rows, examples))
        labels = tf.constant(self.labels)
        return {
            "label": tf.gather(labels, tf.argmax(probabilities, -1)),
            "probabilities": probabilities,
        }

    def example_outputs(self, columns: Tensors, answers: Tensors) -> Tensors:
        return {"classes": answers["labels"], "scores": answers["probabilities"]}

    def _predictions(self, examples: list[TextExample], answers: dict[str, Array]) -> list[Json]:
        numbers = {label: number for number, label in enumerate(self.labels)}
        labels, probabilities = strings(answers["label"]), answers["probabilities"]
        return [
            {"id": example.id, "label": label, "probabilities": Probabilities(numbers, shares)}
            for example, label, shares in zip(examples, labels, probabilities, strict=True)
        ]

    def official_metrics(self, examples: list[TextExample], predictions: list[Json]) -> Metrics:
        return self._metrics(*self._numbered(examples, predictions))

    def _numbered(self, examples: list[TextExample], predictions: list[Json]) -> tuple[Array, Array, Array]:
        """The names of the classes, those that the model does not have last, and the true and predicted numbers."""
        found = _found(examples)
        names = with_unknown(self.labels, found)
        numbers = {label: number for number, label in enumerate(names)}
        gold = np.array([numbers[label] for label, _ in found])
        return np.array(names), gold, np.array([numbers[prediction["label"]] for prediction in predictions])

    def _metrics(self, names: Array, gold: Array, predicted: Array) -> Metrics:
        """`official_metrics` of classes, int [examples]."""
        named = names[gold], names[predicted]
        if self.glue:
            return glue_scores(sets_of(self.glue)[0], *named)  # MNLI's halves have the same metric
        metrics = accuracy(gold, predicted) | macro_f1(gold, predicted)
        return metrics | scope(*named, OUT_OF_SCOPE) if self.data.format == "clinc150" else metrics

    def baseline(self, examples: list[TextExample]) -> Metrics:
        most_frequent = collections.Counter(label for label, _ in _found(examples)).most_common(1)[0][0]
        return self.official_metrics(examples, [{"label": most_frequent}] * len(examples))

    def error_analysis(self, examples: list[TextExample], predictions: list[Json]) -> ErrorAnalysis:
        names, gold, predicted = self._numbered(examples, predictions)
        confidences = np.array([prediction["probabilities"][prediction["label"]] for prediction in predictions])
        counts = np.zeros([len(names), len(names)], np.int32)
        np.add.at(counts, (gold, predicted), 1)
        return ErrorAnalysis(
            intervals=bootstrap.intervals(functools.partial(self._metrics, names), gold, predicted),
            confusion=Confusion(names.tolist(), counts),
            confidences=confidences.tolist(),
            correct=(gold == predicted).tolist(),
            errors=[
                ErrorExample(
                    examples[index].texts,
                    str(names[gold[index]]),
                    str(names[predicted[index]]),
                    examples[index].location,
                    float(confidences[index]),
                )
                for index in surest_errors(confidences, gold == predicted)
            ],
        )

    def writers(self) -> dict[str, Writer]:
        return super().writers() | {".tsv": self._write_table}

    def _write_table(self, path: str, predicted: Iterable[tuple[TextExample, Json]]) -> None:
        """A TSV with a header: the most probable label, then the probability of each."""
        rows = ([prediction["label"], *prediction["probabilities"].values()] for _, prediction in predicted)
        write_table(path, ["label", *self.labels], rows)


def _found(examples: list[TextExample]) -> list[tuple[Any, str]]:
    """The (label, location) of each example. A list is refused, and an empty label: a forgotten cell, not a class."""
    for example in examples:
        if isinstance(example.label, tuple):
            raise DataError(f"{example.location}: a list of labels; expected one, or use MultiLabelConfig")
        if not str(example.label).strip():
            raise DataError(
                f"{example.location}: the label is empty; expected a class (MultiLabelConfig reads it as no label)"
            )
    return [(example.label, example.location) for example in examples]
