"""Multi-label classification of a text or a pair of texts: each label is predicted independently."""

import types
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import MultiLabelConfig
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import Labels, TextExample
from bert_tf.metrics.accuracy_and_f1 import multi_label, precision_recall_f1
from bert_tf.metrics.statistics import bootstrap_intervals
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.tasks.benchmark import LISTED, Benchmark, ErrorAnalysis, ErrorExample, Table
from bert_tf.tasks.labels import Decision, LabelsCodec, LabelsState, LabelTask
from bert_tf.tasks.objective import Objective, SoftOutput, rows_of, truncated_share, whole_examples
from bert_tf.types import Array, Json, Metrics, Tensors


class SeveralLabels(Decision):
    """Any number of labels, also none: a sigmoid for each."""

    answer = "labels"

    def given(self, example: TextExample) -> list[Any]:
        if isinstance(example.label, str):
            kind, parts = type(example.label), (part.strip() for part in example.label.split(self._config.separator))
            return list(dict.fromkeys(kind(part) for part in parts if part))
        if not isinstance(example.label, tuple):
            raise DataError(f"{example.location}: label {example.label!r}; expected names, or a list of them")
        return list(dict.fromkeys(example.label))

    def balanced(self, counts: Array, examples: int) -> Array:
        return np.maximum(examples - counts, 1) / counts

    def targets(self, named: list[list[str]], labels: Sequence[str]) -> tf.Tensor:
        return tf.constant(marked(named, labels), tf.float32)

    def placeholder(self, labels: Sequence[str]) -> tuple[str, ...]:
        return ()

    def decide(self, logits: tf.Tensor, labels: Sequence[str]) -> Tensors:
        """`given` bool and `probabilities` float32 [examples, labels]."""
        probabilities = tf.nn.sigmoid(logits)
        return {"given": probabilities >= self._config.threshold, "probabilities": probabilities}

    def answers(self, answers: dict[str, Array], labels: Sequence[str]) -> Iterable[list[str]]:
        names = np.array(labels, object)
        return (names[given].tolist() for given in answers["given"])

    def cell(self, answer: list[str]) -> str:
        return self._config.separator.join(answer)


def marked(rows: Sequence[Iterable[str]], names: Sequence[str]) -> Array:
    """bool [rows, names]: which of the names each row has; others are ignored."""
    numbers = {name: number for number, name in enumerate(names)}
    marks = np.zeros([len(rows), len(names)], bool)
    for row, labels in enumerate(rows):
        marks[row, [numbers[label] for label in labels if label in numbers]] = True
    return marks


class MultiLabelObjective(Objective):
    """Binary cross-entropy; the loss of an example is the mean over the labels.

    The class weights are those of positive examples.
    """

    metric_names = ("truncated_share",)
    soft_outputs = types.MappingProxyType({"logits": SoftOutput("sigmoid")})

    def __init__(self, state: LabelsState) -> None:
        self._state = state

    def build(self, encoder: BertEncoder) -> keras.Model:
        return build(encoder, "classification", len(self._state.labels))

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"loss": rows_of(features)}

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        weights = tf.constant(self._state.class_weights or [1.0] * len(self._state.labels))
        loss = tf.nn.weighted_cross_entropy_with_logits(features["labels"], outputs["logits"], weights)
        return {
            "loss": (tf.reduce_sum(tf.reduce_mean(loss, -1)), rows_of(features)),
            "truncated_share": truncated_share(features),
        }

    def answered(self, features: Tensors) -> dict[str, tf.Tensor]:
        return whole_examples(features)


class MultiLabelBenchmark(Benchmark[LabelsCodec]):
    """Precision, recall and F1 over all labels and examples."""

    monitor = "micro_f1"

    def _marked(self, examples: list[TextExample], predictions: list[Json]) -> tuple[Array, Array, Array]:
        """The names of the labels, those that the model does not have last; the true and the predicted ones.

        Returns:
            str [labels]; bool [examples, labels]; bool [predictions, labels].
        """
        names = self.codec.names(examples)
        gold = marked(list(map(self.codec.named, examples)), names)
        return np.array(names), gold, marked([one["labels"] for one in predictions], names)

    def official_metrics(self, examples: list[TextExample], predictions: list[Json]) -> Metrics:
        _, gold, predicted = self._marked(examples, predictions)
        return multi_label(gold, predicted)

    def baseline(self, examples: list[TextExample]) -> Metrics:
        """Metrics of predicting the labels of at least half of the examples, or else the most frequent one, if any."""
        names, gold, _ = self._marked(examples, [])
        shares = gold.mean(0)
        common = np.flatnonzero(shares >= 0.5)
        if not common.size and shares.max() > 0:
            common = np.array([shares.argmax()])
        return self.official_metrics(examples, [{"labels": names[common].tolist()}] * len(examples))

    def error_analysis(self, examples: list[TextExample], predictions: list[Json]) -> ErrorAnalysis:
        names, gold, predicted = self._marked(examples, predictions)
        count = len(self.codec.state.labels)
        known = slice(count)  # there is no probability of the others
        probabilities = np.zeros([len(predictions), count])
        for row, one in enumerate(predictions):
            probabilities[row] = list(one["probabilities"].values())
        wrong = (gold != predicted).sum(1)
        counts = gold.sum(0)
        shares = precision_recall_f1((gold & predicted).sum(0), predicted.sum(0), counts)
        rows = list(zip(names.tolist(), *(values.tolist() for values in (*shares, counts)), strict=True))
        return ErrorAnalysis(
            intervals=bootstrap_intervals(multi_label, gold, predicted),
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


class MultiLabel(LabelTask):
    """Multi-label classification of texts."""

    name = "multi_label_classification"
    problem_type = "multi_label_classification"
    Config = MultiLabelConfig

    def _parts(self, metrics: str) -> tuple[LabelsCodec, Objective, MultiLabelBenchmark]:
        codec = LabelsCodec(self.tokenizer, self.config, self.state, SeveralLabels(self.config))
        return codec, MultiLabelObjective(self.state), MultiLabelBenchmark(codec, metrics)

    @classmethod
    def head(cls, settings: Json) -> str:
        return "classification"

    def _learn(self, examples: list[TextExample], labels: Labels | None) -> None:
        super()._learn(examples, labels)
        self.config.check_separable(self.state.labels)
