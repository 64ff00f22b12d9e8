"""Training of a sentence encoder: texts that belong together get vectors that are near (Reimers and Gurevych, 2019).

The trained model is a sentence encoder like a published one: an encoder with settings of its vectors, without a task.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig, EmbeddingsConfig, ExampleData
from bert_tf.config.embeddings import OBJECTIVES
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import Labels, TextGroup
from bert_tf.metrics.accuracy_and_f1 import correlations
from bert_tf.metrics.retrieval import DEPTHS, by_query, means, nearest, unit_vectors
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.sentence_vectors import vector_model
from bert_tf.model.sparse_vectors import sparse_vector_model
from bert_tf.progress import log
from bert_tf.tasks.benchmark import LISTED, ErrorAnalysis, ErrorExample
from bert_tf.tasks.contrastive import Groups, loss_of
from bert_tf.tasks.labels import are_integers
from bert_tf.tasks.objective import JointObjective, rows_of
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.tasks.sparse_encoding import SparseEncoding
from bert_tf.tasks.task import Task
from bert_tf.tasks.text_groups import (
    FEATURES,
    GroupsBenchmark,
    GroupsCodec,
    GroupsState,
    GroupsTask,
    kind_of,
    padded_texts,
)
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.packing import truncate
from bert_tf.types import Array, Json, Metrics, Tensors

_IDS = 2**62  # of texts: two are equal at odds of 1 to 400,000 among a billion
# Kinds of examples in which the first text is to find the second among those of all examples.
RETRIEVAL = ("pairs", "triplets", "scored texts")


@dataclasses.dataclass
class EmbeddingsState(GroupsState):
    """What is known of the examples.

    Attributes:
        classes: their names, of texts with classes.
        size: of the teacher's vectors, if they are learned.
    """

    classes: Sequence[str] = ()
    size: int = 0


class _Text(NamedTuple):
    """A text of some examples, as an example of its own.

    Attributes:
        is_first: whether it is their first one, with the prompt of queries.
    """

    id: str
    texts: tuple[str, ...]
    is_first: bool
    location: str


class EmbeddingsCodec(GroupsCodec):
    """From groups of texts to their vectors; each text is a row of its own."""

    config: EmbeddingsConfig
    state: EmbeddingsState

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        return (tf.TensorSpec([None, None], tf.string, name="text"),)

    def to_tensors(self, examples: list[Any], *, labelled: bool) -> Tensors:
        """Columns of groups, or of single texts that `distinct` returns."""
        flat = tf.constant([text for example in examples for text in example.texts])
        text = tf.RaggedTensor.from_row_lengths(flat, [len(example.texts) for example in examples])
        # Whether the first text of each is that of a query.
        query = [example.is_first if isinstance(example, _Text) else True for example in examples]
        return {"text": text, "query": tf.constant(query)} | ({"labels": self.targets(examples)} if labelled else {})

    def targets(self, examples: list[TextGroup]) -> tf.Tensor:
        """float32 [examples, ...]: what the objective learns; DataError for examples of another kind."""
        kind = self.state.kind
        found = kind_of(examples) if kind != "vectors" else kind
        if found != kind and not {found, kind} <= {*RETRIEVAL}:
            raise DataError(
                f"{examples[0].location}: {found}, and the training examples are {kind}; expected one kind: evaluate "
                "the trained encoder on others (python -m bert_tf.retrieve, SentenceEncoder.evaluate)"
            )
        if kind == "scored pairs":
            return tf.constant([self.scaled(example) for example in examples], tf.float32)
        if kind == "classes":
            numbers = {name: number for number, name in enumerate(self.state.classes)}
            if new := next((example for example in examples if str(example.label) not in numbers), None):
                raise DataError(f"{new.location}: the class {str(new.label)!r} is not in the training examples")
            return tf.constant([numbers[str(example.label)] for example in examples], tf.float32)
        if kind == "scored texts":
            scores = [_scores(example) for example in examples]
            most = max(self.state.texts - 1, *map(len, scores))
            return tf.constant([_padded(own, most) for own in scores], tf.float32)
        if kind == "vectors":
            return tf.constant(np.stack([np.asarray(example.label) for example in examples]), tf.float32)
        return tf.zeros([len(examples)])

    def preprocess(self, columns: Tensors) -> Tensors:
        """Rows of single texts."""
        ids, types = self._packed(columns)
        return {"input_word_ids": ids, "input_type_ids": types, "row": columns["text"].value_rowids()}

    def _packed(self, columns: Tensors) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Token ids and types [texts, None] of all texts of examples."""
        budget = self.config.max_length - self.tokenizer.specials()
        (texts,) = self.read_texts(columns)
        ids, _, _ = truncate(self.tokenizer.tokenize(texts.values), budget=budget)
        return self.tokenizer.pack(ids)

    def read_texts(self, columns: Tensors) -> list[tf.Tensor | tf.RaggedTensor]:
        """With the prompts."""
        text, rows = columns["text"], columns["text"].value_rowids()
        is_first = tf.range(tf.size(text.values), dtype=rows.dtype) == tf.gather(text.row_starts(), rows)
        is_first &= tf.gather(columns["query"], rows)
        prompts = self.config.query_prompt or "", self.config.passage_prompt or ""
        texts = tf.where(is_first, *(prompt + text.values if prompt else text.values for prompt in prompts))
        return [text.with_values(texts)]

    def _groups(self, columns: Tensors) -> Tensors:
        text = columns["text"]
        ids, types = (text.with_values(value) for value in self._packed(columns))
        text_ids = text.with_values(tf.strings.to_hash_bucket_fast(text.values, _IDS))
        rows = tf.range(text.nrows(tf.int64))
        known = {name: columns[name] for name in ("labels",) if name in columns}
        return {"input_word_ids": ids, "input_type_ids": types, "text_ids": text_ids, "row": rows} | known

    def _padded_groups(self, features: Tensors, *, few_lengths: bool = False) -> Tensors:
        """Dense features: first/NAME [rows, length]; with several texts, others/NAME [rows, texts - 1, length], each as
        long as its longest text, all padding where an example has fewer texts; and `text_ids`, as in `Groups`.
        """
        made, most, texts = dict(features), self.config.max_length, self.state.texts
        ids, types = made.pop("input_word_ids"), made.pop("input_type_ids")
        made["text_ids"] = made["text_ids"].to_tensor(-1, shape=[None, texts])
        first = padded_texts(ids[:, :1], types[:, :1], 1, most, few_lengths=few_lengths)
        made |= {f"first/{name}": value[:, 0] for name, value in first.items()}
        if texts > 1:
            others = padded_texts(ids[:, 1:], types[:, 1:], texts - 1, most, few_lengths=few_lengths)
            made |= {f"others/{name}": value for name, value in others.items()}
        return made

    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        return {"vectors": outputs["vector"]}

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        count = columns["text"].nrows(tf.int64)
        return {"vectors": tf.RaggedTensor.from_value_rowids(decoded["vectors"], rows, count)}

    def distinct(self, examples: list[TextGroup]) -> tuple[list[Any], Callable[[list[Json]], list[Json]]]:
        """Each text once: many questions are about the same paragraph."""
        numbers: dict[tuple[bool, str], int] = {}
        places = [
            [numbers.setdefault((place == 0, text), len(numbers)) for place, text in enumerate(example.texts)]
            for example in examples
        ]
        texts = [_Text(str(number), (text,), first, text) for (first, text), number in numbers.items()]

        def of_examples(predictions: list[Json]) -> list[Json]:
            vectors = [one["vectors"][0] for one in predictions]
            return [
                {"id": example.id, "vectors": np.stack([vectors[number] for number in own])}
                for example, own in zip(examples, places, strict=True)
            ]

        return texts, of_examples

    def answer_tokens(self, features: Tensors, outputs: Tensors) -> Tensors:
        return {"vector": outputs["vector"]}

    def requests(self, examples: list[Any]) -> Iterator[tuple[Sequence[int], str, dict[str, Array]]]:
        """What an export of the vectors, without a prompt of its own, is sent for texts that `distinct` returns."""
        (texts,) = self.read_texts(self.to_tensors(examples, labelled=False))
        yield range(len(examples)), DEFAULT, {"text": texts.values.numpy()}

    def response(self, outputs: dict[str, Array]) -> dict[str, Array]:
        return {"vectors": outputs["vector"][:, np.newaxis]}

    def _predictions(self, examples: list[TextGroup], answers: dict[str, Array]) -> list[Json]:
        return [
            {"id": example.id, "vectors": np.asarray(vectors)}
            for example, vectors in zip(examples, answers["vectors"], strict=True)
        ]


