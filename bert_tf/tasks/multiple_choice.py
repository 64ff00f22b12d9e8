"""Which of several texts goes with another one (paper, section 4.4)."""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_tf.errors import ConfigError
from bert_tf.inputs.datasets.examples import ChoiceExample
from bert_tf.inputs.packing import pack, truncate
from bert_tf.metrics import bootstrap
from bert_tf.metrics.classification import accuracy
from bert_tf.tasks.error_analysis import ErrorAnalysis, ErrorExample, surest_errors
from bert_tf.tasks.fine_tuning_task import FineTuningTask, TaskConfig, strings, truncated_share
from bert_tf.tasks.texts import LONG_TEXTS

# Added to the logits of choices that are not there.
_ABSENT = -1e9


@dataclasses.dataclass
class MultipleChoiceConfig(TaskConfig):
    """One of several texts.

    Attributes:
        max_length: tokens of a context with a choice, specials counted.
        long_texts: what of a longer pair's longer text is kept: its "head", "tail" or "head_tail" (half of each).
    """

    long_texts: str = "head"

    def check(self):
        kept = LONG_TEXTS[:-1]  # a choice in several windows would have several scores
        if self.long_texts not in kept:
            raise ConfigError(f"task.long_texts is {self.long_texts!r}; multiple choice has no windows, "
                              f"so choose one of {', '.join(kept)}")  # fmt: skip
        return super().check()


