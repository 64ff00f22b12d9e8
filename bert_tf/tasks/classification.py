"""Classification of one text or of a pair of texts (paper, sections 4.1 and figure 4a, 4b)."""

import collections
import dataclasses

import numpy as np
import sklearn.metrics
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.labelled import OUT_OF_SCOPE, Scale
from bert_tf.metrics.classification import accuracy, class_intervals, macro_f1, scope
from bert_tf.metrics.glue import glue_class_scores, glue_scores, sets_of
from bert_tf.tasks.error_analysis import Confusion, ErrorAnalysis, ErrorExample, surest_errors
from bert_tf.tasks.fine_tuning_task import strings, truncated_share
from bert_tf.tasks.labels import WRITTEN, LabelsConfig, class_weights, labels_of, number_of
from bert_tf.tasks.texts import TextTask, pooled, write_table


@dataclasses.dataclass
class ClassificationConfig(LabelsConfig):
    """Texts into classes.

    Attributes:
        head: "pooled": a dense layer on the pooled output; "bilstm": on a BiLSTM over all tokens.
    """

    head: str = "pooled"

    def check(self):
        if self.head not in ("pooled", "bilstm"):
            raise ConfigError(f"task.head {self.head!r} is unknown; choose pooled or bilstm")
        if len(self.labels) == 1:
            raise ConfigError(f"task.labels is {self.labels[0]!r} alone; expected at least two: {WRITTEN}")
        return super().check()


class Classification(TextTask):
    """Texts into classes.

    Scores are accuracy and macro F1; of GLUE's tasks its own metrics instead, and of CLINC150, whose queries out of
    scope are one more class ("oos", learned from the file's hundred of "oos_train"), also what its paper reports.

    Attributes:
        labels: the classes, in the order of the logits.
        class_weights: of each class in the loss; () for equal ones.
    """

    name = "classification"
    Config = ClassificationConfig
    state = ("labels", "pair", "class_weights")
    class_weights = ()
    example_api = "classify"
    losses = ("loss",)
    metric_names = ("accuracy", "truncated_share")

    @property
    def monitor(self):
        return "score" if self.glue else "macro_f1" if self.data.format == "klue/ynat" else "accuracy"

    @classmethod
    def head(cls, settings):
        return "classification_bilstm" if settings.get("head") == "bilstm" else "classification"

    @classmethod
    def create(cls, tokenizer, config, data, examples, labels):
        if isinstance(labels, Scale):
            raise ConfigError(f"the labels are numbers from {labels.low:g} to {labels.high:g}; take RegressionConfig")
        several = next((example for example in examples if isinstance(example.label, tuple)), None)
        if several:
            raise DataError(f"{several.location}: a list of labels; expected one, or take MultiLabelConfig")
        _check_filled(examples)
        counts = collections.Counter(example.label for example in examples)
        labels = config.labels or labels or labels_of(counts, examples[0], data)
        weights = class_weights(
            config, [counts[label] for label in labels], lambda counts: counts.sum() / (len(counts) * counts)
        )
        return cls(tokenizer, config, data, labels=tuple(labels), class_weights=weights)

    def to_tensors(self, examples, *, labelled):
        columns = self.text_columns(examples)
        if labelled:
            _check_filled(examples)
            numbers = {label: number for number, label in enumerate(self.labels)}
            found = [number_of(example.label, numbers, example.location) for example in examples]
            columns["labels"] = tf.constant(found, tf.int32)
        return columns

    def weights(self, features):
        return {"loss": tf.reduce_sum(self._weights_of(features["labels"]))}

    def _weights_of(self, labels):
        """float32 [rows]: the weight of each row's class."""
        return tf.gather(tf.constant(self.class_weights or [1.0] * len(self.labels)), labels)

    def loss_and_metrics(self, features, outputs):
        labels = features["labels"]
        weights = self._weights_of(labels)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs["logits"])
        right = tf.cast(tf.argmax(outputs["logits"], -1, tf.int32) == labels, tf.float32)
        return {
            "loss": (tf.reduce_sum(weights * loss), tf.reduce_sum(weights)),
            "accuracy": (tf.reduce_sum(right), tf.cast(tf.size(right), tf.float32)),
            "truncated_share": truncated_share(features),
        }

    def postprocess(self, features, outputs):
        return {"logits": outputs["logits"]}

    def aggregate_windows(self, columns, rows, decoded):
        examples = tf.shape(columns["text"])[0]
        probabilities = tf.nn.softmax(pooled(decoded["logits"], rows, examples))
        labels = tf.constant(self.labels)
        return {
            "label": tf.gather(labels, tf.argmax(probabilities, -1)),
            "probabilities": probabilities,
            "labels": tf.repeat(labels[tf.newaxis], examples, 0),
        }

    def example_outputs(self, columns, answers):
        return {"classes": answers["labels"], "scores": answers["probabilities"]}

    def predictions(self, examples, answers):
        found, probabilities = strings(answers["label"]), answers["probabilities"].tolist()
        return [
            {"id": example.id, "label": label, "probabilities": dict(zip(self.labels, shares, strict=True))}
            for example, label, shares in zip(examples, found, probabilities, strict=True)
        ]

    def official_metrics(self, examples, predictions):
        gold, found = [example.label for example in examples], [prediction["label"] for prediction in predictions]
        if self.glue:
            return glue_scores(sets_of(self.glue)[0], gold, found)  # MNLI's halves have the same metric
        scores = accuracy(gold, found) | macro_f1(gold, found)
        return scores | scope(gold, found, OUT_OF_SCOPE) if self.data.format == "clinc150" else scores

    def _scores_of_counts(self, counts):
        """The same, dict of [resamples], of ClassCounts of [resamples, classes]."""
        if self.glue:
            return glue_class_scores(sets_of(self.glue)[0], counts)
        scores = {"accuracy": counts.accuracy(), "macro_f1": counts.macro_f1()}
        return scores | counts.scope(OUT_OF_SCOPE) if self.data.format == "clinc150" else scores

    def baseline(self, examples):
        commonest = collections.Counter(example.label for example in examples).most_common(1)[0][0]
        return self.official_metrics(examples, [{"label": commonest}] * len(examples))

    def error_analysis(self, examples, predictions):
        ids = {label: index for index, label in enumerate(self.labels)}
        gold = np.array([ids[example.label] for example in examples])
        found = np.array([ids[prediction["label"]] for prediction in predictions])
        sure = np.array([prediction["probabilities"][prediction["label"]] for prediction in predictions])
        return ErrorAnalysis(
            intervals=class_intervals(self._scores_of_counts, self.labels, gold, found),
            confusion=Confusion(
                self.labels, sklearn.metrics.confusion_matrix(gold, found, labels=range(len(ids))).tolist()
            ),
            confidences=sure.tolist(),
            correct=(gold == found).tolist(),
            errors=[
                ErrorExample(one.texts, one.label, self.labels[found[index]], one.location, float(sure[index]))
                for index in surest_errors(sure, gold == found)
                for one in (examples[index],)
            ],
        )

    def writers(self):
        return super().writers() | {".tsv": self._write_table}

    def _write_table(self, path, predicted):
        """A TSV with a header: the likeliest label, then the probability of each."""
        rows = ([prediction["label"], *prediction["probabilities"].values()] for _, prediction in predicted)
        write_table(path, ["label", *self.labels], rows)


def _check_filled(examples):
    """Raises DataError where a label is empty: a cell that somebody forgot, no class of its own."""
    empty = next((example for example in examples if not str(example.label).strip()), None)
    if empty:
        raise DataError(f"{empty.location}: the label is empty; expected a class (MultiLabelConfig takes it for none)")