class EmbeddingsObjective(JointObjective):
    """The loss of `EmbeddingsConfig.objective`."""

    def __init__(self, config: EmbeddingsConfig, state: EmbeddingsState) -> None:
        self._config, self._state = config, state
        # The mean number of pieces with a weight, of texts after the first.
        self.metric_names = ("pieces",) if config.sparse else ()
        # One with a negative of its own, a score for each text or a teacher's vector needs no others.
        alone = state.texts > 2 or config.objective in ("cosine", "same_vectors")
        self.least = 1 if alone and config.objective != "cosent" else 2

    def build(self, encoder: BertEncoder) -> keras.Model:
        if self._config.sparse:
            return sparse_vector_model(encoder)
        vectors = self._config.vectors
        assert vectors is not None
        model = vector_model(encoder, vectors)
        size = model.output["vector"].shape[-1]
        if self._state.size not in (0, size):
            raise ConfigError(
                f"the teacher's vectors have {self._state.size} values, and those of the model {size}; add a dense "
                f"layer of {self._state.size} units to task.vectors"
            )
        if over := [one for one in self._config.matryoshka if one > size]:
            raise ConfigError(f"task.matryoshka has {max(over)}; expected sizes up to the {size} of the vectors")
        return model

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"loss": rows_of(features)}

    def pieces(self, features: Tensors) -> list[Tensors]:
        first = {name: features[f"first/{name}"] for name in FEATURES}
        if self._state.texts == 1:
            return [first]
        others = {name: features[f"others/{name}"] for name in FEATURES}
        return [first, {name: tf.reshape(value, [-1, tf.shape(value)[2]]) for name, value in others.items()}]

    def joined(self, outputs: list[Tensors], features: Tensors) -> Tensors:
        first, *others = (tf.cast(one["vector"], tf.float32) for one in outputs)
        size, texts = first.shape[-1], self._state.texts
        rest = [tf.reshape(one, [-1, texts - 1, size]) for one in others]
        return {"vectors": tf.concat([first[:, tf.newaxis], *rest], 1)}

    def known(self, features: Tensors) -> Tensors:
        return {name: features[name] for name in ("text_ids", "labels")}

    def joint_loss(self, outputs: Tensors, known: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        groups = Groups(outputs["vectors"], known["text_ids"], known["labels"], self._config.sparse)
        count = rows_of(known)
        loss = loss_of(groups, self._config)
        if not self._config.sparse:
            return {"loss": (loss * count, count)}
        others = tf.boolean_mask(groups.vectors[:, 1:], groups.present[:, 1:])
        for texts, weight in zip((groups.firsts, others), self._config.flops, strict=True):
            loss += weight * tf.reduce_sum(tf.square(tf.reduce_mean(texts, 0)))
        pieces = tf.math.count_nonzero(others, dtype=tf.float32)
        return {"loss": (loss * count, count), "pieces": (pieces, tf.cast(tf.shape(others)[0], tf.float32))}


class EmbeddingsBenchmark(GroupsBenchmark[EmbeddingsCodec]):
    """What the vectors of the validation texts find.

    Texts that belong together: recall, MRR and nDCG of the second text of each example, among all texts but the first
    ones. Scored pairs: correlations of cosines. Classes: accuracy of the nearest other text. A teacher's vectors: the
    mean cosine with these.
    """

    def __init__(self, codec: EmbeddingsCodec, metrics: str) -> None:
        super().__init__(codec, metrics)
        kind = codec.state.kind
        measures = {"scored pairs": "spearman", "classes": "accuracy", "vectors": "cosine"}
        self.monitor = measures.get(kind, "mrr@10")

    def _compared(self, vectors: Array) -> Array:
        """Vectors whose dot products are compared."""
        return vectors if self.codec.config.sparse else unit_vectors(vectors)

    def _metrics(self, columns: dict[str, Array]) -> Metrics:
        if self.codec.state.kind == "scored pairs":
            return correlations(columns["gold"], columns["cosine"])
        return means(columns)

    def _columns(self, examples: list[TextGroup], predictions: list[Json]) -> dict[str, Array]:
        """What the metrics are made from: float [examples] by name, or of retrieval [queries]."""
        vectors, kind = [self._compared(one["vectors"]) for one in predictions], self.codec.state.kind
        targets = self.codec.targets(examples).numpy()
        if kind == "scored pairs":
            return {"gold": targets, "cosine": np.array([one[0] @ one[1] for one in vectors])}
        if kind == "vectors":
            expected = unit_vectors(targets)
            return {"cosine": np.array([np.mean(one @ own) for one, own in zip(vectors, expected, strict=True)])}
        if kind == "classes":
            if len(examples) < 2:
                raise DataError(f"{examples[0].location}: a single text; expected others, of which one is the nearest")
            own = np.stack([one[0] for one in vectors])
            found, _ = nearest(own, own, 2)
            others = np.where(found[:, 0] == np.arange(len(own)), found[:, -1], found[:, 0])
            return {"accuracy": (targets[others] == targets).astype(float)}
        return by_query(*self._ranking(examples, vectors)[:2])

    def _ranking(
        self, examples: list[TextGroup], vectors: list[Array]
    ) -> tuple[list[list[int]], list[dict[int, float]], list[str], list[TextGroup]]:
        """For each distinct first text what it finds and which it should; the texts that can be found; its example.

        A first text does not find itself.
        """
        corpus: dict[str, int] = {}
        queries: dict[str, int] = {}
        found: list[Array] = []
        asked: list[Array] = []
        judged: list[dict[int, float]] = []
        by: list[TextGroup] = []
        for example, own in zip(examples, vectors, strict=True):
            for text, vector in zip(example.texts[1:], own[1:], strict=True):
                if text not in corpus:
                    corpus[text] = len(corpus)
                    found.append(vector)
            row = queries.setdefault(example.texts[0], len(queries))
            if row == len(asked):
                asked.append(own[0])
                judged.append({})
                by.append(example)
            judged[row][corpus[example.texts[1]]] = 1.0
        indices, _ = nearest(np.stack(asked), np.stack(found), max(DEPTHS) + 1)
        itself = [corpus.get(example.texts[0], -1) for example in by]
        others = [
            [int(one) for one in row if one != own or own in right][: max(DEPTHS)]
            for row, own, right in zip(indices, itself, judged, strict=True)
        ]
        return others, judged, list(corpus), by

    def baseline(self, examples: list[TextGroup]) -> Metrics:
        """Of random vectors."""
        generator = np.random.default_rng(0)
        size = self.codec.targets(examples).shape[-1] if self.codec.state.kind == "vectors" else 32
        random = [{"vectors": generator.normal(size=[len(example.texts), size])} for example in examples]
        return self.official_metrics(examples, random)

    def error_analysis(self, examples: list[TextGroup], predictions: list[Json]) -> ErrorAnalysis:
        columns = self._columns(examples, predictions)
        intervals = self._intervals(columns)
        if self.codec.state.kind not in RETRIEVAL:
            return ErrorAnalysis(intervals=intervals)
        vectors = [self._compared(one["vectors"]) for one in predictions]
        found, judged, texts, by = self._ranking(examples, vectors)
        wrong = [
            row
            for row in np.argsort(columns["mrr@10"], kind="stable")
            if found[row] and found[row][0] not in judged[row]
        ]
        errors = [
            ErrorExample((by[row].texts[0],), texts[next(iter(judged[row]))], texts[found[row][0]], by[row].location)
            for row in wrong[:LISTED]
        ]
        return ErrorAnalysis(intervals=intervals, errors=errors)


class Embeddings(GroupsTask):
    """Training of a sentence encoder."""

    name = "embeddings"
    Config = EmbeddingsConfig
    State = EmbeddingsState
    objectives = OBJECTIVES
    codec: EmbeddingsCodec

    def _parts(self, metrics: str) -> tuple[EmbeddingsCodec, EmbeddingsObjective, EmbeddingsBenchmark]:
        codec = EmbeddingsCodec(self.tokenizer, self.config, self.state)
        self.vectors = self.config.vectors
        return codec, EmbeddingsObjective(self.config, self.state), EmbeddingsBenchmark(codec, metrics)

    @classmethod
    def head(cls, settings: Json) -> str:
        return "masked_lm" if settings.get("sparse") else ""

    def saved(self, config: BertConfig) -> dict[str, tuple[Task | None, BertConfig]]:
        task = SparseEncoding(self.tokenizer, self.config.max_length) if self.config.sparse else None
        return {"": (task, config)}

    @classmethod
    def judging(
        cls, tokenizer: BaseTokenizer, data: ExampleData, examples: list[TextGroup], config: EmbeddingsConfig
    ) -> Self:
        """A task that judges vectors of such examples, which need not be fit to be learned from."""
        task = cls(tokenizer, config, data)
        kind = kind_of(examples)
        task._learn_groups(examples, None, kind)
        task.state.classes = _classes(examples) if kind == "classes" else ()
        task._assemble()
        return task

    def _learn(self, examples: list[TextGroup], labels: Labels | None) -> None:
        state, first = self.state, examples[0]
        kind = "vectors" if self.config.teacher else kind_of(examples)
        self._learn_groups(examples, labels, kind)
        if kind == "scored texts" and self.config.vectors and self.config.vectors.normalize:
            margin = max(max(scores) - min(scores) for scores in map(_scores, examples))
            if margin > 2:
                log(
                    f"scores of a query's texts differ by up to {margin:g}, and products of vectors of length 1 by at "
                    "most 2; scale the scores, or set task.vectors.normalize=false"
                )
        if kind == "vectors":
            state.size = len(np.asarray(first.label))
        if self.config.sparse and self.config.objective not in ("in_batch", "margin_mse", "kl"):
            raise ConfigError(
                f"task.sparse is True, and the examples are {kind}; expected pairs, triplets or scored texts"
            )
        if kind == "classes":
            state.classes = _classes(examples)
            if len(state.classes) < 2:
                raise DataError(f"{first.location}: all texts are of the class {state.classes[0]!r}; expected several")
            if len(state.classes) == len(examples):
                raise DataError(f"{first.location}: each text is of a class of its own; expected several texts of each")
        if kind in RETRIEVAL and len({example.texts[1] for example in examples}) < 2 and state.texts < 3:
            raise DataError(
                f"{first.location}: all examples have the same second text, so there is none that it is not; expected "
                "different ones"
            )


def _classes(examples: list[TextGroup]) -> tuple[str, ...]:
    """The names of the classes; DataError for what can be none."""
    for example in examples:
        if isinstance(example.label, float):
            raise DataError(f"{example.location}: label {example.label:g}; expected text or a whole number")
    are_integers([(example.label, example.location) for example in examples])  # raises if some are, and others are not
    return tuple(sorted({str(example.label) for example in examples}))


def _scores(example: TextGroup) -> tuple[float, ...]:
    """One for each text after the first; 0 for each in validation, where texts need none."""
    return example.label if isinstance(example.label, tuple) else (0.0,) * (len(example.texts) - 1)


def _padded(scores: tuple[float, ...], length: int) -> list[float]:
    return [*scores, *[0.0] * (length - len(scores))]
