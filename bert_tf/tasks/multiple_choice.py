"""Multiple choice: which of several texts fits a context (paper, section 4.4)."""

import types
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import MultipleChoiceConfig
from bert_tf.inputs.datasets.examples import ChoiceExample
from bert_tf.metrics.accuracy_and_f1 import accuracy
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.tasks.benchmark import Benchmark, ErrorAnalysis, analysis_of_choices
from bert_tf.tasks.codec import Codec, strings
from bert_tf.tasks.objective import Objective, SoftOutput, rows_of, truncated_share
from bert_tf.tasks.task import FineTuningTask
from bert_tf.text.packing import truncate
from bert_tf.types import Array, Json, Metrics, Tensors

# Added to the logits of missing choices.
_ABSENT = -1e9


class ChoiceCodec(Codec):
    """Of examples with different numbers of choices.

    A row of features is an example, [choices, length]. The exported model takes `context` and `question`, string
    [batch], and `choices`, string [batch, n], padded with "". The first segment is the context followed by the
    question, which may be "" and is kept when the context is cut.
    """

    config: MultipleChoiceConfig
    example_api = "classify"
    optional = frozenset({"question"})

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        return (
            tf.TensorSpec([None], tf.string, name="context"),
            tf.TensorSpec([None, None], tf.string, name="choices"),
            tf.TensorSpec([None], tf.string, name="question"),
        )

    def requests(self, examples: list[ChoiceExample]) -> Iterator[tuple[Sequence[int], str, dict[str, Array]]]:
        """As in Codec; adds "" as the first choice of each row, so that no choice is a copy of it (`_ragged`)."""
        for rows, signature, columns in super().requests(examples):
            yield rows, signature, columns | {"choices": np.insert(columns["choices"], 0, b"", axis=1)}

    def response(self, outputs: dict[str, Array]) -> dict[str, Array]:
        answers = super().response(outputs)
        shifted = {name: np.maximum(answers[name] - 1, 0) for name in ("choice", "choice_count")}
        return answers | shifted | {"probabilities": answers["probabilities"][:, 1:]}

    def to_tensors(self, examples: list[ChoiceExample], *, labelled: bool) -> Tensors:
        columns = {
            "context": tf.constant([one.context for one in examples]),
            "choices": tf.ragged.constant([one.choices for one in examples], tf.string, ragged_rank=1),
            "question": tf.constant([one.question for one in examples]),
        }
        if labelled:
            columns["labels"] = tf.constant([example.label for example in examples], tf.int32)
        return columns

    def unlabelled(self, examples: list[ChoiceExample]) -> list[ChoiceExample]:
        return [example._replace(label=0) for example in examples]

    def preprocess(self, columns: Tensors) -> Tensors:
        choices = _ragged(columns["choices"])
        budget = self.config.max_length - self.tokenizer.specials(pairs=True)
        given = columns["context"], choices.values, columns["question"]
        contexts, texts, questions = map(self.tokenizer.tokenize, given)
        # Only a question that would leave no room for the rest is cut.
        asked, _, long_question = truncate(questions, budget=budget // 2)
        contexts, asked, long_question = (
            tf.gather(value, choices.value_rowids()) for value in (contexts, asked, long_question)
        )
        first, second, cut = truncate(contexts, texts, budget=budget - asked.row_lengths(), keep=self.config.long_texts)
        first, cut = tf.concat([first, asked], 1), cut | long_question
        packed, types = self.tokenizer.pack(first, second)
        features = {
            "input_word_ids": choices.with_values(packed),
            "input_type_ids": choices.with_values(types),
            "row": tf.range(choices.nrows()),
            "is_choice": choices.with_values(choices.values != ""),
            "truncated": tf.reduce_any(choices.with_values(cut), 1),
        }
        return features | {name: columns[name] for name in ("labels",) if name in columns}

    def pad(self, features: Tensors, *, few_lengths: bool = False) -> Tensors:
        """As `Codec.pad`: the model's inputs are [rows, choices, length], `is_choice` is [rows, choices]."""
        features = dict(features)
        is_choice = features.pop("is_choice")
        return super().pad(features, few_lengths=few_lengths) | {"is_choice": is_choice.to_tensor()}

    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        return {"logits": tf.where(features["is_choice"], outputs["logits"], 0.0)}

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        """The answers.

        Returns:
            choice int32 [examples], an index; label string [examples], the text of that choice; probabilities float32
            [examples, choices], 0 for missing ones; choice_count int32 [examples], the number up to the last choice.
        """
        logits = decoded["logits"]
        count = tf.maximum(tf.shape(logits)[1], 1)  # argmax needs at least one
        choices = _ragged(columns["choices"]).to_tensor(shape=tf.stack([-1, count]))
        answers = _chosen(tf.pad(logits, [[0, 0], [0, count - tf.shape(logits)[1]]]), choices != "")
        return answers | {"label": tf.gather(choices, answers["choice"], batch_dims=1)}

    def answer_tokens(self, features: Tensors, outputs: Tensors) -> Tensors:
        """As for texts, without `label`; a choice without tokens counts as missing."""
        return _chosen(outputs["logits"], tf.reduce_any(features["input_mask"] > 0, -1))

    def example_outputs(self, columns: Tensors, answers: Tensors) -> Tensors:
        shape = tf.stack([-1, tf.shape(answers["probabilities"])[1]])
        choices = tf.RaggedTensor.from_tensor(columns["choices"])
        return {"classes": choices.to_tensor(shape=shape), "scores": answers["probabilities"]}

    def _predictions(self, examples: list[ChoiceExample], answers: dict[str, Array]) -> list[Json]:
        rows = zip(
            answers["choice"].tolist(), strings(answers["label"]), answers["probabilities"].tolist(), strict=True
        )
        return [
            {"id": one.id, "choice": choice, "label": label, "probabilities": shares[: len(one.choices)]}
            for one, (choice, label, shares) in zip(examples, rows, strict=True)
        ]


class ChoiceObjective(Objective):
    """Cross-entropy over the choices."""

    metric_names = ("accuracy", "truncated_share")
    soft_outputs = types.MappingProxyType({"logits": SoftOutput(over_parts=True)})

    def build(self, encoder: BertEncoder) -> keras.Model:
        return build(encoder, "multiple_choice")

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"loss": rows_of(features)}

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        rows, labels = rows_of(features), features["labels"]
        logits = outputs["logits"] + _ABSENT * tf.cast(~features["is_choice"], tf.float32)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        right = tf.cast(tf.argmax(logits, -1, tf.int32) == labels, tf.float32)
        return {
            "loss": (tf.reduce_sum(loss), rows),
            "accuracy": (tf.reduce_sum(right), rows),
            "truncated_share": truncated_share(features),
        }

    def answered(self, features: Tensors) -> dict[str, tf.Tensor]:
        is_choice = features["is_choice"]
        return {"logits": tf.where(is_choice, tf.range(tf.shape(is_choice)[1]), -1)}


