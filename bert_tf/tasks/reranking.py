"""Rerankers: a score for a query with a text, both read together (Nogueira and Cho, 2019, arXiv:1901.04085).

As sentence-transformers' CrossEncoder: a classifier with one output, and an activation for it.
"""

import dataclasses
import types
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import RerankerConfig
from bert_tf.config.embeddings import SCORES
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import Labels, ReadReport, TextGroup
from bert_tf.metrics.accuracy_and_f1 import correlations
from bert_tf.metrics.retrieval import by_query, means
from bert_tf.model.activations import activation
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.tasks.benchmark import LISTED, ErrorAnalysis, ErrorExample
from bert_tf.tasks.contrastive import margin_mse
from bert_tf.tasks.contrastive.kl import divergences
from bert_tf.tasks.objective import JointObjective
from bert_tf.tasks.regression import ACTIVATIONS, Regression, number
from bert_tf.tasks.text_groups import (
    FEATURES,
    GroupsBenchmark,
    GroupsCodec,
    GroupsState,
    GroupsTask,
    kind_of,
    padded_texts,
)
from bert_tf.text.packing import truncate
from bert_tf.types import Array, Json, Metrics, Tensors

_NEVER = -1e9  # the score of an absent text


@dataclasses.dataclass
class RerankerState(GroupsState):
    """What is known of the examples, and of the model.

    Attributes:
        labels: one name, that of the score.
        activation: applied to the output of the head to get the score, one of `regression.ACTIVATIONS`.
    """

    labels: Sequence[str] = ("score",)
    activation: str = "sigmoid"


