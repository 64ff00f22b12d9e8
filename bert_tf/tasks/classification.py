"""Classification of one text or of a pair of texts (paper, sections 4.1 and figure 4a, 4b)."""

import collections
import dataclasses

import numpy as np
import sklearn.metrics
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.metrics import bootstrap
from bert_tf.metrics.classification import accuracy, macro_f1
from bert_tf.model.heads import bilstm_classifier, classifier
from bert_tf.tasks.downstream import strings
from bert_tf.tasks.findings import LISTED, Case, Confusion, Findings
from bert_tf.tasks.texts import TextTask, pooled


@dataclasses.dataclass
class ClassificationConfig:
    """Texts into classes.

    Attributes:
        max_length: tokens an input, specials counted.
        long_texts: what becomes of texts beyond it: their "head", "tail" or "head_tail" (half of each) is kept, of a
            pair the longer text loses; or "window": the text becomes several inputs whose logits are averaged.
        head: "pooled": a dense layer on the pooled output; "bilstm": on a BiLSTM over all tokens.
        labels: the classes, in the order of the logits; () for those that the format or the training examples have.
    """

    max_length: int = 128
    long_texts: str = "head"
    head: str = "pooled"
    labels: tuple[str, ...] = ()


class Classification(TextTask):
    """Texts into classes.

    Attributes:
        labels: the classes, in the order of the logits.
    """

    name = "classification"
    Config = ClassificationConfig
    state = ("labels", "pair")
    losses = ("loss",)
    metrics = ("accuracy", "truncated_share")
    best = ("accuracy", "max")

    @classmethod
    def create(cls, tokenizer, config, data, examples, labels):
        labels = config.labels or labels or labels_of([example.label for example in examples], data.train or "train")
        return cls(tokenizer, config, data, labels=tuple(labels), pair=len(examples[0].texts) == 2)

    def columns(self, examples, *, labelled):
        columns = self.text_columns(examples)
        if labelled:
            ids = {label: index for index, label in enumerate(self.labels)}
            for example in examples:
                if example.label not in ids:
                    known = ", ".join(map(repr, self.labels[:20]))
                    raise DataError(f"{example.place}: label {example.label!r} is not one of the model's: {known}")
            columns["labels"] = tf.constant([ids[example.label] for example in examples], tf.int32)
        return columns

    def build(self, encoder):
        return (bilstm_classifier if self.config.head == "bilstm" else classifier)(encoder, len(self.labels))

    def weights(self, features):
        return {"loss": tf.cast(tf.shape(features["labels"])[0], tf.float32)}

    def measures(self, features, outputs):
        rows = self.weights(features)["loss"]
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(features["labels"], outputs["logits"])
        right = tf.cast(tf.argmax(outputs["logits"], -1, tf.int32) == features["labels"], tf.float32)
        truncated = tf.cast(features["truncated"], tf.float32)
        return {
            "loss": (tf.reduce_sum(loss), rows),
            "accuracy": (tf.reduce_sum(right), rows),
            "truncated_share": (tf.reduce_sum(truncated), rows),
        }

    def decode(self, features, outputs):
        return {"logits": outputs["logits"]}

    def merge(self, columns, rows, decoded):
        examples = tf.shape(columns["text"])[0]
        probabilities = tf.nn.softmax(pooled(decoded["logits"], rows, examples))
        labels = tf.constant(self.labels)
        return {
            "label": tf.gather(labels, tf.argmax(probabilities, -1)),
            "probabilities": probabilities,
            "labels": tf.repeat(labels[tf.newaxis], examples, 0),
        }

    def predictions(self, examples, answers):
        found, probabilities = strings(answers["label"]), answers["probabilities"].tolist()
        return [
            {"id": example.id, "label": label, "probabilities": dict(zip(self.labels, shares, strict=True))}
            for example, label, shares in zip(examples, found, probabilities, strict=True)
        ]

    def scores(self, examples, predictions):
        gold, found = [example.label for example in examples], [prediction["label"] for prediction in predictions]
        return accuracy(gold, found) | macro_f1(gold, found)

    def floor(self, examples):
        commonest = collections.Counter(example.label for example in examples).most_common(1)[0][0]
        return self.scores(examples, [{"label": commonest}] * len(examples))

    def findings(self, examples, predictions):
        ids = {label: index for index, label in enumerate(self.labels)}
        gold = np.array([ids[example.label] for example in examples])
        found = np.array([ids[prediction["label"]] for prediction in predictions])
        sure = np.array([prediction["probabilities"][prediction["label"]] for prediction in predictions])
        wrong = [place for place in np.argsort(-sure, kind="stable") if gold[place] != found[place]]
        return Findings(
            intervals=bootstrap.interval(_scores_of_ids, gold, found),
            confusion=Confusion(
                self.labels, sklearn.metrics.confusion_matrix(gold, found, labels=range(len(ids))).tolist()
            ),
            confidences=sure.tolist(),
            correct=(gold == found).tolist(),
            errors=[
                Case(one.texts, one.label, self.labels[found[place]], one.place, float(sure[place]))
                for place in wrong[:LISTED]
                for one in (examples[place],)
            ],
        )

    def writers(self):
        return super().writers() | {".tsv": self._write_table}

    def _write_table(self, path, predicted):
        """A TSV with a header: the likeliest label, then the probability of each."""
        with open(path, "w", encoding="utf-8") as file:
            file.write("\t".join(["label", *self.labels]) + "\n")
            for _, prediction in predicted:
                shares = [f"{share:.6f}" for share in prediction["probabilities"].values()]
                file.write("\t".join([prediction["label"], *shares]) + "\n")


def _scores_of_ids(gold, found):
    """The scores, a hundred times as fast as from names: for the bootstrap."""
    classes = max(gold.max(), found.max()) + 1
    right, marked = np.bincount(gold[gold == found], minlength=classes), np.bincount(gold, minlength=classes)
    marked = marked + np.bincount(found, minlength=classes)
    f1 = 2 * right[marked > 0] / marked[marked > 0]
    return {"accuracy": float(right.sum() / len(gold)), "macro_f1": float(f1.mean())}


def labels_of(labels, where):
    """The distinct labels, sorted; numbers by value.

    Raises:
        DataError: there is but one.
    """
    found = set(labels)
    if len(found) < 2:
        raise DataError(f"{where}: {len(found)} distinct label; expected at least two")
    return tuple(sorted(found, key=lambda text: (0, float(text), text) if text.isdecimal() else (1, 0.0, text)))
