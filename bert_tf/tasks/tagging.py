"""Tagging of words or characters, e.g. named entities or parts of speech (paper, section 5.3 and figure 4d)."""

import collections
import dataclasses
import itertools
import types
from collections.abc import Container, Hashable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import TaggingConfig, TagsConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import Labels, ReadReport, TaggedExample
from bert_tf.inputs.datasets.tagged import adjoin
from bert_tf.metrics import entities as entity_metrics
from bert_tf.metrics.accuracy_and_f1 import accuracy, precision_recall_f1
from bert_tf.metrics.statistics import bootstrap_intervals
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.tasks.benchmark import LISTED, Benchmark, ErrorAnalysis, ErrorExample, Table
from bert_tf.tasks.objective import Objective, SoftOutput
from bert_tf.tasks.tagging_codec import TaggingCodec, TaggingState, words_without_pieces
from bert_tf.tasks.tags import (
    are_bare,
    are_entities,
    are_numbers,
    closed,
    learned,
    look_like_entities,
    respelt,
    scheme_of,
    scored,
    starts_of,
    tags_of,
    words_of,
)
from bert_tf.tasks.task import FineTuningTask
from bert_tf.types import Array, Json, Metrics, Tensors

_Sentences: TypeAlias = Sequence[Sequence[str]]  # the tags of each
RESPELT = "read as B-TYPE, I-TYPE and O: sentence with entity tags in another spelling"
LOOK_LIKE_ENTITIES = (
    "scored as plain tags, without spans and F1: tags that look like entities, but in an unknown spelling; write "
    "B-TYPE, I-TYPE and O"
)
BARE = (
    "read as I-TYPE and O: tags without B- and I-; two entities of one type side by side are one (if they are no "
    "entities, set task.scheme=none)"
)
MAYBE_BARE = (
    "scored as plain tags, without spans and F1: tags without B- and I-; if O is outside of entities, set "
    "task.scheme=IO"
)
NUMBERS = (
    "scored as plain tags, without spans and F1: numbers as tags; if they stand for names such as B-TYPE, write these"
)
# Sentences per batch when checking for words without wordpieces.
_CHECKED = 1024


class TaggingObjective(Objective):
    """Cross-entropy of the tag of each unit.

    Args:
        head: a key of `model.head_table.HEADS`.
        config, state: of the task.
    """

    metric_names = ("accuracy",)
    soft_outputs = types.MappingProxyType({"logits": SoftOutput()})

    def __init__(self, head: str, config: Any, state: TaggingState) -> None:
        self._head, self._config, self._state = head, config, state

    def build(self, encoder: BertEncoder) -> keras.Model:
        try:
            self._config.features.check(encoder.config.num_layers)
        except ConfigError as error:
            raise ConfigError(f"task.features: {error}") from None
        frozen, features = self._config.frozen, self._config.features
        return build(encoder, self._head, len(self._state.labels), features, frozen=frozen)

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"loss": tf.reduce_sum(tf.cast(features["target"] > 0, tf.float32))}

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        has_target = tf.cast(features["target"] > 0, tf.float32)
        target = tf.maximum(features["target"] - 1, 0)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(target, outputs["logits"])
        right = tf.cast(tf.argmax(outputs["logits"], -1, tf.int32) == target, tf.float32)
        words = tf.reduce_sum(has_target)
        return {
            "loss": (tf.reduce_sum(loss * has_target), words),
            "accuracy": (tf.reduce_sum(right * has_target), words),
        }

    def answered(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"logits": features["word"] - 1}


