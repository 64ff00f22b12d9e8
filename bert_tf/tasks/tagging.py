"""A label for every word, or character, of a text (paper, section 5.3 and figure 4d): entities, parts of speech."""

import collections
import dataclasses
import itertools
import types

import numpy as np
import tensorflow as tf

from bert_tf.config import FeatureConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TaggedExample
from bert_tf.inputs.datasets.tagged import adjoin, document_of, joined, with_words, word_columns
from bert_tf.inputs.packing import pack
from bert_tf.inputs.windows import cut, most_context, windows
from bert_tf.metrics import tagging as metrics
from bert_tf.metrics.classification import accuracy
from bert_tf.model.build import build
from bert_tf.tasks.entity_spans import entity_spans
from bert_tf.tasks.fine_tuning_task import FineTuningTask, TaskConfig, strings
from bert_tf.tasks.tagging_errors import tagging_errors
from bert_tf.tasks.tags import are_entities, closed, learned, onto_characters, scheme_of, scored, write_columns
from bert_tf.text.words import character_groups, characters, extents, pieces_with_accents, spans, word_numbers, word_of

# Sentences whose words are looked through at once.
_CHECKED = 1024


@dataclasses.dataclass
class TaggingConfig(TaskConfig):
    """Labels for words.

    Attributes:
        max_length: tokens of a window, specials counted. Longer texts are several windows; none is cut.
        stride: tokens from where a window begins to where the next does; 0 for half of what a window holds.
        context: what fills windows: "sentence", each by itself, or "document", in which a document's sentences follow
            one another and each word is looked at where the window shows most around it (the paper's score on
            CoNLL-2003 needs it).
        head: "token", a dense layer on each, or "bilstm": on a two-layer BiLSTM over them (paper, section 5.3).
        frozen: whether the encoder stays as it is and the head alone is trained.
        features: of "bilstm": which of the encoder's layers it reads.
        scheme: how entities are written for training: "BIO", "BIOES" or "IOB1", see `metrics.tagging`; "" as the
            training file has them.
    """

    stride: int = 0
    context: str = "sentence"
    scheme: str = ""
    head: str = "token"
    frozen: bool = False
    features: FeatureConfig = dataclasses.field(default_factory=FeatureConfig)

    def check(self):
        if not 0 <= self.stride <= self.max_length - 2:
            raise ConfigError(f"task.stride is {self.stride}; it must be from 0 to task.max_length - 2, so that "
                              "windows leave nothing out")  # fmt: skip
        for field, choices in (
            ("context", ("sentence", "document")),
            ("scheme", ("", *metrics.SCHEMES)),
            ("head", ("token", "bilstm")),
        ):
            if getattr(self, field) not in choices:
                listed = ", ".join(filter(None, choices))
                raise ConfigError(f"task.{field} {getattr(self, field)!r} is unknown; choose one of {listed}")
        if self.head != "bilstm" and self.features != FeatureConfig():
            raise ConfigError("task.features is for the head that reads them; set task.head to bilstm, or leave it out")
        return super().check()


