"""Any number of labels for a text or a pair of texts, each decided alone."""

import collections
import dataclasses

import numpy as np
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.labelled import Scale
from bert_tf.metrics import bootstrap
from bert_tf.metrics.classification import multi_label
from bert_tf.metrics.counts import precision_recall_f1
from bert_tf.tasks.error_analysis import LISTED, ErrorAnalysis, ErrorExample, Table
from bert_tf.tasks.fine_tuning_task import truncated_share
from bert_tf.tasks.labels import WRITTEN, LabelsConfig, class_weights, labels_of, number_of
from bert_tf.tasks.texts import TextTask, pooled, write_table


@dataclasses.dataclass
class MultiLabelConfig(LabelsConfig):
    """Texts into labels.

    Attributes:
        separator: what stands between the labels of a TSV's or CSV's column; in JSON they can be a list. An example
            with an empty one has none of the labels.
        threshold: a label's probability from which on it is given.
    """

    separator: str = ","
    threshold: float = 0.5

    def check(self):
        if not self.separator:
            raise ConfigError("task.separator is empty; expected what stands between two labels")
        if not 0 < self.threshold < 1:
            raise ConfigError(f"task.threshold is {self.threshold}; it is a probability, above 0 and below 1")
        super().check()
        _check_joined(self.labels, self.separator, f"in task.labels: {WRITTEN}, or choose another separator")
        return self


def _check_joined(labels, separator, remedy):
    """Raises ConfigError for a label that holds the separator: in a table it could not be told from two."""
    if joined := next((label for label in labels if separator in label), None):
        raise ConfigError(f"the label {joined!r} holds task.separator, {separator!r}; {remedy}")