class TaggingBenchmark(Benchmark[TaggingCodec]):
    """Precision, recall and F1 of entities as conlleval.pl counts them, and KLUE's two metrics; else accuracy."""

    def __init__(self, codec: TaggingCodec, metrics: str) -> None:
        super().__init__(codec, metrics)
        self._scheme, self._unit = codec.scheme, codec.state.unit
        # Characters with other tags, which a user read in this format, have no KLUE metrics.
        self._klue = metrics == "klue/ner" and set(codec.state.labels) <= set(entity_metrics.KLUE_LABELS)
        self.monitor = "entity_macro_f1" if self._klue else "f1" if self._scheme else "accuracy"

    def official_metrics(self, examples: list[TaggedExample], predictions: list[Json]) -> Metrics:
        gold = [scored(example, learned(example, self._scheme), self._unit) for example in examples]
        predicted = [
            scored(example, prediction["tags"], self._unit)
            for example, prediction in zip(examples, predictions, strict=True)
        ]
        if not self._scheme:
            return accuracy(*(list(itertools.chain.from_iterable(sentences)) for sentences in (gold, predicted)))
        found = entity_metrics.entity_scores(gold, predicted)
        return found | (entity_metrics.klue_scores(*entity_metrics.klue_counts(gold, predicted)) if self._klue else {})

    def baseline(self, examples: list[TaggedExample]) -> Metrics:
        counts = collections.Counter(tag for example in examples for tag in learned(example, self._scheme))
        tag = counts.most_common(1)[0][0]
        return self.official_metrics(examples, [{"tags": [tag] * len(words_of(example))} for example in examples])

    def error_analysis(self, examples: list[TaggedExample], predictions: list[Json]) -> ErrorAnalysis:
        """Entities by type or words by tag, the sentences with most errors, and confidences of predicted entities."""
        tags = [learned(example, self._scheme) for example in examples], [one["tags"] for one in predictions]
        gold, predicted = (
            [scored(example, own, self._unit) for example, own in zip(examples, sentences, strict=True)]
            for sentences in tags
        )
        intervals = bootstrap_intervals(
            lambda right, words: {"accuracy": right.sum() / max(words.sum(), 1)},
            *entity_metrics.tag_counts(gold, predicted).T,
        )
        read = _entities if self._scheme else _tagged
        true, answered = ([read(*one) for one in zip(examples, sentences, strict=True)] for sentences in tags)
        wrong = [(_without(*both), _without(*both[::-1])) for both in zip(true, answered, strict=True)]
        errors = [
            ErrorExample(
                (examples[index].text,),
                ", ".join(wrong[index][0]),
                ", ".join(wrong[index][1]),
                examples[index].location,
            )
            for index in sorted(range(len(wrong)), key=lambda index: -max(map(len, wrong[index])))[:LISTED]
            if any(wrong[index])
        ]
        if not self._scheme:
            return ErrorAnalysis(intervals=intervals, table=_table_of_tags(gold, predicted), errors=errors)
        types, counts = entity_metrics.span_counts(gold, predicted)
        intervals |= bootstrap_intervals(lambda counts: entity_metrics.entity_shares(counts.sum(0)), counts.sum(2))
        if self._klue:
            intervals |= bootstrap_intervals(entity_metrics.klue_scores, *entity_metrics.klue_counts(gold, predicted))
        spans = [
            (span["score"], (span["start"], span["end"], span["label"]) in of_sentence)
            for of_sentence, prediction in zip(true, predictions, strict=True)
            for span in prediction["spans"]
        ]
        return ErrorAnalysis(
            intervals=intervals,
            table=_table("Entities by type", ("type", "entities"), types, counts.sum(0)),
            confidences=[score for score, _ in spans],
            correct=[is_right for _, is_right in spans],
            errors=errors,
        )


