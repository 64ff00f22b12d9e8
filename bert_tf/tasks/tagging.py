"""Tagging of words or characters, e.g. named entities or parts of speech (paper, section 5.3 and figure 4d)."""

import collections
import dataclasses
import functools
import itertools
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import ExampleData, TaggingConfig, TagsConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import Labels, ReadReport, TaggedExample
from bert_tf.inputs.datasets.tagged import adjoin, document_of, joined, word_columns
from bert_tf.inputs.windows import cut, most_context, windows
from bert_tf.metrics import entities as entity_metrics
from bert_tf.metrics.accuracy_and_f1 import accuracy
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import build
from bert_tf.tasks.benchmark import Benchmark
from bert_tf.tasks.codec import Codec, strings, text_signature
from bert_tf.tasks.error_analysis import ErrorAnalysis
from bert_tf.tasks.objective import Objective
from bert_tf.tasks.signatures import WORD_LISTS, WORDS, dense
from bert_tf.tasks.tagging_errors import tagging_errors
from bert_tf.tasks.tags import (
    Unit,
    are_entities,
    closed,
    entity_spans,
    learned,
    look_like_entities,
    onto_characters,
    respelt,
    scheme_of,
    scored,
    tagged_characters,
    tags_of,
    words_of,
    write_columns,
)
from bert_tf.tasks.task import FineTuningTask, State
from bert_tf.tasks.word_pieces import check_unit, match_words, split_texts, words_without_pieces
from bert_tf.text.packing import pack
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.words import given_words, spans
from bert_tf.types import Array, Json, Metrics, Tensors, TfFunction, Writer

RESPELT = "read as B-TYPE, I-TYPE and O: sentence with entity tags in another spelling"
LOOK_LIKE_ENTITIES = (
    "scored as plain tags, without spans and F1: tags that look like entities, but in an unknown spelling; write "
    "B-TYPE, I-TYPE and O"
)
_ENTITY = ("entity", "label", "start", "end", "score")  # columns of the answers
# Sentences per batch when checking for words without wordpieces.
_CHECKED = 1024


@dataclasses.dataclass
class TaggingState(State):
    """State of a tagger.

    Attributes:
        labels: in the order of the logits: the tags of the training examples, the most frequent first, completed by all
            prefixes of each entity type.
        unit: "words" or "characters", whichever the data tags.
        written: the scheme of the training file, regardless of `scheme`; "" if unknown or if the tags are no entities.
    """

    labels: Sequence[str] = ()
    unit: str = "words"
    written: str = ""

    @property
    def default_tag(self) -> str:
        """The tag of words without wordpieces."""
        return "O" if "O" in self.labels else self.labels[0]


