"""Multi-label classification of a text or a pair of texts: each label is predicted independently."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.config import MultiLabelConfig
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import Labels, TextExample
from bert_tf.metrics import bootstrap
from bert_tf.metrics.classification import multi_label, precision_recall_f1
from bert_tf.tasks.error_analysis import LISTED, ErrorAnalysis, ErrorExample, Table
from bert_tf.tasks.fine_tuning_task import truncated_share
from bert_tf.tasks.labels import LabelTask
from bert_tf.types import Array, Json, Metrics, Tensors


class MultiLabel(LabelTask):
    """Multi-label classification, with one sigmoid per label; the loss of an example is the mean over the labels.

    The class weights are those of positive examples.
    """

    name = "multi_label_classification"
    Config = MultiLabelConfig
    config: MultiLabelConfig
    answer = "labels"
    metric_names = ("truncated_share",)
    monitor = "micro_f1"
    glue = None  # no GLUE task has several labels

    @classmethod
    def head(cls, settings: Json) -> str:
        return "classification"

    def fit(self, examples: list[TextExample], labels: Labels | None) -> None:
        super().fit(examples, labels)
        self.config.check_separable(self.labels)

    def _given(self, example: TextExample) -> list[Any]:
        if isinstance(example.label, str):
            kind, parts = type(example.label), (part.strip() for part in example.label.split(self.config.separator))
            return list(dict.fromkeys(kind(part) for part in parts if part))
        if not isinstance(example.label, tuple):
            raise DataError(f"{example.location}: label {example.label!r}; expected names, or a list of them")
        return list(dict.fromkeys(example.label))

    def _balanced(self, counts: Array, examples: int) -> Array:
        return np.maximum(examples - counts, 1) / counts

    def to_tensors(self, examples: list[TextExample], *, labelled: bool) -> Tensors:
        columns = self.text_columns(examples)
        if labelled:
            columns["labels"] = tf.constant(self._numbered(examples, [])[1][:, : len(self.labels)], tf.float32)
        return columns

    def _numbered(self, examples: list[TextExample], predictions: list[Json]) -> tuple[Array, Array, Array]:
        """The names of the labels, those that the model does not have last; the true and the predicted ones.

        Returns:
            str [labels]; bool [examples, labels]; bool [predictions, labels].
        """
        names = self._names(examples)
        numbers = {label: number for number, label in enumerate(names)}

        def marked(rows: Iterable[Iterable[str]], count: int) -> Array:
            marks = np.zeros([count, len(names)], bool)
            for row, labels in enumerate(rows):
                marks[row, [numbers[label] for label in labels]] = True
            return marks

        gold = marked(map(self._named, examples), len(examples))
        return np.array(names), gold, marked((one["labels"] for one in predictions), len(predictions))

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        weights = tf.constant(self.class_weights or [1.0] * len(self.labels))
        loss = tf.nn.weighted_cross_entropy_with_logits(features["labels"], outputs["logits"], weights)
        return {
            "loss": (tf.reduce_sum(tf.reduce_mean(loss, -1)), self.weights(features)["loss"]),
            "truncated_share": truncated_share(features),
        }

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        """`given` bool and `probabilities` float32 [examples, labels]."""
        examples = tf.shape(columns["text"])[0]
        probabilities = tf.nn.sigmoid(tf.math.unsorted_segment_mean(decoded["logits"], rows, examples))
        return {
            "given": probabilities >= self.config.threshold,
            "probabilities": probabilities,
        }

    def _answers(self, answers: dict[str, Array]) -> Iterable[list[str]]:
        labels = np.array(self.labels, object)
        return (labels[given].tolist() for given in answers["given"])

    def _cell(self, answer: list[str]) -> str:
        return self.config.separator.join(answer)

    def official_metrics(self, examples: list[TextExample], predictions: list[Json]) -> Metrics:
        _, gold, predicted = self._numbered(examples, predictions)
        return multi_label(gold, predicted)

    def baseline(self, examples: list[TextExample]) -> Metrics:
        """Metrics of predicting the labels of at least half of the examples, or else the most frequent one, if any."""
        names, gold, _ = self._numbered(examples, [])
        shares = gold.mean(0)
        common = np.flatnonzero(shares >= 0.5)
        if not common.size and shares.max() > 0:
            common = np.array([shares.argmax()])
        return self.official_metrics(examples, [{"labels": names[common].tolist()}] * len(examples))

    def error_analysis(self, examples: list[TextExample], predictions: list[Json]) -> ErrorAnalysis:
        names, gold, predicted = self._numbered(examples, predictions)
        known = slice(len(self.labels))  # there is no probability of the others
        probabilities = np.zeros([len(predictions), len(self.labels)])
        for row, one in enumerate(predictions):
            probabilities[row] = list(one["probabilities"].values())
        wrong = (gold != predicted).sum(1)
        counts = gold.sum(0)
        shares = precision_recall_f1((gold & predicted).sum(0), predicted.sum(0), counts)
        rows = list(zip(names.tolist(), *(values.tolist() for values in (*shares, counts)), strict=True))
        return ErrorAnalysis(
            intervals=bootstrap.intervals(multi_label, gold, predicted),
            confidences=np.where(predicted[:, known], probabilities, 1 - probabilities).ravel(),
            correct=(gold == predicted)[:, known].ravel(),
            table=Table("Labels", ("label", "precision", "recall", "f1", "examples"), rows),
            errors=[
                ErrorExample(
                    examples[index].texts,
                    ", ".join(names[gold[index]]),
                    ", ".join(predictions[index]["labels"]),
                    examples[index].location,
                )
                for index in np.argsort(-wrong, kind="stable")[:LISTED]
                if wrong[index]
            ],
        )