class Tagging(FineTuningTask):
    """Tagging of words or characters."""

    name = "tagging"
    Config: ClassVar[type[TagsConfig]] = TaggingConfig
    State = TaggingState
    example = TaggedExample
    codec: TaggingCodec

    def _parts(self, metrics: str) -> tuple[TaggingCodec, Objective, TaggingBenchmark]:
        codec = TaggingCodec(self.tokenizer, self.config, self.state)
        head = self.head({"head": self.config.head})
        return codec, TaggingObjective(head, self.config, self.state), TaggingBenchmark(codec, metrics)

    @classmethod
    def arguments(cls, settings: Json) -> Json:
        arguments = super().arguments(settings)
        labels = arguments.get("labels", ())
        # Converted models have labels such as PER-B.
        if are_entities(labels) and len(set(known := [respelt([label])[0] for label in labels])) == len(labels):
            arguments["labels"] = known
        return arguments

    @classmethod
    def head(cls, settings: Json) -> str:
        return "tagging_bilstm" if settings.get("head") == "bilstm" else "tagging"

    def _learn(self, examples: list[TaggedExample], labels: Labels | None) -> None:
        config, state = self.config, self.state
        if config.reads_documents and all(example.document is None for example in examples):
            raise ConfigError("task.context is document, but the training file marks no documents; set it to sentence")
        state.unit = "characters" if any(map(adjoin, examples)) else "words"
        counts = collections.Counter(tag for example in examples for tag in tags_of(example))
        scheme = ""
        if config.scheme != "none" and are_entities(counts):
            state.written = scheme_of(map(tags_of, examples))
            scheme = config.scheme or state.written
        # Most words of a text are outside of entities.
        elif are_bare(counts) and (config.scheme or ("IO" if counts.most_common(1)[0][0] == "O" else "")) == "IO":
            state.written = scheme = "IO"
        elif config.scheme not in ("", "none"):
            remedy = "set it to IO" if are_bare(counts) else "leave it out"
            raise ConfigError(f"task.scheme is {config.scheme}, but the training file has no tags of entities, "
                              f"such as B-PER; {remedy}")  # fmt: skip
        # Units are wordpieces: in IOB1, two entities of one type with only a space between them would be one.
        if state.unit == "characters" and scheme not in ("", "BIO", "IO"):
            raise ConfigError(f"the scheme {scheme} is for words, but the training file labels characters; "
                              "set task.scheme to BIO")  # fmt: skip
        self.config = config = dataclasses.replace(config, scheme=config.scheme if config.scheme == "none" else scheme)
        tags = collections.Counter(tag for example in examples for tag in learned(example, scheme))
        if len(tags) < 2:
            every = f"every tag is {next(iter(tags))!r}" if tags else "there is no tag"
            raise DataError(
                f"{examples[0].location} and all following: {every}; expected at least two: is data.column (now "
                f"{self.data.column!r}) the column of the tags?"
            )
        state.labels = closed(tags, scheme)

    def check(self, examples: list[TaggedExample], read_report: ReadReport) -> None:
        state, of_model = self.state, self.codec.scheme
        known, bare = set(state.labels), of_model == "IO"
        scheme = of_model and scheme_of(map(tags_of, examples), bare=bare)
        if scheme == "IOB1":  # or a scheme that requires a B where this file has none
            scheme = state.written or scheme
        if not of_model and self.config.scheme != "none":
            signs = {LOOK_LIKE_ENTITIES: look_like_entities, NUMBERS: are_numbers, MAYBE_BARE: are_bare}
            for reason in (reason for reason, is_one in signs.items() if is_one(known)):
                read_report.add(reason, examples[0].location)
        if examples and not any(tag in known for example in examples for tag in learned(example, of_model)):
            raise DataError(
                f"{examples[0].location}: neither this sentence nor any other has a tag of the model's: "
                f"{', '.join(map(repr, state.labels[:20]))}"
            )
        for example in examples:
            written = list(tags_of(example))
            usual = respelt(written, bare=bare) if scheme else written
            if usual != written:
                read_report.add(BARE if bare else RESPELT, example.location)
            for tag, repaired in zip(usual, learned(example, scheme, bare=bare), strict=True):
                if tag != repaired:
                    read_report.add("repaired: tag of a broken entity sequence", example.location)
            for tag in learned(example, of_model):
                if tag not in known:
                    read_report.add(f"never predicted: tag {tag!r}, not in the training data", example.location)
        if state.unit == "words":
            for first in range(0, len(examples), _CHECKED):
                for location in words_without_pieces(self.tokenizer, examples[first : first + _CHECKED]):
                    read_report.add(f"words without wordpieces, always tagged {state.default_tag!r}", location)


def _entities(example: TaggedExample, tags: Sequence[str]) -> dict[Hashable, str]:
    """The entities of a sentence: (start, end, type), in characters of its text -> text for the reader."""
    starts = starts_of(example)
    ends = [start + len(word) for start, word in zip(starts, words_of(example), strict=True)]
    spans = [(starts[first], ends[last - 1], kind) for first, last, kind in entity_metrics.entities(tags)]
    return {span: f"{example.text[span[0] : span[1]]} ({span[2]})" for span in spans}


def _tagged(example: TaggedExample, tags: Sequence[str]) -> dict[Hashable, str]:
    """The tags of a sentence: (index of the word, tag) -> text for the reader."""
    words = words_of(example)
    return {(index, tag): f"{words[index]} ({tag})" for index, tag in enumerate(tags)}


def _without(items: Mapping[Hashable, str], others: Container[Hashable]) -> list[str]:
    """The texts of those items that are not among the others."""
    return [text for key, text in items.items() if key not in others]


def _table_of_tags(gold: _Sentences, predicted: _Sentences) -> Table:
    true, answered = (list(itertools.chain.from_iterable(sentences)) for sentences in (gold, predicted))
    right = [tag for tag, other in zip(true, answered, strict=True) if tag == other]
    counters = [collections.Counter(tags) for tags in (right, answered, true)]
    tags = sorted(counters[2] | counters[1], key=lambda tag: -counters[2][tag])
    return _table("Tags", ("tag", "words"), tags, np.array([[counter[tag] for tag in tags] for counter in counters]))


def _table(title: str, names: tuple[str, str], kinds: Sequence[str], counts: Array) -> Table:
    """A row for each kind, from the numbers of correct, predicted and true items, int [3, kinds]."""
    _, predicted, true = counts
    columns = (*precision_recall_f1(*counts), true, predicted)
    rows = list(zip(kinds, *(column.tolist() for column in columns), strict=True))
    return Table(title, (names[0], "precision", "recall", "f1", names[1], "predicted"), rows)
