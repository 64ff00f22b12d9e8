"""The codec of tagging: words or characters matched to wordpieces, and the tags and entities of texts."""

import dataclasses
import functools
import itertools
import types
from collections.abc import Iterable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import TagsConfig
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TaggedExample
from bert_tf.inputs.datasets.tagged import adjoin, document_of, joined, with_words, word_columns
from bert_tf.inputs.windows import cut, most_context, windows
from bert_tf.metrics import entities as entity_metrics
from bert_tf.tasks.codec import Codec, strings, text_signature
from bert_tf.tasks.signatures import WORD_LISTS, WORDS, dense
from bert_tf.tasks.tags import (
    Unit,
    are_entities,
    entity_spans,
    learned,
    tagged_characters,
    words_of,
    write_columns,
)
from bert_tf.tasks.task import State
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.words import (
    character_groups,
    characters,
    extents,
    given_words,
    quotable_pieces,
    spans,
    word_numbers,
    word_of,
)
from bert_tf.types import Array, Json, Tensors, TfFunction, Writer

_ENTITY = ("entity", "label", "start", "end", "score")  # columns of the answers


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
    compared_settings = ("context",)
    counted = types.MappingProxyType({
        "word_count": ("word", "tag", "word_start", "word_end", "word_score"),
        "entity_count": _ENTITY,
    })  # fmt: skip

    @property
    def scheme(self) -> str:
        """The scheme of the labels, one of `metrics.entities.SCHEMES`; "" if they are no entities."""
        labels = self.state.labels
        # The I of a converted model may be of any type.
        if self.config.scheme == "none" or not are_entities(labels) or "I" in labels:
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
        return self.config.reads_documents

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

    @property
    def compared_by_token(self) -> bool:
        return self.state.unit == "characters"

    def unlabelled(self, examples: list[TaggedExample]) -> list[TaggedExample]:
        """As in Codec; texts are split into words, so that other tokenizers find the same ones."""
        examples = split_texts(self.tokenizer, self.state.unit, examples)
        return [example._replace(tags=(self.state.labels[0],) * len(words_of(example))) for example in examples]

    def preprocess(self, columns: Tensors) -> Tensors:
        ids, is_first, features = match_words(self.tokenizer, self.state.unit, columns)
        most = self.config.max_length - self.tokenizer.specials()
        rows = windows(ids.row_lengths(), most, self.config.stride or (most + 1) // 2)
        chosen = most_context(*rows).values & cut(ids.with_values(is_first), *rows).values
        zero = tf.zeros([tf.size(rows[0]), 1], tf.int32)

        def in_windows(values: tf.Tensor) -> tf.RaggedTensor:
            of_windows = cut(ids.with_values(tf.cast(values, tf.int32)), *rows)
            of_windows = of_windows.with_values(tf.where(chosen, of_windows.values, 0))
            return tf.concat([zero, of_windows, zero], 1)  # as packed

        packed, types = self.tokenizer.pack(cut(ids, *rows))
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
        prediction: Json = {"id": example.id, "text": example.text, "words": list(example.text)}
        prediction |= {"tags": [tag for _, _, tag, _ in units], "scores": [score for *_, score in units]}
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


def _of_texts(values: tf.Tensor, row: tf.Tensor, texts: tf.Tensor) -> tf.RaggedTensor:
    """Groups values by their row: [texts, None]."""
    return tf.RaggedTensor.from_value_rowids(values, row, nrows=tf.size(texts, tf.int64), validate=False)


def check_unit(example: TaggedExample, unit: str) -> None:
    """Refuses a sentence that is split into other units ("words" or "characters") than the model tags."""
    if example.words is None:
        return
    if unit == "characters" and example.words != tuple(example.text):
        raise DataError(
            f"{example.location}: {len(example.words)} words of {len(example.text)} characters, but the model tags "
            'characters; give the whole text (in JSON lines: {"text": "..."}), or data that tags them '
            "(data.format=klue/ner)"
        )
    if unit == "words" and adjoin(example):
        raise DataError(
            f"{example.location}: characters, but the model tags words; give data that tags words, or the whole text "
            '(in JSON lines: {"text": "..."})'
        )


def split_texts(tokenizer: BaseTokenizer, unit: str, examples: list[TaggedExample]) -> list[TaggedExample]:
    """The examples, with those that have only a text split into words as the exported model splits it."""
    texts = [example.text for example in examples if example.words is None]
    if not texts:
        return examples
    offsets: Iterator[tuple[Sequence[int], Sequence[int]]]
    if unit == "characters":
        offsets = ((range(len(text)), range(1, len(text) + 1)) for text in texts)
    else:
        text = tf.constant(texts)
        ids, *of_pieces = quotable_pieces(tokenizer, text)
        of_words = extents(word_numbers(tokenizer, text, ids, *of_pieces), *of_pieces)
        starts, ends = (
            value.with_values(characters(text, value.value_rowids(), value.values)).to_list() for value in of_words
        )
        offsets = zip(starts, ends, strict=True)
    return [example if example.words is not None else with_words(example, *next(offsets)) for example in examples]


def words_without_pieces(tokenizer: BaseTokenizer, examples: list[TaggedExample]) -> list[str]:
    """The location of each word without wordpieces, because the tokenizer deletes all of its characters."""
    columns = {"text": tf.constant([example.text for example in examples])}
    columns |= word_columns([[example] for example in examples])
    _, starts, _ = quotable_pieces(tokenizer, columns["text"])
    missing = np.ones(int(columns["word_starts"].values.shape[0]), bool)
    missing[word_of(starts, columns["word_starts"], columns["text"]).numpy()] = False
    rows = columns["word_starts"].value_rowids().numpy()
    return [examples[row].location for row in rows[missing]]


def match_words(tokenizer: BaseTokenizer, unit: str, columns: Tensors) -> tuple[tf.RaggedTensor, tf.Tensor, Tensors]:
    """Tokenizes texts and assigns each wordpiece to a word, in graph code.

    Args:
        tokenizer: of the task.
        unit: "words" or "characters".
        columns: text string [texts]; maybe word_starts and word_ends, else the words are found; maybe targets.

    Returns:
        RaggedTensor int32 [texts, None], the ids; bool [pieces], whether each is the first of its word; and for each
        piece [pieces] the word's number in the text from 1, its start and end in bytes and, if given, its target.
    """
    text = columns["text"]
    ids, starts, ends = quotable_pieces(tokenizer, text)
    if unit == "characters":
        word_starts, word_ends = extents(character_groups(starts, ends), starts, ends)
    elif "word_starts" in columns:
        word_starts, word_ends = columns["word_starts"], columns["word_ends"]
    else:
        word_starts, word_ends = extents(word_numbers(tokenizer, text, ids, starts, ends), starts, ends)
    word = word_of(starts, word_starts, text)  # [pieces]
    is_first = tf.concat([word[:1] >= 0, word[1:] != word[:-1]], 0)
    features = {
        "word": word - tf.gather(word_starts.row_starts(), starts.value_rowids()) + 1,
        "start": tf.gather(word_starts.values, word),
        "end": tf.gather(word_ends.values, word),
    }
    if "targets" in columns:
        features["target"] = tf.gather(columns["targets"].values, word_of(starts, columns["word_starts"], text))
    return ids, is_first, features