class TaggingCodec(Codec):
    """Of tagged words or characters.

    A word is learned and predicted at its first wordpiece, as in the paper. If the data tags characters (KLUE), each
    piece is a unit with the tag of its first character, and answers are mapped back to the characters, which then are
    the words of a text.
    """

    config: TagsConfig
    state: TaggingState
    windows = True
    counted = types.MappingProxyType({
        "word_count": ("word", "tag", "word_start", "word_end", "word_score"),
        "entity_count": _ENTITY,
    })  # fmt: skip

    @property
    def scheme(self) -> str:
        """The scheme of the labels, one of `metrics.entities.SCHEMES`; "" if they are no entities."""
        if (
            not are_entities(self.state.labels) or "I" in self.state.labels
        ):  # the I of a converted model may be of any type
            return ""
        return self.config.scheme or ("BIOES" if any(label[0] in "ES" for label in self.state.labels) else "BIO")

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        return (tf.TensorSpec([None], tf.string, name="text"),)

    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        made = super().signatures(model)
        if self.state.unit == "words":
            made[WORDS] = text_signature(self, model, (WORD_LISTS,), lambda columns: given_words(columns["words"]))
        return made

    @property
    def joins(self) -> bool:
        return getattr(self.config, "context", "") == "document"

    def locations(self, examples: list[TaggedExample]) -> list[str]:
        return [group[0].location for group in self._groups(examples)]

    def _groups(self, examples: list[TaggedExample]) -> list[list[TaggedExample]]:
        """The examples that are read together, in order."""
        if not self.joins or self.state.unit == "characters":  # whose data marks no documents
            return [[example] for example in examples]
        return [list(group) for _, group in itertools.groupby(examples, document_of)]

    def chunks(self, examples: Iterable[TaggedExample], size: int) -> Iterator[list[TaggedExample]]:
        """As in Codec; a document stays whole unless it has more than `size` sentences."""
        chunk: list[TaggedExample] = []
        for example in examples:
            is_boundary = not chunk or not self.joins or document_of(example) != document_of(chunk[-1])
            if (len(chunk) >= size and is_boundary) or len(chunk) == 2 * size:
                yield chunk
                chunk = []
            chunk.append(example)
        if chunk:
            yield chunk

    def requests(self, examples: list[TaggedExample]) -> Iterator[tuple[Sequence[int], str, dict[str, Array]]]:
        """As in Codec; given words are sent to the signature `words`."""
        for has_words in (False, True):
            rows = [row for row, one in enumerate(examples) if (one.words is not None) is has_words]
            if has_words and rows and self.state.unit == "words":
                words = tf.ragged.constant([examples[row].words for row in rows], tf.string)
                yield rows, WORDS, {"words": dense(words).numpy()}
            elif rows:
                for _, signature, inputs in super().requests([examples[row] for row in rows]):
                    yield rows, signature, inputs

    def to_tensors(self, examples: list[TaggedExample], *, labelled: bool) -> Tensors:
        """One entry per document, or per sentence if `context` is "sentence".

        `word_starts` and `word_ends`, byte offsets in the text, and `targets` are RaggedTensors int32 [entries, None].
        A target is a label's number from 1, or 0 if the task does not know the tag, so that it is not learned.
        """
        for example in examples:
            check_unit(example, self.state.unit)
        groups = self._groups(split_texts(self.tokenizer, self.state.unit, examples))
        columns = {"text": tf.constant([joined(group) for group in groups], tf.string)}
        if self.state.unit == "words" or labelled:
            columns |= word_columns(groups)
        if labelled:
            numbers = {label: number for number, label in enumerate(self.state.labels, 1)}
            tags = (tag for group in groups for example in group for tag in learned(example, self.scheme))
            targets = tf.constant([numbers.get(tag, 0) for tag in tags], tf.int32)
            columns["targets"] = columns["word_starts"].with_values(targets)
        return columns

    def preprocess(self, columns: Tensors) -> Tensors:
        ids, is_first, features = match_words(self.tokenizer, self.state.unit, columns)
        most = self.config.max_length
        rows = windows(ids.row_lengths(), most - 2, self.config.stride or (most - 1) // 2)
        chosen = most_context(*rows).values & cut(ids.with_values(is_first), *rows).values
        zero = tf.zeros([tf.size(rows[0]), 1], tf.int32)

        def in_windows(values: tf.Tensor) -> tf.RaggedTensor:
            of_windows = cut(ids.with_values(tf.cast(values, tf.int32)), *rows)
            of_windows = of_windows.with_values(tf.where(chosen, of_windows.values, 0))
            return tf.concat([zero, of_windows, zero], 1)  # [CLS] and [SEP]

        packed, types = pack(cut(ids, *rows), cls_id=self.tokenizer.cls_id, sep_id=self.tokenizer.sep_id)
        inputs = {"input_word_ids": packed, "input_type_ids": types, "row": rows[0]}
        return inputs | {name: in_windows(values) for name, values in features.items()}

    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        """`word` int32 [rows, length]: number of the word from 1 at the position that predicts it; else 0."""
        answered = features["word"] > 0
        score = tf.reduce_max(tf.nn.softmax(outputs["logits"]), -1)
        label = tf.argmax(outputs["logits"], -1, tf.int32)
        offsets = {name: features[name] for name in ("word", "start", "end")}
        return offsets | {"label": tf.where(answered, label, 0), "score": tf.where(answered, score, 0.0)}

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        """The words and the entities of each text.

        Returns:
            RaggedTensors [texts, words], or [texts, characters] if these are the unit: word, tag string; word_start,
            word_end int32, character offsets in the text; word_score float32, the tag's probability, 0 for a word or
            character without wordpieces. A task with entities also returns [texts, entities]: entity, label string;
            start, end int32; score float32, the mean of the words' or wordpieces' scores. Entities are read as
            conlleval does.
        """
        texts = columns["text"]
        indices = tf.where(decoded["word"] > 0)
        # In order: windows follow one another, and so do the words for which each has most context.
        row = tf.gather(rows, indices[:, 0])
        words = {name: tf.gather_nd(value, indices) for name, value in decoded.items()}
        if self.state.unit == "words" and "word_starts" in columns:
            row, words = self._all_words(columns, row, words)
        answers: Tensors = {}
        if self.scheme:
            entities, of_entity = entity_spans(texts, row, words, self.state.labels)
            answers = {name: _of_texts(value, of_entity, texts) for name, value in entities.items()}
        if self.state.unit == "characters":
            words, row = tagged_characters(texts, row, words, self.state.labels, self.state.default_tag)
        else:
            words["tag"] = tf.gather(tf.constant(self.state.labels), words["label"])
        parts = spans(texts, row, words["start"], words["end"])
        values = {"word": parts["text"], "word_start": parts["start"], "word_end": parts["end"]}
        values |= {"tag": words["tag"], "word_score": words["score"]}
        return answers | {name: _of_texts(value, row, texts) for name, value in values.items()}

    def _all_words(self, columns: Tensors, row: tf.Tensor, words: Tensors) -> tuple[tf.Tensor, Tensors]:
        """Adds the given words without wordpieces, whose characters are all deleted, to `row` and `words`."""
        starts = columns["word_starts"]
        indices = tf.gather(starts.row_starts(), row) + tf.cast(words["word"], tf.int64) - 1

        def filled(values: tf.Tensor, missing: int | float) -> tf.Tensor:
            every = tf.fill([tf.size(starts.values)], tf.constant(missing, values.dtype))
            return tf.tensor_scatter_nd_update(every, indices[:, tf.newaxis], values)

        return starts.value_rowids(), {
            "start": starts.values,
            "end": columns["word_ends"].values,
            "label": filled(words["label"], self.state.labels.index(self.state.default_tag)),
            "score": filled(words["score"], 0.0),
        }

    def answer_tokens(self, features: Tensors, outputs: Tensors) -> Tensors:
        """`tag` string and `score` float32, its probability, of each token: [rows, length], "" and 0 at padding."""
        is_token = features["input_mask"] > 0
        tags = tf.gather(tf.constant(self.state.labels), tf.argmax(outputs["logits"], -1))
        score = tf.reduce_max(tf.nn.softmax(outputs["logits"]), -1)
        return {"tag": tf.where(is_token, tags, ""), "score": tf.where(is_token, score, 0.0)}

    def _predictions(self, examples: list[TaggedExample], answers: dict[str, Array]) -> list[Json]:
        groups = self._groups(split_texts(self.tokenizer, self.state.unit, examples))
        columns = (answers[name] for name in ("word_start", "word_end", "tag", "word_score"))
        predictions = []
        for number, (group, starts, ends, tags, scores) in enumerate(zip(groups, *columns, strict=True)):
            units = list(zip(starts.tolist(), ends.tolist(), strings(tags), scores.tolist(), strict=True))
            if self.state.unit == "characters":
                found = {name: answers[name][number] for name in _ENTITY} if self.scheme else {}
                predictions.append(self._prediction_of_characters(group[0], units, found))
                continue
            first, offset = 0, 0
            for example in group:
                past = offset + len(example.text)
                last = first
                while last < len(units) and units[last][0] < past:
                    last += 1
                own = [(start - offset, end - offset, tag, score) for start, end, tag, score in units[first:last]]
                predictions.append(self._prediction(example, own))
                first, offset = last, past + 1
        return predictions

    def _prediction(self, example: TaggedExample, units: list[Unit]) -> Json:
        """The prediction of a sentence from its words."""
        prediction: Json = {"id": example.id, "text": example.text, "words": list(words_of(example))}
        prediction |= {"tags": [tag for _, _, tag, _ in units], "scores": [score for *_, score in units]}
        if self.scheme:
            prediction["spans"] = [
                {
                    "text": example.text[units[start][0] : units[end - 1][1]],
                    "label": kind,
                    "start": units[start][0],
                    "end": units[end - 1][1],
                    "score": float(np.mean([score for *_, score in units[start:end]])),
                }
                for start, end, kind in entity_metrics.entities(prediction["tags"])
            ]
        return prediction

    def _prediction_of_characters(self, example: TaggedExample, units: list[Unit], found: dict[str, Array]) -> Json:
        """The prediction of a text whose characters are tagged.

        Args:
            example: the text.
            units: its characters.
            found: its entities, which only the graph knows: their scores are means over wordpieces.
        """
        tags, scores = onto_characters(units, len(example.text), self.state.default_tag)
        prediction: Json = {"id": example.id, "text": example.text, "words": list(example.text)}
        prediction |= {"tags": tags, "scores": scores}
        if self.scheme:
            columns = (
                strings(value) if name in ("entity", "label") else value.tolist() for name, value in found.items()
            )
            prediction["spans"] = [
                {"text": text, "label": kind, "start": start, "end": end, "score": score}
                for text, kind, start, end, score in zip(*columns, strict=True)
            ]
        return prediction

    def writers(self) -> dict[str, Writer]:
        return super().writers() | {".conll": functools.partial(write_columns, scheme=self.scheme)}


class TaggingObjective(Objective):
    """Cross-entropy of the tag of each unit.

    Args:
        head: a key of `model.variables.HEADS`.
        config, state: of the task.
    """

    metric_names = ("accuracy",)

    def __init__(self, head: str, config: Any, state: TaggingState) -> None:
        self._head, self._config, self._state = head, config, state

    def build(self, encoder: BertEncoder) -> keras.Model:
        features = self._config.features if self._head == "tagging_bilstm" else None
        if features:
            try:
                features.check(encoder.config.num_layers)
            except ConfigError as error:
                raise ConfigError(f"task.features: {error}") from None
        return build(encoder, self._head, len(self._state.labels), features, frozen=self._config.frozen)

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
        return tagging_errors(self._scheme, self._unit, examples, predictions, klue=self._klue)


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

    @classmethod
    def learn(
        cls,
        tokenizer: Tokenizer,
        config: Any,
        data: ExampleData,
        examples: list[TaggedExample],
        labels: Labels | None,
    ) -> Self:
        if getattr(config, "context", "") == "document" and all(example.document is None for example in examples):
            raise ConfigError("task.context is document, but the training file marks no documents; set it to sentence")
        state = TaggingState(unit="characters" if any(map(adjoin, examples)) else "words")
        if are_entities(itertools.chain.from_iterable(map(tags_of, examples))):
            state.written = scheme_of(map(tags_of, examples))
            scheme = config.scheme or state.written
            # Units are wordpieces: in IOB1, two entities of one type with only a space between them would be one.
            if state.unit == "characters" and scheme != "BIO":
                raise ConfigError(f"the scheme {scheme} is for words, but the training file labels characters; "
                                  "set task.scheme to BIO")  # fmt: skip
            config = dataclasses.replace(config, scheme=scheme)
        elif config.scheme:
            raise ConfigError(f"task.scheme is {config.scheme}, but the training file has no tags of entities, "
                              "such as B-PER; leave it out")  # fmt: skip
        tags = collections.Counter(tag for example in examples for tag in learned(example, config.scheme))
        if len(tags) < 2:
            every = f"every tag is {next(iter(tags))!r}" if tags else "there is no tag"
            raise DataError(
                f"{examples[0].location} and all following: {every}; expected at least two: is data.column (now "
                f"{data.column!r}) the column of the tags?"
            )
        state.labels = closed(tags, config.scheme)
        return cls(tokenizer, config, data, **vars(state))

    def check(self, examples: list[TaggedExample], read_report: ReadReport) -> None:
        state, of_model = self.state, self.codec.scheme
        known, scheme = set(state.labels), of_model and scheme_of(map(tags_of, examples))
        if scheme == "IOB1":  # or a scheme that requires a B where this file has none
            scheme = state.written or scheme
        if not of_model and look_like_entities(known):
            read_report.add(LOOK_LIKE_ENTITIES, examples[0].location)
        if examples and not any(tag in known for example in examples for tag in learned(example, of_model)):
            raise DataError(
                f"{examples[0].location}: neither this sentence nor any other has a tag of the model's: "
                f"{', '.join(map(repr, state.labels[:20]))}"
            )
        for example in examples:
            written = list(tags_of(example))
            usual = respelt(written) if scheme else written
            if usual != written:
                read_report.add(RESPELT, example.location)
            for tag, repaired in zip(usual, learned(example, scheme), strict=True):
                if tag != repaired:
                    read_report.add("repaired: tag of a broken entity sequence", example.location)
            for tag in learned(example, of_model):
                if tag not in known:
                    read_report.add(f"never predicted: tag {tag!r}, not in the training data", example.location)
        if state.unit == "words":
            for first in range(0, len(examples), _CHECKED):
                for location in words_without_pieces(self.tokenizer, examples[first : first + _CHECKED]):
                    read_report.add(f"words without wordpieces, always tagged {state.default_tag!r}", location)


def _of_texts(values: tf.Tensor, row: tf.Tensor, texts: tf.Tensor) -> tf.RaggedTensor:
    """Groups values by their row: [texts, None]."""
    return tf.RaggedTensor.from_value_rowids(values, row, nrows=tf.size(texts, tf.int64), validate=False)
