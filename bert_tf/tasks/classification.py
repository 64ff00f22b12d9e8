"""Classification of one text or of a pair of texts (paper, sections 4.1 and figure 4a, 4b)."""

import collections
import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import ClassificationConfig
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.formats import GLUE, OUT_OF_SCOPE
from bert_tf.metrics.accuracy_and_f1 import accuracy, macro_f1, scope
from bert_tf.metrics.glue import glue_scores, sets_of
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.tasks import few_labels
from bert_tf.tasks.benchmark import Benchmark, Confusion, ErrorAnalysis, analysis_of_choices, submission_writers
from bert_tf.tasks.codec import strings
from bert_tf.tasks.few_labels import FewLabels
from bert_tf.tasks.labels import Decision, LabelsCodec, LabelsState, LabelTask
from bert_tf.tasks.objective import LABELLED, Objective, SoftOutput, truncated_share, whole_examples
from bert_tf.types import Array, Json, Metrics, Tensors, Writer

_HEADS = {"bilstm": "classification_bilstm", "vector": few_labels.HEAD}  # by ClassificationConfig.head
_UNKNOWN = -1  # target of an evaluated example whose class the model does not have


class OneLabel(Decision):
    """A class: softmax."""

    answer = "label"

    def given(self, example: TextExample) -> list[Any]:
        """A list is refused, and an empty label: a forgotten cell, not a class."""
        if isinstance(example.label, tuple):
            raise DataError(f"{example.location}: a list of labels; expected one, or use MultiLabelConfig")
        if not str(example.label).strip():
            raise DataError(
                f"{example.location}: the label is empty; expected a class (MultiLabelConfig reads it as no label)"
            )
        return [example.label]

    def balanced(self, counts: Array, examples: int) -> Array:
        return examples / (len(counts) * counts)

    def targets(self, named: list[list[str]], labels: Sequence[str]) -> tf.Tensor:
        numbers = {label: number for number, label in enumerate(labels)}
        return tf.constant([numbers.get(label, _UNKNOWN) for (label,) in named], tf.int32)

    def placeholder(self, labels: Sequence[str]) -> str:
        return labels[0]

    def decide(self, logits: tf.Tensor, labels: Sequence[str]) -> Tensors:
        probabilities = tf.nn.softmax(logits)
        return {
            "label": tf.gather(tf.constant(labels), tf.argmax(probabilities, -1)),
            "probabilities": probabilities,
        }

    def answers(self, answers: dict[str, Array], labels: Sequence[str]) -> Iterable[str]:
        return strings(answers["label"])

    def cell(self, answer: str) -> str:
        return answer


class ClassificationObjective(Objective):
    """Cross-entropy, weighted by class.

    Args:
        head: a key of `model.head_table.HEADS`.
        state: its labels and class weights.
        truncates: whether texts may be truncated, so that their share is a metric.
    """

    soft_outputs = types.MappingProxyType({"logits": SoftOutput()})

    def __init__(self, head: str, state: LabelsState, *, truncates: bool = True) -> None:
        self._head, self._state = head, state
        self.metric_names = ("accuracy", "truncated_share") if truncates else ("accuracy",)

    def build(self, encoder: BertEncoder) -> keras.Model:
        return build(encoder, self._head, len(self._state.labels))

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        weights = self._weights_of(features["labels"])
        if LABELLED in features:  # a row without a label has no class, so it counts as in a loss without class weights
            weights = tf.where(features[LABELLED], weights, 1.0)
        return {"loss": tf.reduce_sum(weights)}

    def _weights_of(self, labels: tf.Tensor) -> tf.Tensor:
        """float32 [rows]: the weight of each row's class; 0 for a class that the model does not have."""
        every = tf.constant(self._state.class_weights or [1.0] * len(self._state.labels))
        return tf.where(labels == _UNKNOWN, 0.0, tf.gather(every, tf.maximum(labels, 0)))

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        labels = features["labels"]
        weights = self._weights_of(labels)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), outputs["logits"])
        right = tf.cast(tf.argmax(outputs["logits"], -1, tf.int32) == labels, tf.float32)
        shares = {"truncated_share": truncated_share(features)} if "truncated_share" in self.metric_names else {}
        return {
            "loss": (tf.reduce_sum(weights * loss), tf.reduce_sum(weights)),
            "accuracy": (tf.reduce_sum(right), tf.cast(tf.size(right), tf.float32)),
        } | shares

    def answered(self, features: Tensors) -> dict[str, tf.Tensor]:
        return whole_examples(features)


class _Measures(NamedTuple):
    """Metrics of a data set: the one that selects the best checkpoint, and those of numbers and names of classes."""

    monitor: str
    metrics: Callable[[Array, Array, Array], Metrics]


def _usual(names: Array, gold: Array, predicted: Array) -> Metrics:
    return accuracy(gold, predicted) | macro_f1(gold, predicted)


def _with_scope(names: Array, gold: Array, predicted: Array) -> Metrics:
    return _usual(names, gold, predicted) | scope(names[gold], names[predicted], OUT_OF_SCOPE)


def _glue(task: str) -> _Measures:
    name = sets_of(task)[0]  # MNLI's halves have the same metric
    return _Measures("score", lambda names, gold, predicted: glue_scores(name, names[gold], names[predicted]))


_MEASURES = {
    "": _Measures("accuracy", _usual),
    "klue/ynat": _Measures("macro_f1", _usual),
    "clinc150": _Measures("accuracy", _with_scope),
} | {f"glue/{task}": _glue(task) for task in GLUE}


class ClassificationBenchmark(Benchmark[LabelsCodec]):
    """Accuracy and macro F1; for GLUE's tasks GLUE's own.

    CLINC150 also gets the metrics of its paper; its out-of-scope queries are one more class ("oos", learned from the
    file's hundred "oos_train" queries).
    """

    def __init__(self, codec: LabelsCodec, metrics: str) -> None:
        super().__init__(codec, metrics)
        self.monitor, self._metrics = _MEASURES.get(metrics, _MEASURES[""])

    def official_metrics(self, examples: list[TextExample], predictions: list[Json]) -> Metrics:
        return self._metrics(*self._numbered(examples, predictions))

    def _numbered(self, examples: list[TextExample], predictions: list[Json]) -> tuple[Array, Array, Array]:
        """The names of the classes, those that the model does not have last, and the true and predicted numbers."""
        names = self.codec.names(examples)
        numbers = {label: number for number, label in enumerate(names)}
        gold = np.array([numbers[label] for label, _ in self.codec.found(examples)])
        return np.array(names), gold, np.array([numbers[prediction["label"]] for prediction in predictions])

    def baseline(self, examples: list[TextExample]) -> Metrics:
        most_frequent = collections.Counter(label for label, _ in self.codec.found(examples)).most_common(1)[0][0]
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

    def writers(self) -> dict[str, Writer]:
        return submission_writers(self.metrics)


class Classification(LabelTask):
    """Classification of texts."""

    name = "classification"
    problem_type = "single_label_classification"
    Config = ClassificationConfig

    def _parts(self, metrics: str) -> tuple[LabelsCodec, Objective, ClassificationBenchmark]:
        codec = LabelsCodec(self.tokenizer, self.config, self.state, OneLabel(self.config))
        head = self.head({"head": self.config.head})
        objective = (
            FewLabels(self.config, self.state) if head == few_labels.HEAD else ClassificationObjective(head, self.state)
        )
        return codec, objective, ClassificationBenchmark(codec, metrics)

    @classmethod
    def head(cls, settings: Json) -> str:
        return _HEADS.get(settings.get("head", ""), "classification")