class RerankerCodec(GroupsCodec):
    """From queries and texts to scores; each query with a text is a row of its own."""

    config: RerankerConfig
    state: RerankerState

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        return tf.TensorSpec([None], tf.string, name="queries"), tf.TensorSpec([None, None], tf.string, name="texts")

    def to_tensors(self, examples: list[TextGroup], *, labelled: bool) -> Tensors:
        if alone := next((example for example in examples if len(example.texts) < 2), None):
            raise DataError(f"{alone.location}: a single text; expected a query and texts to score")
        flat = tf.constant([text for example in examples for text in example.texts[1:]])
        columns: Tensors = {
            "queries": tf.constant([example.texts[0] for example in examples]),
            "texts": tf.RaggedTensor.from_row_lengths(flat, [len(example.texts) - 1 for example in examples]),
        }
        if labelled:
            columns["labels"] = columns["texts"].with_values(
                tf.constant([label for example in examples for label in self.targets(example)], tf.float32)
            )
        return columns

    def targets(self, example: TextGroup) -> list[float]:
        """What each text's score should be."""
        if example.label is None:
            return [1.0] + [0.0] * (len(example.texts) - 2)
        if isinstance(example.label, tuple):
            return list(example.label)
        return [self.scaled(example) if self.config.objective == "bce" else number(example)]

    def preprocess(self, columns: Tensors) -> Tensors:
        """Rows of a query with a text."""
        texts = _ragged(columns["texts"])
        ids, types = self._packed(columns["queries"], texts)
        return {"input_word_ids": ids, "input_type_ids": types, "row": texts.value_rowids()}

    def _packed(self, queries: tf.Tensor, texts: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Token ids and types [pairs, None] of all queries with each of their texts."""
        first = tf.gather(self.tokenizer.tokenize(queries), texts.value_rowids())
        budget = self.config.max_length - self.tokenizer.specials(pairs=True)
        second = self.tokenizer.tokenize(texts.values)
        first, second, _ = truncate(first, second, budget=budget, keep=self.config.long_texts)
        return self.tokenizer.pack(first, second)

    def _groups(self, columns: Tensors) -> Tensors:
        texts = columns["texts"]
        ids, types = (texts.with_values(value) for value in self._packed(columns["queries"], texts))
        rows = tf.range(texts.nrows(tf.int64))
        return {"input_word_ids": ids, "input_type_ids": types, "labels": columns["labels"], "row": rows}

    def _padded_groups(self, features: Tensors, *, few_lengths: bool = False) -> Tensors:
        """Dense features [rows, texts - 1, ...]; an absent text is all padding."""
        places, most = self.state.texts - 1, self.config.max_length
        ids, types = features["input_word_ids"], features["input_type_ids"]
        made = padded_texts(ids, types, places, most, few_lengths=few_lengths)
        labels = features["labels"].to_tensor(shape=[None, places])
        return made | {"labels": labels, "row": features["row"], "window": features["window"]}

    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        return {"scores": activation(self.state.activation)(outputs["logits"][:, 0])}

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        return {"scores": _ragged(columns["texts"]).with_values(decoded["scores"])}

    def answer_tokens(self, features: Tensors, outputs: Tensors) -> Tensors:
        return self.postprocess(features, outputs)

    def _predictions(self, examples: list[TextGroup], answers: dict[str, Array]) -> list[Json]:
        return [
            # A server's are padded.
            {"id": example.id, "scores": np.asarray(scores)[: len(example.texts) - 1].tolist()}
            for example, scores in zip(examples, answers["scores"], strict=True)
        ]


def _ragged(texts: tf.Tensor | tf.RaggedTensor) -> tf.RaggedTensor:
    """String [examples, None]; of a client's [batch, n], texts of "" count like others, and get a score."""
    return texts if isinstance(texts, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(texts)


class RerankerObjective(JointObjective):
    """The loss of `RerankerConfig.objective`, of the scores of a query's texts."""

    separable = True

    def __init__(self, config: RerankerConfig, state: RerankerState) -> None:
        self._config, self._state = config, state

    def build(self, encoder: BertEncoder) -> keras.Model:
        return build(encoder, "classification", 1)

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"loss": self._count(_present(features))}

    def _count(self, present: tf.Tensor) -> tf.Tensor:
        """float32 scalar: the number of what the loss is the mean of: texts, margins, or queries."""
        objective = self._config.objective
        if objective in ("softmax", "kl"):
            return tf.cast(tf.shape(present)[0], tf.float32)
        return tf.reduce_sum(tf.cast(present[:, 1:] if objective == "margin_mse" else present, tf.float32))

    def pieces(self, features: Tensors) -> list[Tensors]:
        return [{name: tf.reshape(features[name], [-1, tf.shape(features[name])[2]]) for name in FEATURES}]

    def joined(self, outputs: list[Tensors], features: Tensors) -> Tensors:
        (one,) = outputs
        return {"scores": tf.reshape(tf.cast(one["logits"], tf.float32), [-1, self._state.texts - 1])}

    def known(self, features: Tensors) -> Tensors:
        return {"labels": features["labels"], "present": _present(features)}

    def joint_loss(self, outputs: Tensors, known: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        scores, labels, present = outputs["scores"], known["labels"], known["present"]
        objective = self._config.objective
        if objective == "bce":
            losses = tf.where(present, tf.nn.sigmoid_cross_entropy_with_logits(labels, scores), 0.0)
        elif objective == "mse":
            losses = tf.where(present, tf.square(activation(self._state.activation)(scores) - labels), 0.0)
        elif objective == "margin_mse":
            losses = tf.where(present[:, 1:], margin_mse.squared(scores, labels), 0.0)
        elif objective == "softmax":
            masked = tf.where(present, scores, _NEVER)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.zeros_like(labels[:, 0], tf.int32), masked)
        else:
            losses = divergences(scores, labels, present, self._config.temperature)
        return {"loss": (tf.reduce_sum(losses), self._count(present))}


def _present(features: Tensors) -> tf.Tensor:
    """bool [rows, texts - 1]: whether there is a text."""
    return features["input_mask"][:, :, 0] > 0


class RerankerBenchmark(GroupsBenchmark[RerankerCodec]):
    """How well the scores rank the texts of each query; of pairs with numbers, their correlations."""

    def __init__(self, codec: RerankerCodec, metrics: str) -> None:
        super().__init__(codec, metrics)
        self.monitor = "spearman" if codec.state.kind == "scored pairs" else "mrr@10"

    def _metrics(self, columns: dict[str, Array]) -> Metrics:
        return correlations(columns["gold"], columns["scores"]) if "gold" in columns else means(columns)

    def _columns(self, examples: list[TextGroup], predictions: list[Json]) -> dict[str, Array]:
        if kind_of(examples) == "scored pairs":
            gold = np.array([self.codec.targets(example)[0] for example in examples])
            return {"gold": gold, "scores": np.concatenate([np.asarray(one["scores"]) for one in predictions])}
        examples, predictions = _with_a_choice(examples, predictions)
        scores = [np.asarray(one["scores"]) for one in predictions]
        # Of equal scores the last one counts as the best, so that a constant finds nothing.
        found = [(len(own) - 1 - np.argsort(-own[::-1], kind="stable")).tolist() for own in scores]
        return by_query(found, [self._judged(example) for example in examples], depths=(1, 10))

    def _judged(self, example: TextGroup) -> dict[int, float]:
        """The relevance of each text by its number: of scored ones, that with the highest score is relevant."""
        targets = self.codec.targets(example)
        return {int(np.argmax(targets)): 1.0}

    def baseline(self, examples: list[TextGroup]) -> Metrics:
        """Of random scores."""
        generator = np.random.default_rng(0)
        random = [{"scores": generator.uniform(size=len(example.texts) - 1)} for example in examples]
        return self.official_metrics(examples, random)

    def error_analysis(self, examples: list[TextGroup], predictions: list[Json]) -> ErrorAnalysis:
        columns = self._columns(examples, predictions)
        intervals = self._intervals(columns)
        if "mrr@10" not in columns:
            return ErrorAnalysis(intervals=intervals)
        errors = []
        examples, predictions = _with_a_choice(examples, predictions)
        for row in np.argsort(columns["mrr@10"], kind="stable")[:LISTED]:
            (right,), found = self._judged(examples[row]), int(np.argmax(predictions[row]["scores"]))
            if found != right:
                query, *texts = examples[row].texts
                errors.append(ErrorExample((query,), texts[right], texts[found], examples[row].location))
        return ErrorAnalysis(intervals=intervals, errors=errors)


def _with_a_choice(examples: list[TextGroup], predictions: list[Json]) -> tuple[list[TextGroup], list[Json]]:
    """The queries that have several texts; a single one is always the first."""
    rows = [row for row, example in enumerate(examples) if len(example.texts) > 2]
    return [examples[row] for row in rows], [predictions[row] for row in rows]


class Reranking(GroupsTask):
    """Scores of queries with texts."""

    name = "reranking"
    problem_type = "regression"
    meanings = types.MappingProxyType({})  # whatever its activation, a higher score is better
    continues = (Regression.name,)  # of a pair, as CrossEncoders are read
    Config = RerankerConfig
    State = RerankerState
    objectives = SCORES
    codec: RerankerCodec

    def _parts(self, metrics: str) -> tuple[RerankerCodec, RerankerObjective, RerankerBenchmark]:
        codec = RerankerCodec(self.tokenizer, self.config, self.state)
        return codec, RerankerObjective(self.config, self.state), RerankerBenchmark(codec, metrics)

    @classmethod
    def head(cls, settings: Json) -> str:
        return "classification"

    def _learn(self, examples: list[TextGroup], labels: Labels | None) -> None:
        kind = self._kind_of(examples)
        self._learn_groups(examples, labels, kind)
        self.state.activation = "sigmoid" if self.config.objective in ("bce", "softmax") else "linear"

    @staticmethod
    def _kind_of(examples: list[TextGroup]) -> str:
        """As `text_groups.kind_of`; DataError where no query has a text that does not belong to it."""
        kind = kind_of(examples)
        if kind not in SCORES:
            raise DataError(
                f"{examples[0].location}: {kind}; a reranker needs texts that do not belong to the query, too: mine "
                "them (python -m bert_tf.mine), or give numbers"
            )
        return kind

    def check(self, examples: list[TextGroup], read_report: ReadReport) -> None:
        kind = self._kind_of(examples)
        if self.state.kind and (kind == "scored pairs") != (self.state.kind == "scored pairs"):
            raise DataError(
                f"{examples[0].location}: {kind}, and the training examples are {self.state.kind}; expected one kind"
            )

    @classmethod
    def arguments(cls, settings: Json) -> Json:
        made = super().arguments(settings)
        made.pop("kind", None)  # of the training examples, which others need not be
        if made.get("activation", "linear") not in ACTIVATIONS:
            raise DataError(f"activation is {made['activation']!r}; expected one of {', '.join(ACTIVATIONS)}")
        return made
