"""Classification of one text or of a pair of texts (paper, sections 4.1 and figure 4a, 4b)."""

import dataclasses
import os

import numpy as np
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.inputs.batching import batch_by_length
from bert_tf.inputs.packing import dense_features, pack, truncate
from bert_tf.inputs.tables import read_table
from bert_tf.model.heads import classifier
from bert_tf.tasks.task import Task

# Examples sorted by length together, in batches: more would leave less padding and less chance in the order.
_POOL = 32
# Lengths are rounded up to a multiple of this: matrix kernels like it, and compiled ones see few shapes.
_LENGTH_MULTIPLE = 4


@dataclasses.dataclass
class Classification(Task):
    """Texts into classes.

    Attributes:
        tokenizer: Tokenizer.
        labels: the classes, in the order of the logits.
        text, second_text, label: names of the columns; `second_text` is "" where there is one text.
        max_length: tokens an input, specials counted; longer texts are cut at the end, pairs at the longer one.
        evaluation: file name that a directory of data is evaluated by.
    """

    tokenizer: object
    labels: tuple[str, ...]
    text: str = "sentence"
    second_text: str = ""
    label: str = "label"
    max_length: int = 128
    evaluation: str = "dev.tsv"

    name = "classification"
    losses = ("loss",)
    metrics = ("accuracy",)

    def settings(self):
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if name != "tokenizer"} | {"labels": list(self.labels)}

    @classmethod
    def from_settings(cls, settings, tokenizer):
        return cls(tokenizer, **settings)

    @property
    def texts(self):
        """Names of the text columns: one or two."""
        return [self.text, self.second_text] if self.second_text else [self.text]

    def table(self, path):
        """The table that `path` names: itself, or the evaluation table in it if it is a folder."""
        return os.path.join(path, self.evaluation) if os.path.isdir(path) else path

    def read(self, path, *, labelled=True):
        """Rows of a table as dict column -> list; the label column becomes class ids.

        Raises:
            DataError: as `read_table`, and for a label that is not among `labels`, with its line.
        """
        rows, lines = read_table(path, self.texts + [self.label] * labelled)
        if labelled:
            ids = {label: index for index, label in enumerate(self.labels)}
            for line, label in zip(lines, rows[self.label], strict=True):
                if label not in ids:
                    known = ", ".join(map(repr, self.labels[:20]))
                    raise DataError(f"{path}:{line}: label {label!r} is not one of the model's: {known}")
            rows[self.label] = [ids[label] for label in rows[self.label]]
        return rows

    def encode(self, *texts):
        """One or two string [batch] -> packed ids, types (RaggedTensors int32 [batch, None]), cut (bool [batch])."""
        ids = [self.tokenizer.tokenize(text) for text in texts]
        first, second, cut = truncate(*ids, budget=self.max_length - 1 - len(ids))
        tokenizer = self.tokenizer
        return *pack(first, second, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id), cut

    def batches(self, rows, batch_size, *, seed=None):
        """Batches of similar length of all rows, each row once.

        Args:
            rows: what `read` returns.
            batch_size: rows a batch.
            seed: int64 [2] of the order; None keeps rows near their place (evaluation).

        Returns:
            Dataset of features: the encoder's inputs, `row` int64 [batch], and `labels` int32 [batch] if the rows have
            them.
        """
        count = len(rows[self.text])
        texts = [tf.constant(rows[name]) for name in self.texts]
        labels = tf.constant(rows[self.label], tf.int32) if self.label in rows else None
        order = tf.range(count, dtype=tf.int64)
        if seed is not None:
            order = tf.random.experimental.stateless_shuffle(order, seed)

        def encode(row):
            ids, types, cut = self.encode(*(tf.gather(text, row) for text in texts))
            features = {"row": row, "input_word_ids": ids, "types": types, "truncated": cut}
            return features if labels is None else features | {"labels": tf.gather(labels, row)}

        def pad(batch):
            ids, types = batch.pop("input_word_ids"), batch.pop("types")
            return batch | dense_features(ids, types, length_multiple=_LENGTH_MULTIPLE, max_length=self.max_length)

        pools = tf.data.Dataset.from_tensor_slices(order).batch(batch_size * _POOL)
        pools = pools.map(encode, num_parallel_calls=tf.data.AUTOTUNE)
        return batch_by_length(pools, batch_size, seed=seed).map(pad, num_parallel_calls=tf.data.AUTOTUNE)

    def build(self, encoder):
        return classifier(encoder, len(self.labels))

    def weights(self, features):
        return {"loss": tf.cast(tf.shape(features["labels"])[0], tf.float32)}

    def measures(self, features, outputs):
        count = self.weights(features)["loss"]
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(features["labels"], outputs["logits"])
        right = tf.cast(tf.argmax(outputs["logits"], -1, tf.int32) == features["labels"], tf.float32)
        return {"loss": (tf.reduce_sum(loss), count), "accuracy": (tf.reduce_sum(right), count)}

    def write_predictions(self, file, outputs):
        """Writes a TSV with a header: the likeliest label, then the probability of each."""
        file.write("\t".join(["label", *self.labels]) + "\n")
        for output in outputs:
            logits = output["logits"].astype(np.float64)
            probabilities = np.exp(logits - logits.max())
            probabilities /= probabilities.sum()
            fields = [self.labels[logits.argmax()], *(f"{probability:.6f}" for probability in probabilities)]
            file.write("\t".join(fields) + "\n")

    def serving(self, model):
        return Classify(model, self)


def labels_of(path, label):
    """The distinct labels of a table, sorted; numbers by value."""
    found = set(read_table(path, [label])[0][label])
    if len(found) < 2:
        raise DataError(f"{path}: column {label!r} holds {len(found)} distinct label; expected at least two")
    return tuple(sorted(found, key=lambda text: (0, float(text), text) if text.isdecimal() else (1, 0.0, text)))


class Classify(tf.Module):
    """Texts in, label and probabilities out."""

    def __init__(self, model, task):
        super().__init__()
        self.model = model
        self.task_tokenizer = task.tokenizer
        self.labels = tf.constant(task.labels)
        names = ("text", "second_text") if task.second_text else ("text",)

        def serve(*texts):
            """label string [batch], probabilities float32 [batch, classes], labels string [batch, classes]."""
            ids, types, _ = task.encode(*texts)
            probabilities = tf.nn.softmax(model(dense_features(ids, types))["logits"])
            return {
                "label": tf.gather(self.labels, tf.argmax(probabilities, -1)),
                "probabilities": probabilities,
                "labels": tf.repeat(self.labels[tf.newaxis], tf.shape(probabilities)[0], 0),
            }

        self.serve = tf.function(serve, input_signature=[tf.TensorSpec([None], tf.string, name=name) for name in names])
