"""Classification of one text or of a pair of texts (paper, sections 4.1 and figure 4a, 4b)."""

import collections
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.config import ClassificationConfig
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.formats import OUT_OF_SCOPE
from bert_tf.metrics.classification import accuracy, macro_f1, scope
from bert_tf.metrics.glue import glue_scores, sets_of
from bert_tf.tasks.error_analysis import Confusion, ErrorAnalysis, analysis_of_choices
from bert_tf.tasks.fine_tuning_task import strings, truncated_share
from bert_tf.tasks.labels import LabelTask
from bert_tf.types import Array, Json, Metrics, Tensors

_UNKNOWN = -1  # target of an evaluated example whose class the model does not have


class Classification(LabelTask):
    """Classification of texts.

    The metrics are accuracy and macro F1; for GLUE's tasks GLUE's own. CLINC150 also gets the metrics of its paper; its
    out-of-scope queries are one more class ("oos", learned from the file's hundred "oos_train" queries).
    """

    name = "classification"
    Config = ClassificationConfig
    config: ClassificationConfig
    answer = "label"
    metric_names = ("accuracy", "truncated_share")

    @property
    def monitor(self) -> str:
        return "score" if self.glue else "macro_f1" if self.data.format == "klue/ynat" else "accuracy"

    @classmethod
    def head(cls, settings: Json) -> str:
        return "classification_bilstm" if settings.get("head") == "bilstm" else "classification"

    def _given(self, example: TextExample) -> list[Any]:
        """A list is refused, and an empty label: a forgotten cell, not a class."""
        if isinstance(example.label, tuple):
            raise DataError(f"{example.location}: a list of labels; expected one, or use MultiLabelConfig")
        if not str(example.label).strip():
            raise DataError(
                f"{example.location}: the label is empty; expected a class (MultiLabelConfig reads it as no label)"
            )
        return [example.label]

    def _balanced(self, counts: Array, examples: int) -> Array:
        return examples / (len(counts) * counts)

    def to_tensors(self, examples: list[TextExample], *, labelled: bool) -> Tensors:
        columns = self.text_columns(examples)
        if labelled:
            numbers = {label: number for number, label in enumerate(self.labels)}
            targets = [numbers.get(label, _UNKNOWN) for label, _ in self._found(examples)]
            columns["labels"] = tf.constant(targets, tf.int32)
        return columns

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

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        examples = tf.shape(columns["text"])[0]
        probabilities = tf.nn.softmax(tf.math.unsorted_segment_mean(decoded["logits"], rows, examples))
        labels = tf.constant(self.labels)
        return {
            "label": tf.gather(labels, tf.argmax(probabilities, -1)),
            "probabilities": probabilities,
        }

    def _answers(self, answers: dict[str, Array]) -> Iterable[str]:
        return strings(answers["label"])

    def official_metrics(self, examples: list[TextExample], predictions: list[Json]) -> Metrics:
        return self._metrics(*self._numbered(examples, predictions))

    def _numbered(self, examples: list[TextExample], predictions: list[Json]) -> tuple[Array, Array, Array]:
        """The names of the classes, those that the model does not have last, and the true and predicted numbers."""
        names = self._names(examples)
        numbers = {label: number for number, label in enumerate(names)}
        gold = np.array([numbers[label] for label, _ in self._found(examples)])
        return np.array(names), gold, np.array([numbers[prediction["label"]] for prediction in predictions])

    def _metrics(self, names: Array, gold: Array, predicted: Array) -> Metrics:
        """`official_metrics` of classes, int [examples]."""
        named = names[gold], names[predicted]
        if self.glue:
            return glue_scores(sets_of(self.glue)[0], *named)  # MNLI's halves have the same metric
        metrics = accuracy(gold, predicted) | macro_f1(gold, predicted)
        return metrics | scope(*named, OUT_OF_SCOPE) if self.data.format == "clinc150" else metrics

    def baseline(self, examples: list[TextExample]) -> Metrics:
        most_frequent = collections.Counter(label for label, _ in self._found(examples)).most_common(1)[0][0]
        return self.official_metrics(examples, [{"label": most_frequent}] * len(examples))

    def error_analysis(self, examples: list[TextExample], predictions: list[Json]) -> ErrorAnalysis:
        names, gold, predicted = self._numbered(examples, predictions)
        confidences = np.array([prediction["probabilities"][prediction["label"]] for prediction in predictions])
        counts = np.zeros([len(names), len(names)], np.int32)
        np.add.at(counts, (gold, predicted), 1)

        def describe(index: int) -> tuple[tuple[str, ...], str, str, str]:
            one = examples[index]
            return one.texts, str(names[gold[index]]), str(names[predicted[index]]), one.location

        metrics = functools.partial(self._metrics, names)
        analysis = analysis_of_choices(metrics, gold, predicted, confidences, describe)
        return analysis._replace(confusion=Confusion(names.tolist(), counts))