class MultiLabel(TextTask):
    """Texts into labels, each by a sigmoid of its own; the loss of an example is the mean over the labels.

    Attributes:
        labels: in the order of the logits.
        class_weights: of each label's own examples in the loss; () for equal ones.
    """

    name = "multi_label_classification"
    Config = MultiLabelConfig
    state = ("labels", "pair", "class_weights")
    class_weights = ()
    example_api = "classify"
    losses = ("loss",)
    metric_names = ("truncated_share",)
    monitor = "micro_f1"
    glue = None  # none of its tasks is of this kind

    @classmethod
    def head(cls, settings):
        return "classification"

    @classmethod
    def create(cls, tokenizer, config, data, examples, labels):
        if isinstance(labels, Scale):
            raise ConfigError(f"the labels are numbers from {labels.low:g} to {labels.high:g}; take RegressionConfig")
        counts = collections.Counter(label for example in examples for label in set(split(example, config.separator)))
        labels = tuple(config.labels or labels or labels_of(counts, examples[0], data))
        _check_joined(labels, config.separator, "choose another separator")
        weights = class_weights(
            config,
            [counts[label] for label in labels],
            lambda counts: np.maximum(len(examples) - counts, 1) / counts,
        )
        return cls(tokenizer, config, data, labels=labels, class_weights=weights)

    def to_tensors(self, examples, *, labelled):
        columns = self.text_columns(examples)
        if labelled:
            columns["labels"] = tf.constant(self._given(examples), tf.float32)
        return columns

    def _given(self, examples):
        """bool [examples, labels]: which labels each has."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        given = np.zeros([len(examples), len(numbers)], bool)
        for row, example in enumerate(examples):
            for label in split(example, self.config.separator):
                given[row, number_of(label, numbers, example.location)] = True
        return given

    def weights(self, features):
        return {"loss": tf.cast(tf.shape(features["labels"])[0], tf.float32)}

    def loss_and_metrics(self, features, outputs):
        weights = tf.constant(self.class_weights or [1.0] * len(self.labels))
        loss = tf.nn.weighted_cross_entropy_with_logits(features["labels"], outputs["logits"], weights)
        return {
            "loss": (tf.reduce_sum(tf.reduce_mean(loss, -1)), self.weights(features)["loss"]),
            "truncated_share": truncated_share(features),
        }

    def postprocess(self, features, outputs):
        return {"logits": outputs["logits"]}

    def aggregate_windows(self, columns, rows, decoded):
        """`given` bool and `probabilities` float32 [examples, labels], `labels` their names of the same shape."""
        examples = tf.shape(columns["text"])[0]
        probabilities = tf.nn.sigmoid(pooled(decoded["logits"], rows, examples))
        return {
            "given": probabilities >= self.config.threshold,
            "probabilities": probabilities,
            "labels": tf.repeat(tf.constant(self.labels)[tf.newaxis], examples, 0),
        }

    def example_outputs(self, columns, answers):
        return {"classes": answers["labels"], "scores": answers["probabilities"]}

    def predictions(self, examples, answers):
        labels = np.array(self.labels, object)
        return [
            {
                "id": example.id,
                "labels": labels[given].tolist(),
                "probabilities": dict(zip(self.labels, shares.tolist(), strict=True)),
            }
            for example, given, shares in zip(examples, answers["given"], answers["probabilities"], strict=True)
        ]

    def official_metrics(self, examples, predictions):
        return multi_label(self._given(examples), self._found(predictions))

    def _found(self, predictions):
        return np.array([[label in one["labels"] for label in self.labels] for one in predictions])

    def baseline(self, examples):
        """Of giving each label that at least half of the examples have, or else the commonest alone, if any has one."""
        shares = self._given(examples).mean(0)
        common = np.flatnonzero(shares >= 0.5)
        if not common.size and shares.max() > 0:
            common = [shares.argmax()]
        return self.official_metrics(examples, [{"labels": [self.labels[label] for label in common]}] * len(examples))

    def error_analysis(self, examples, predictions):
        gold, found = self._given(examples), self._found(predictions)
        probabilities = np.array([list(one["probabilities"].values()) for one in predictions])
        wrong = (gold != found).sum(1)
        true = gold.sum(0)
        shares = precision_recall_f1((gold & found).sum(0), found.sum(0), true)
        rows = list(zip(self.labels, *(values.tolist() for values in (*shares, true)), strict=True))
        return ErrorAnalysis(
            intervals=_intervals(gold, found),
            confidences=np.where(found, probabilities, 1 - probabilities).ravel(),
            correct=(gold == found).ravel(),
            table=Table("Labels", ("label", "precision", "recall", "f1", "examples"), rows),
            errors=[
                ErrorExample(
                    examples[index].texts,
                    ", ".join(np.array(self.labels)[gold[index]]),
                    ", ".join(predictions[index]["labels"]),
                    examples[index].location,
                )
                for index in np.argsort(-wrong, kind="stable")[:LISTED]
                if wrong[index]
            ],
        )

    def writers(self):
        return super().writers() | {".tsv": self._write_table}

    def _write_table(self, path, predicted):
        """A TSV with a header: the labels given, then the probability of each."""
        rows = (
            [self.config.separator.join(prediction["labels"]), *prediction["probabilities"].values()]
            for _, prediction in predicted
        )
        write_table(path, ["labels", *self.labels], rows)


def split(example, separator):
    """The labels of an example: list of str.

    Raises:
        DataError: it has something else, such as a number.
    """
    if isinstance(example.label, str):
        parts = [part.strip() for part in example.label.split(separator)]
        return [part for part in parts if part]
    if not isinstance(example.label, tuple):
        raise DataError(f"{example.location}: label {example.label!r}; expected names, or a list of them")
    return list(example.label)


def _intervals(gold, found):
    """The bootstrap intervals of the scores, from sums: labels by the score's definition would take minutes."""
    counts = gold & found, found, gold
    terms = {
        "micro_f1": (np.stack([some.sum(1) for some in counts], 1), lambda sums: precision_recall_f1(*sums.T)[2]),
        "macro_f1": (np.hstack(counts), lambda sums: precision_recall_f1(*np.split(sums, 3, 1))[2].mean(1)),
        "exact_match": ((gold == found).all(1), lambda sums: sums[:, 0] / len(gold)),
    }
    return {name: bootstrap.interval_of_sums(metric, of_examples) for name, (of_examples, metric) in terms.items()}