class Tagging(FineTuningTask):
    """Labels for words.

    Words are learned and answered at their first piece, as in the paper. Where the data labels characters (KLUE), each
    piece is a unit, labelled as its first character is, and an answer goes back onto the characters it stands for.

    Attributes:
        labels: in the order of the logits: those of the training examples, the commonest first. Where a type of entity
            is begun there, all its prefixes are among them.
        unit: what the data labels, "words" or "characters".
        written: the scheme of the training file, whatever `scheme` is; "" of no entities or where it is not known.
    """

    name = "tagging"
    Config = TaggingConfig
    example = TaggedExample
    state = ("labels", "unit", "written")
    unit = "words"
    written = ""
    windows = True
    counted = types.MappingProxyType({
        "word_count": ("word", "tag", "word_start", "word_end", "word_score"),
        "entity_count": ("entity", "label", "start", "end", "score"),
    })  # fmt: skip
    losses = ("loss",)
    metric_names = ("accuracy",)

    @classmethod
    def head(cls, settings):
        return "tagging_bilstm" if settings.get("head") == "bilstm" else "tagging"

    @classmethod
    def create(cls, tokenizer, config, data, examples, labels):
        if config.context == "document" and all(example.document is None for example in examples):
            raise ConfigError("task.context is document, but the training file marks no documents; set it to sentence")
        unit, written = "characters" if any(map(adjoin, examples)) else "words", ""
        if are_entities(itertools.chain.from_iterable(example.tags for example in examples)):
            written = scheme_of(example.tags for example in examples)
            scheme = config.scheme or written
            # Of pieces: two entities of a type that a space alone parts would be one in IOB1.
            if unit == "characters" and scheme != "BIO":
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
                f"{examples[0].location} and all that follows: {every}; expected at least two: is data.column (now "
                f"{data.column!r}) that of the tags?"
            )
        return cls(tokenizer, config, data, labels=closed(tags, config.scheme), unit=unit, written=written)

    @property
    def scheme(self):
        """What the labels are written in, one of `metrics.tagging.SCHEMES`; "" if they are no entities."""
        if not are_entities(self.labels):
            return ""
        return self.config.scheme or ("BIOES" if any(label[0] in "ES" for label in self.labels) else "BIO")

    @property
    def monitor(self):
        if self._is_klue:
            return "entity_macro_f1"
        return "f1" if self.scheme else "accuracy"

    @property
    def _is_klue(self):
        return self.unit == "characters" and set(self.labels) <= set(metrics.KLUE_LABELS)

    @property
    def _commonest(self):
        return "O" if "O" in self.labels else self.labels[0]

    def inputs(self):
        return (tf.TensorSpec([None], tf.string, name="text"),)

    def _groups(self, examples):
        """Lists of the examples that are looked at together, in order."""
        if self.config.context == "sentence":
            return [[example] for example in examples]
        return [list(group) for _, group in itertools.groupby(examples, document_of)]

    def chunks(self, examples, size):
        """As in FineTuningTask; a document stays whole unless it has more than `size` sentences."""
        chunk = []
        for example in examples:
            divides = not chunk or self.config.context == "sentence" or document_of(example) != document_of(chunk[-1])
            if (len(chunk) >= size and divides) or len(chunk) == 2 * size:
                yield chunk
                chunk = []
            chunk.append(example)
        if chunk:
            yield chunk

    def check(self, examples, read_report):
        known, scheme = set(self.labels), self.scheme and scheme_of(example.tags for example in examples)
        if scheme == "IOB1":  # or one that asks for a B where this file has none
            scheme = self.written or scheme
        for example in examples:
            for tag, mended in zip(example.tags, learned(example, scheme), strict=True):
                if tag != mended:
                    read_report.add("mended: tag of a broken sequence of entities", example.location)
            for tag in learned(example, self.scheme):
                if tag not in known:
                    read_report.add(f"never predicted: tag {tag!r}, which training has not", example.location)
        if self.unit == "words":
            for first in range(0, len(examples), _CHECKED):
                for location in self._without_piece(examples[first : first + _CHECKED]):
                    read_report.add(f"always {self._commonest!r}: word of characters that are deleted", location)

    def to_tensors(self, examples, *, labelled):
        """Each document is an entry, or each sentence if `context` is "sentence".

        `word_starts` and `word_ends`, in bytes of the text, and `targets` are RaggedTensors int32 [entries, None]: a
        label's number from 1, or 0 where there is nothing to learn, because the task does not know the tag.
        """
        for example in examples:
            self._check_unit(example)
        groups = self._groups(self._divided(examples))
        columns = {"text": tf.constant([joined(group) for group in groups], tf.string)}
        if self.unit == "words" or labelled:
            columns |= word_columns(groups)
        if labelled:
            numbers = {label: number for number, label in enumerate(self.labels, 1)}
            tags = (tag for group in groups for example in group for tag in learned(example, self.scheme))
            targets = tf.constant([numbers.get(tag, 0) for tag in tags], tf.int32)
            columns["targets"] = columns["word_starts"].with_values(targets)
        return columns

    def _check_unit(self, example):
        """Raises DataError for a sentence that is cut into something else than what the model tags."""
        if example.words is None:
            return
        if self.unit == "characters" and example.words != tuple(example.text):
            raise DataError(
                f"{example.location}: {len(example.words)} words of {len(example.text)} characters, but the model tags "
                'characters; give the text alone, as {"text": "..."}, or data that tags them (data.format=klue/ner)'
            )
        if self.unit == "words" and adjoin(example):
            raise DataError(
                f"{example.location}: characters, but the model tags words; give data that tags words, or the text alone, "
                'as {"text": "..."}'
            )

    def preprocess(self, columns):
        text = columns["text"]
        ids, starts, ends = pieces_with_accents(self.tokenizer, text)
        if self.unit == "characters":
            word_starts, word_ends = extents(character_groups(starts, ends), starts, ends)
        elif "word_starts" in columns:
            word_starts, word_ends = columns["word_starts"], columns["word_ends"]
        else:
            word_starts, word_ends = extents(word_numbers(self.tokenizer, text, ids, starts, ends), starts, ends)
        word = word_of(starts, word_starts, text)  # [pieces]
        is_head = tf.concat([word[:1] >= 0, word[1:] != word[:-1]], 0)
        features = {
            "word": word - tf.gather(word_starts.row_starts(), starts.value_rowids()) + 1,
            "start": tf.gather(word_starts.values, word),
            "end": tf.gather(word_ends.values, word),
        }
        if "targets" in columns:
            features["target"] = tf.gather(columns["targets"].values, word_of(starts, columns["word_starts"], text))
        rows = windows(ids.row_lengths(), self.config.max_length - 2, self.config.stride or self._half)
        chosen = most_context(*rows).values & cut(ids.with_values(is_head), *rows).values
        zero = tf.zeros([tf.size(rows[0]), 1], tf.int32)

        def in_windows(values):
            there = cut(ids.with_values(tf.cast(values, tf.int32)), *rows)
            there = there.with_values(tf.where(chosen, there.values, 0))
            return tf.concat([zero, there, zero], 1)  # [CLS] and [SEP]

        packed, types = pack(cut(ids, *rows), cls_id=self.tokenizer.cls_id, sep_id=self.tokenizer.sep_id)
        made = {"input_word_ids": packed, "input_type_ids": types, "row": rows[0]}
        return made | {name: in_windows(values) for name, values in features.items()}

    @property
    def _half(self):
        return (self.config.max_length - 1) // 2

    def build(self, encoder):
        head = self.head(self.settings())
        features = self.config.features if head == "tagging_bilstm" else None
        if features:
            try:
                features.check(encoder.config.num_layers)
            except ConfigError as error:
                raise ConfigError(f"task.features: {error}") from None
        return build(encoder, head, len(self.labels), features, frozen=self.config.frozen)

    def weights(self, features):
        return {"loss": tf.reduce_sum(tf.cast(features["target"] > 0, tf.float32))}

    def loss_and_metrics(self, features, outputs):
        has_target = tf.cast(features["target"] > 0, tf.float32)
        target = tf.maximum(features["target"] - 1, 0)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(target, outputs["logits"])
        right = tf.cast(tf.argmax(outputs["logits"], -1, tf.int32) == target, tf.float32)
        words = tf.reduce_sum(has_target)
        return {
            "loss": (tf.reduce_sum(loss * has_target), words),
            "accuracy": (tf.reduce_sum(right * has_target), words),
        }

    def postprocess(self, features, outputs):
        """`word` int32 [rows, length]: number of the word from 1, where it is answered; else 0."""
        answered = features["word"] > 0
        score = tf.reduce_max(tf.nn.softmax(outputs["logits"]), -1)
        label = tf.argmax(outputs["logits"], -1, tf.int32)
        offsets = {name: features[name] for name in ("word", "start", "end")}
        return offsets | {"label": tf.where(answered, label, 0), "score": tf.where(answered, score, 0.0)}

    def aggregate_windows(self, columns, rows, decoded):
        """The words and the entities of each text; what a text has fewer of than others is filled up when served.

        Returns:
            dict of RaggedTensors [texts, words]: word, tag strings; word_start, word_end int32, characters of the text;
            word_score float32, the tag's probability. Of a task with entities, also [texts, entities]: entity, label
            strings; start, end int32; score float32, the mean of the words'. Entities are read as conlleval does.
        """
        texts = columns["text"]
        there = tf.where(decoded["word"] > 0)
        # In order: windows follow one another, and so do the words that each has most context for.
        row = tf.gather(rows, there[:, 0])
        found = {name: tf.gather_nd(value, there) for name, value in decoded.items()}
        words = spans(texts, row, found["start"], found["end"])
        answer = {
            "word": words["text"],
            "tag": tf.gather(tf.constant(self.labels), found["label"]),
            "word_start": words["start"],
            "word_end": words["end"],
            "word_score": found["score"],
        }
        answer = {name: _of_texts(value, row, texts) for name, value in answer.items()}
        if self.scheme:
            entities, row = entity_spans(texts, row, found, self.labels)
            answer |= {name: _of_texts(value, row, texts) for name, value in entities.items()}
        return answer

    def answer_tokens(self, features, outputs):
        """`tag` string and `score` float32, its probability, of each token: [rows, length], "" and 0 at padding."""
        there = features["input_mask"] > 0
        tags = tf.gather(tf.constant(self.labels), tf.argmax(outputs["logits"], -1))
        score = tf.reduce_max(tf.nn.softmax(outputs["logits"]), -1)
        return {"tag": tf.where(there, tags, ""), "score": tf.where(there, score, 0.0)}

    def predictions(self, examples, answers):
        groups = self._groups(self._divided(examples))
        columns = (answers[name] for name in ("word_start", "word_end", "tag", "word_score"))
        found = []
        for group, starts, ends, tags, scores in zip(groups, *columns, strict=True):
            units = list(zip(starts.tolist(), ends.tolist(), strings(tags), scores.tolist(), strict=True))
            first, offset = 0, 0
            for example in group:
                past = offset + len(example.text)
                last = first
                while last < len(units) and units[last][0] < past:
                    last += 1
                own = [(start - offset, end - offset, *rest) for start, end, *rest in units[first:last]]
                found.append(self._prediction(example, own))
                first, offset = last, past + 1
        return found

    def _prediction(self, example, units):
        """What is said of a sentence, from its units: list of (start, end, tag, score)."""
        if self.unit == "words":
            # A word of characters that are deleted has no piece, and so no unit.
            by_start = {unit[0]: unit for unit in units}
            units = [
                by_start.get(start, (start, start + len(word), self._commonest, 0.0))
                for start, word in zip(example.starts, example.words, strict=True)
            ]
            tags = [tag for _, _, tag, _ in units]
        else:
            tags = onto_characters(units, len(example.text))
        prediction = {"id": example.id, "text": example.text, "words": list(example.words), "tags": tags}
        if self.unit == "words":
            prediction["scores"] = [score for *_, score in units]
        if self.scheme:
            prediction["spans"] = [
                {
                    "text": example.text[units[start][0] : units[end - 1][1]],
                    "label": kind,
                    "start": units[start][0],
                    "end": units[end - 1][1],
                    "score": float(np.mean([score for *_, score in units[start:end]])),
                }
                for start, end, kind in metrics.entities([tag for _, _, tag, _ in units])
            ]
        return prediction

    def official_metrics(self, examples, predictions):
        """Of entities precision, recall and F1 as conlleval.pl counts them, KLUE's two figures; else accuracy."""
        gold, found = self._measured(examples, predictions)
        if not self.scheme:
            return accuracy(*(list(itertools.chain.from_iterable(sentences)) for sentences in (gold, found)))
        scores = metrics.entity_scores(gold, found)
        return scores | (metrics.klue_scores(gold, found) if self._is_klue else {})

    def baseline(self, examples):
        counts = collections.Counter(tag for example in examples for tag in learned(example, self.scheme))
        commonest = counts.most_common(1)[0][0]
        return self.official_metrics(examples, [{"tags": [commonest] * len(example.words)} for example in examples])

    def error_analysis(self, examples, predictions):
        return tagging_errors(self.scheme, self.unit, examples, predictions, klue=self._is_klue)

    def _measured(self, examples, predictions):
        """True and predicted tags of each sentence, lists of lists."""
        gold = [scored(example, learned(example, self.scheme), self.unit) for example in examples]
        found = [
            scored(example, prediction["tags"], self.unit)
            for example, prediction in zip(examples, predictions, strict=True)
        ]
        return gold, found

    def writers(self):
        return super().writers() | {".conll": self._write_columns}

    def _write_columns(self, path, predicted):
        write_columns(path, predicted, self.scheme)

    def _divided(self, examples):
        """The examples, those that are only a text cut into the words that the exported model finds."""
        texts = [example.text for example in examples if example.words is None]
        if not texts:
            return examples
        if self.unit == "characters":
            cuts = ((range(len(text)), range(1, len(text) + 1)) for text in texts)
        else:
            text = tf.constant(texts)
            ids, *offsets = pieces_with_accents(self.tokenizer, text)
            offsets = extents(word_numbers(self.tokenizer, text, ids, *offsets), *offsets)
            starts, ends = (
                value.with_values(characters(text, value.value_rowids(), value.values)).to_list() for value in offsets
            )
            cuts = zip(starts, ends, strict=True)
        return [example if example.words is not None else with_words(example, *next(cuts)) for example in examples]

    def _without_piece(self, examples):
        """The location of each word that no piece is made of."""
        groups = [[example] for example in examples]
        columns = {"text": tf.constant([example.text for example in examples])} | word_columns(groups)
        _, starts, _ = self.tokenizer.tokenize_with_offsets(columns["text"])
        missing = np.ones(int(columns["word_starts"].values.shape[0]), bool)
        missing[word_of(starts, columns["word_starts"], columns["text"]).numpy()] = False
        rows = columns["word_starts"].value_rowids().numpy()
        return [examples[row].location for row in rows[missing]]


def _of_texts(values, row, texts):
    return tf.RaggedTensor.from_value_rowids(values, row, nrows=tf.size(texts, tf.int64), validate=False)