class ChoiceBenchmark(Benchmark[ChoiceCodec]):
    """Accuracy."""

    monitor = "accuracy"

    def official_metrics(self, examples: list[ChoiceExample], predictions: list[Json]) -> Metrics:
        return accuracy([example.label for example in examples], [prediction["choice"] for prediction in predictions])

    def baseline(self, examples: list[ChoiceExample]) -> Metrics:
        """Expected accuracy of a random choice: the order of the choices carries no information."""
        return {"accuracy": float(np.mean([1 / len(example.choices) for example in examples]))}

    def error_analysis(self, examples: list[ChoiceExample], predictions: list[Json]) -> ErrorAnalysis:
        gold = np.array([example.label for example in examples])
        predicted = np.array([prediction["choice"] for prediction in predictions])
        confidences = np.array([max(prediction["probabilities"]) for prediction in predictions])

        def describe(index: int) -> tuple[tuple[str, ...], str, str, str]:
            one = examples[index]
            texts = tuple(filter(None, (one.context, one.question)))
            # A diverged model may choose one of the choices that this example lacks.
            answered = dict(enumerate(one.choices)).get(predicted[index], "")
            return texts, one.choices[gold[index]], answered, one.location

        return analysis_of_choices(accuracy, gold, predicted, confidences, describe)


class MultipleChoice(FineTuningTask):
    """Choice of one of several texts."""

    name = "multiple_choice"
    Config = MultipleChoiceConfig
    example = ChoiceExample

    def _parts(self, metrics: str) -> tuple[ChoiceCodec, Objective, ChoiceBenchmark]:
        codec = ChoiceCodec(self.tokenizer, self.config, self.state)
        return codec, ChoiceObjective(), ChoiceBenchmark(codec, metrics)


def _chosen(logits: tf.Tensor, is_choice: tf.Tensor) -> Tensors:
    """choice, probabilities and choice_count, as in `aggregate_windows`, from tensors [examples, choices]."""
    logits += _ABSENT * tf.cast(~is_choice, tf.float32)
    indices = tf.range(1, tf.shape(is_choice)[1] + 1) * tf.cast(is_choice, tf.int32)
    return {
        "choice": tf.argmax(logits, -1, tf.int32),
        "probabilities": tf.where(is_choice, tf.nn.softmax(logits), 0.0),
        "choice_count": tf.reduce_max(indices, 1),
    }


def _ragged(choices: tf.Tensor | tf.RaggedTensor) -> tf.RaggedTensor:
    """String [examples, choices] as a RaggedTensor.

    A dense tensor is from a client. Copies of its first choice at the end of a row count as missing: a server that
    batches requests may pad shorter lists with the first element of their request's tensor.
    """
    if isinstance(choices, tf.RaggedTensor):
        return choices
    indices = tf.range(tf.shape(choices)[1])
    others = tf.cast(choices != choices[:, :1], tf.int32)
    last = tf.reduce_max(indices * others, 1, keepdims=True)  # the last that differs from the first, else 0
    return tf.RaggedTensor.from_tensor(tf.where(indices > tf.maximum(last, 0), "", choices))