class MultipleChoice(FineTuningTask):
    """One of several texts, as many as there are: their number may differ from example to example.

    A row of features is an example, [choices, length]. The exported model takes `context`, string [batch], and
    `choices`, string [batch, n], where "" stands for no choice; a question goes behind the context, after a space.
    """

    name = "multiple_choice"
    Config = MultipleChoiceConfig
    example = ChoiceExample
    losses = ("loss",)
    metric_names = ("accuracy", "truncated_share")
    monitor = "accuracy"
    example_api = "classify"

    @classmethod
    def create(cls, tokenizer, config, data, examples, labels):
        return cls(tokenizer, config, data)

    def inputs(self):
        return tf.TensorSpec([None], tf.string, name="context"), tf.TensorSpec([None, None], tf.string, name="choices")

    def received(self, columns):
        """Without the copies of its first choice that a row ends with.

        A server that batches requests may fill shorter lists up with the first element of their request's tensor.
        """
        choices = columns["choices"]
        indices = tf.range(tf.shape(choices)[1])
        others = tf.cast(choices != choices[:, :1], tf.int32)
        last = tf.reduce_max(indices * others, 1, keepdims=True)  # that is not the first; 0 if there is none
        return columns | {"choices": tf.where(indices > tf.maximum(last, 0), "", choices)}

    def sent(self, columns):
        """With "" as the first choice of each row: then no choice is a copy of it, and `received` takes none out."""
        return columns | {"choices": np.insert(columns["choices"], 0, b"", axis=1)}

    def returned(self, answers):
        shifted = {name: np.maximum(answers[name] - 1, 0) for name in ("choice", "choice_count")}
        return answers | shifted | {"probabilities": answers["probabilities"][:, 1:]}

    def to_tensors(self, examples, *, labelled):
        columns = {
            "context": tf.constant([" ".join(filter(None, (one.context, one.question))) for one in examples]),
            "choices": tf.ragged.constant([one.choices for one in examples], tf.string, ragged_rank=1),
        }
        if labelled:
            columns["labels"] = tf.constant([example.label for example in examples], tf.int32)
        return columns

    def preprocess(self, columns):
        choices = _ragged(columns["choices"])
        contexts = self.tokenizer.tokenize(columns["context"])
        texts = self.tokenizer.tokenize(choices.values)
        first, second, cut = truncate(
            tf.gather(contexts, choices.value_rowids()),
            texts,
            budget=self.config.max_length - 3,
            keep=self.config.long_texts,
        )
        packed, types = pack(first, second, cls_id=self.tokenizer.cls_id, sep_id=self.tokenizer.sep_id)
        features = {
            "input_word_ids": choices.with_values(packed),
            "input_type_ids": choices.with_values(types),
            "row": tf.range(choices.nrows()),
            "there": choices.with_values(choices.values != ""),
            "truncated": tf.reduce_any(choices.with_values(cut), 1),
        }
        return features | {name: columns[name] for name in ("labels",) if name in columns}

    def pad(self, features):
        """As `FineTuningTask.pad`: the model's inputs are [rows, choices, length], `there` is [rows, choices]."""
        features = dict(features)
        there = features.pop("there")
        return super().pad(features) | {"there": there.to_tensor()}

    def weights(self, features):
        return {"loss": tf.cast(tf.shape(features["labels"])[0], tf.float32)}

    def loss_and_metrics(self, features, outputs):
        rows, labels = self.weights(features)["loss"], features["labels"]
        logits = outputs["logits"] + _ABSENT * tf.cast(~features["there"], tf.float32)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        right = tf.cast(tf.argmax(logits, -1, tf.int32) == labels, tf.float32)
        return {
            "loss": (tf.reduce_sum(loss), rows),
            "accuracy": (tf.reduce_sum(right), rows),
            "truncated_share": truncated_share(features),
        }

    def postprocess(self, features, outputs):
        return {"logits": tf.where(features["there"], outputs["logits"], 0.0)}

    def aggregate_windows(self, columns, rows, decoded):
        """The answers.

        Returns:
            dict: choice int32 [examples], its index; label string [examples], its text; probabilities float32
            [examples, choices], 0 where there is none; choice_count int32 [examples], choices up to the last one.
        """
        logits = decoded["logits"]
        count = tf.maximum(tf.shape(logits)[1], 1)  # of nothing there is no largest
        choices = _ragged(columns["choices"]).to_tensor(shape=tf.stack([-1, count]))
        there = choices != ""
        answers = _chosen(tf.pad(logits, [[0, 0], [0, count - tf.shape(logits)[1]]]), there)
        return answers | {"label": tf.gather(choices, answers["choice"], batch_dims=1)}

    def answer_tokens(self, features, outputs):
        """As of texts, without `label`; a choice without any token is none."""
        return _chosen(outputs["logits"], tf.reduce_any(features["input_mask"] > 0, -1))

    def example_outputs(self, columns, answers):
        shape = tf.stack([-1, tf.shape(answers["probabilities"])[1]])
        return {"classes": _ragged(columns["choices"]).to_tensor(shape=shape), "scores": answers["probabilities"]}

    def predictions(self, examples, answers):
        found = zip(
            answers["choice"].tolist(), strings(answers["label"]), answers["probabilities"].tolist(), strict=True
        )
        return [
            {"id": one.id, "choice": choice, "label": label, "probabilities": shares[: len(one.choices)]}
            for one, (choice, label, shares) in zip(examples, found, strict=True)
        ]

    def official_metrics(self, examples, predictions):
        return accuracy([example.label for example in examples], [prediction["choice"] for prediction in predictions])

    def baseline(self, examples):
        """What choosing by lot scores: the order of the choices says nothing."""
        return {"accuracy": float(np.mean([1 / len(example.choices) for example in examples]))}

    def error_analysis(self, examples, predictions):
        gold = np.array([example.label for example in examples])
        found = np.array([prediction["choice"] for prediction in predictions])
        sure = np.array([max(prediction["probabilities"]) for prediction in predictions])
        return ErrorAnalysis(
            intervals={"accuracy": bootstrap.interval_of_mean(gold == found)},
            confidences=sure.tolist(),
            correct=(gold == found).tolist(),
            errors=[
                ErrorExample(
                    tuple(filter(None, (one.context, one.question))),
                    one.choices[one.label],
                    one.choices[found[index]],
                    one.location,
                    float(sure[index]),
                )
                for index in surest_errors(sure, gold == found)
                for one in (examples[index],)
            ],
        )


def _chosen(logits, there):
    """`choice` and `choice_count` int32 [examples], `probabilities` float32 [examples, choices], as `aggregate_windows` says."""
    logits += _ABSENT * tf.cast(~there, tf.float32)
    indices = tf.range(1, tf.shape(there)[1] + 1) * tf.cast(there, tf.int32)
    return {
        "choice": tf.argmax(logits, -1, tf.int32),
        "probabilities": tf.where(there, tf.nn.softmax(logits), 0.0),
        "choice_count": tf.reduce_max(indices, 1),
    }


def _ragged(choices):
    """String [examples, choices] as a RaggedTensor, if it is none."""
    return choices if isinstance(choices, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(choices)
