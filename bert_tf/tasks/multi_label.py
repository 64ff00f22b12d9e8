"""Multi-label classification of a text or a pair of texts: each label is predicted independently."""

import collections
from collections.abc import Iterable
from typing import Self

import numpy as np
import tensorflow as tf

from bert_tf.config import ExampleData, MultiLabelConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import ReadReport, Scale, TextExample
from bert_tf.metrics import bootstrap
from bert_tf.metrics.classification import multi_label, precision_recall_f1
from bert_tf.tasks.error_analysis import LISTED, ErrorAnalysis, ErrorExample, Table
from bert_tf.tasks.fine_tuning_task import truncated_share
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


class MultiLabel(TextTask):
    """Multi-label classification, with one sigmoid per label; the loss of an example is the mean over the labels.

    Attributes:
        labels: in the order of the logits.
        class_weights: of each label's positive examples in the loss; () for equal ones.
    """

    name = "multi_label_classification"
    Config = MultiLabelConfig
    state = ("labels", "pair", "class_weights")
    config: MultiLabelConfig
    class_weights: tuple[float, ...] = ()
    example_api = "classify"
    losses = ("loss",)
    metric_names = ("truncated_share",)
    monitor = "micro_f1"
    glue = None  # no GLUE task has several labels

    @classmethod
    def head(cls, settings: Json) -> str:
        return "classification"

    @classmethod
    def create(
        cls,
        tokenizer: Tokenizer,
        config: MultiLabelConfig,
        data: ExampleData,
        examples: list[TextExample],
        labels: tuple[str, ...] | Scale | None,
    ) -> Self:
        if isinstance(labels, Scale):
            raise ConfigError(f"the labels are numbers from {labels.low:g} to {labels.high:g}; use RegressionConfig")
        counts = collections.Counter(label for example in examples for label in set(split(example, config.separator)))
        labels = tuple(config.labels or labels or labels_of(counts, examples[0], data))
        config.check_separable(labels)
        check_known(_found(examples, config.separator), labels)
        weights = class_weights(
            config,
            [counts[label] for label in labels],
            lambda counts: np.maximum(len(examples) - counts, 1) / counts,
        )
        return cls(tokenizer, config, data, labels=labels, class_weights=weights)

    def to_tensors(self, examples: list[TextExample], *, labelled: bool) -> Tensors:
        columns = self.text_columns(examples)
        if labelled:
            columns["labels"] = tf.constant(self._numbered(examples, [])[1][:, : len(self.labels)], tf.float32)
        return columns

    def check(self, examples: list[TextExample], read_report: ReadReport) -> None:
        report_unknown(_found(examples, self.config.separator), self.labels, read_report)

    def _numbered(self, examples: list[TextExample], predictions: list[Json]) -> tuple[Array, Array, Array]:
        """The names of the labels, those that the model does not have last; the true and the predicted ones.

        Returns:
            str [labels]; bool [examples, labels]; bool [predictions, labels].
        """
        names = with_unknown(self.labels, _found(examples, self.config.separator))
        numbers = {label: number for number, label in enumerate(names)}

        def marked(rows: Iterable[Iterable[str]], count: int) -> Array:
            marks = np.zeros([count, len(names)], bool)
            for row, labels in enumerate(rows):
                marks[row, [numbers[label] for label in labels]] = True
            return marks

        gold = marked((split(example, self.config.separator) for example in examples), len(examples))
        return np.array(names), gold, marked((one["labels"] for one in predictions), len(predictions))

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"loss": tf.cast(tf.shape(features["labels"])[0], tf.float32)}

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        weights = tf.constant(self.class_weights or [1.0] * len(self.labels))
        loss = tf.nn.weighted_cross_entropy_with_logits(features["labels"], outputs["logits"], weights)
        return {
            "loss": (tf.reduce_sum(tf.reduce_mean(loss, -1)), self.weights(features)["loss"]),
            "truncated_share": truncated_share(features),
        }

    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        return {"logits": outputs["logits"]}

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        """`given` bool and `probabilities` float32 [examples, labels]."""
        examples = tf.shape(columns["text"])[0]
        probabilities = tf.nn.sigmoid(pooled(decoded["logits"], rows, examples))
        return {
            "given": probabilities >= self.config.threshold,
            "probabilities": probabilities,
        }

    def example_outputs(self, columns: Tensors, answers: Tensors) -> Tensors:
        return {"classes": answers["labels"], "scores": answers["probabilities"]}

    def _predictions(self, examples: list[TextExample], answers: dict[str, Array]) -> list[Json]:
        labels, numbers = np.array(self.labels, object), {label: number for number, label in enumerate(self.labels)}
        return [
            {
                "id": example.id,
                "labels": labels[given].tolist(),
                "probabilities": Probabilities(numbers, shares),
            }
            for example, given, shares in zip(examples, answers["given"], answers["probabilities"], strict=True)
        ]

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

    def writers(self) -> dict[str, Writer]:
        return super().writers() | {".tsv": self._write_table}

    def _write_table(self, path: str, predicted: Iterable[tuple[TextExample, Json]]) -> None:
        """A TSV with a header: the predicted labels, then the probability of each."""
        rows = (
            [self.config.separator.join(prediction["labels"]), *prediction["probabilities"].values()]
            for _, prediction in predicted
        )
        write_table(path, ["labels", *self.labels], rows)


def _found(examples: list[TextExample], separator: str) -> list[tuple[str, str]]:
    """The (label, location) of each label of each example."""
    return [(label, example.location) for example in examples for label in split(example, separator)]


def split(example: TextExample, separator: str) -> list[str]:
    """The labels of an example."""
    if isinstance(example.label, str):
        parts = [part.strip() for part in example.label.split(separator)]
        return [part for part in parts if part]
    if not isinstance(example.label, tuple):
        raise DataError(f"{example.location}: label {example.label!r}; expected names, or a list of them")
    return list(example.label)
