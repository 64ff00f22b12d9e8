"""Prepared corpora: tokenized documents in sharded TFRecord files, with indexes and a description.

A directory contains shards, `NNNNN-of-NNNNN.tfrecord`, an index for each, the same name ending in `.json`, and
`corpus.json`, which describes the text and the tokenizer. A record is a zlib-compressed `tf.train.Example` of
consecutive documents: `ids` (int64), `sentence_lengths` (int64, ids per sentence), `document_lengths` (int64, sentences
per document) and `word_starts` (bytes, one bit per id, lowest bit first: whether a word, in the sense of text between
spaces, begins there).

The index lists the text files that the documents came from and the offset of each record. So shards can be read in the
order of the text, and the reader can skip a damaged record, which zlib's checksum detects.
"""

import os
import zlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypedDict, TypeVar

import numpy as np
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.files import read_json
from bert_tf.inputs.identity import tokenizer_identity
from bert_tf.inputs.masking import mark_words
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Array, Json

_T = TypeVar("_T")

DESCRIPTION = "corpus.json"
ENDING = ".tfrecord"

# A record is full at one of these: large enough to read and decompress fast, small enough to lose if it is damaged.
_RECORD_TOKENS, _RECORD_DOCUMENTS = 1 << 17, 1 << 12
# TFRecord: length and its checksum before each record, the record's checksum after it.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4


_Count = Annotated[int, {"at_least": 0, "at_most": 2**63 - 1}]


class Description(TypedDict):
    """What is needed of a corpus.json."""

    plan: str
    tokenizer: Json
    shards: list[str]


class _Source(TypedDict):
    records: list[tuple[_Count, _Count, _Count]]


class Index(TypedDict):
    """What is needed of the index of a shard."""

    made_of: str
    bytes: _Count
    counts: dict[str, _Count]
    sources: list[_Source]


def shard_name(number: int, count: int) -> str:
    """Name of a shard, without the file extension."""
    return f"{number:05d}-of-{count:05d}"


class SourceWriter:
    """Appends the documents of one text file to a shard; `close` it before writing the next file.

    Args:
        writer: an uncompressed TFRecordWriter.
        offset: current size of the shard in bytes.

    Attributes:
        records: [offset of the first byte after the header, bytes without header and footer, documents] of each record.
        offset: size of the shard in bytes.
    """

    def __init__(self, writer: tf.io.TFRecordWriter, offset: int) -> None:
        self._writer = writer
        self.offset = offset
        self.records: list[list[int]] = []
        self._documents: list[tuple[Array, Array, Array]] = []
        self._tokens = 0

    def write(self, ids: Array, sentence_lengths: Array, word_starts: Array) -> None:
        """Writes a document.

        Args:
            ids: int [num_tokens].
            sentence_lengths: int [num_sentences].
            word_starts: bool [num_tokens].
        """
        self._documents.append((ids, sentence_lengths, word_starts))
        self._tokens += len(ids)
        if self._tokens >= _RECORD_TOKENS or len(self._documents) == _RECORD_DOCUMENTS:
            self.close()

    def close(self) -> None:
        """Writes the pending documents as a record."""
        if not self._documents:
            return
        ids, lengths, starts = (np.concatenate(parts) for parts in zip(*self._documents, strict=True))
        bits = np.packbits(starts, bitorder="little").tobytes()
        features = {
            "ids": _integers(ids),
            "sentence_lengths": _integers(lengths),
            "document_lengths": _integers([len(lengths) for _, lengths, _ in self._documents]),
            "word_starts": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bits])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        record = zlib.compress(example.SerializeToString(), level=1)
        self._writer.write(record)
        self.records.append([self.offset + _HEADER_BYTES, len(record), len(self._documents)])
        self.offset += _HEADER_BYTES + len(record) + _FOOTER_BYTES
        self._documents, self._tokens = [], 0


def find_shards(patterns: Iterable[str]) -> list[str]:
    """Replaces each prepared directory in a list of paths and glob patterns with its shards."""
    paths = []
    for pattern in patterns:
        if not tf.io.gfile.isdir(pattern):
            paths.append(pattern)
        elif tf.io.gfile.exists(os.path.join(pattern, DESCRIPTION)):
            description = _read(os.path.join(pattern, DESCRIPTION), Description)
            paths += [os.path.join(pattern, shard) for shard in description["shards"]]
        elif tf.io.gfile.glob(os.path.join(pattern, f"*-of-*{ENDING}")):
            raise DataError(
                f"{pattern}: shards but no {DESCRIPTION}: the preparation never finished; run the same prepare again"
            )
        else:
            paths.append(pattern)
    return paths


def are_shards(files: Sequence[str]) -> bool:
    """Whether files are prepared shards; a mixture of shards and text is a ConfigError."""
    shards = [file for file in files if file.endswith(ENDING)]
    if shards and len(shards) < len(files):
        text = next(file for file in files if not file.endswith(ENDING))
        raise ConfigError(
            f"{text} is text, but {shards[0]} is a prepared shard; use only one kind, or prepare all of the text"
        )
    return bool(shards)


class Shards:
    """In-memory index of prepared shards: some bytes per record, far less than a thousandth of the corpus.

    Args:
        paths: shards of one or more prepared directories. A shard that is missing, truncated or not listed in its
            directory's corpus.json is a DataError.

    Attributes:
        num_sources: number of text files that the documents come from.
        num_tokens: number of tokens in all documents.
        text_bytes: bytes of the text that they were made from, uncompressed; None if an earlier version, which did not
            count them, made one of the shards.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = list(paths)
        self._descriptions: dict[str, Description] = {}
        firsts, shards, records, sizes = [0], [], [], []
        text_sizes: list[int] = []
        self.num_tokens = 0
        for number, path in enumerate(self.paths):
            folder, name = os.path.split(path)
            if folder not in self._descriptions:
                self._descriptions[folder] = _read(os.path.join(folder, DESCRIPTION), Description)
            if name not in self._descriptions[folder]["shards"]:
                raise DataError(f"{path}: not listed in {folder}/{DESCRIPTION}; remove it or prepare again")
            index = _read(path.removesuffix(ENDING) + ".json", Index)
            size = tf.io.gfile.stat(path).length if tf.io.gfile.exists(path) else 0
            if size != index["bytes"]:
                raise DataError(f"{path}: {size} bytes, expected {index['bytes']}; copy it again or prepare again")
            sizes.append(size)
            self.num_tokens += index["counts"].get("tokens", 0)
            if "text_bytes" in index["counts"]:
                text_sizes.append(index["counts"]["text_bytes"])
            end = 0
            for source in index["sources"]:
                # The records follow one another; with other offsets or lengths TensorFlow would skip documents or fail.
                for offset, length, _ in source["records"]:
                    end = offset + length + _FOOTER_BYTES if offset == end + _HEADER_BYTES else -1
                records += source["records"]
                shards += [number] * len(source["records"])
                firsts.append(len(records))
            if end != size:
                raise DataError(f"{path}: its index lists other records than it has; copy both or prepare again")
        self.text_bytes = sum(text_sizes) if len(text_sizes) == len(self.paths) else None
        self.num_sources = len(firsts) - 1
        self._firsts = np.array(firsts, np.int64)  # [sources + 1], first record of each source
        self._shards = np.array(shards, np.int64)  # [records]
        self._records = np.array(records, np.int64).reshape(-1, 3)
        self._sizes = np.array(sizes, np.int64)  # [shards]

    def check(self, tokenizer: BaseTokenizer) -> None:
        """Raises a ConfigError if another tokenizer made the shards.

        The sequence length may differ from run to run: records are whole documents.
        """
        now = tokenizer_identity(tokenizer)
        for folder, description in self._descriptions.items():
            before = description["tokenizer"]
            if before.get("fingerprint") != now["fingerprint"]:
                names = [name for name in now if name != "fingerprint" and before.get(name) != now[name]]
                differences = ", ".join(
                    f"{name}: {_short(before.get(name))} there, {_short(now[name])} here" for name in names
                )
                raise ConfigError(
                    f"{folder} was prepared with tokenizer fingerprint {before.get('fingerprint')}, this run has"
                    f" {now['fingerprint']} ({differences}); use the tokenizer of the shards or prepare the text again"
                )

    def read_source(self, number: tf.Tensor, words: str) -> tf.data.Dataset:
        """Reads the documents of one text file.

        Args:
            number: int64 scalar, the source, below `num_sources`.
            words: as in `bert_tf.config.PretrainingData`; with "spaces" the ids include word starts (`mark_words`).

        Returns:
            Dataset of tuples, one per document and a final one without sentences: the sentences, RaggedTensor int32
            [num_sentences, None]; int64 [], 1 for a document and 0 for the final tuple; int64 [2], (1, 0) for an
            unreadable document, which has no sentences, else (0, 0).
        """
        paths, sizes = tf.constant(self.paths), tf.constant(self._sizes)
        shards, records, firsts = tf.constant(self._shards), tf.constant(self._records), tf.constant(self._firsts)
        empty = tf.zeros([0], tf.int32), tf.zeros([0], tf.int64), tf.zeros([0], tf.int64)

        def read_record(index: tf.Tensor) -> tf.data.Dataset:
            offset, length, count = tf.unstack(records[index])
            shard = shards[index]
            # Not a TFRecordDataset, which cannot begin in the middle of a file.
            record = tf.data.FixedLengthRecordDataset(
                paths[shard], length, header_bytes=offset, footer_bytes=sizes[shard] - offset - length
            )
            parsed = record.map(lambda record: (*_parse(record, words), True)).ignore_errors()
            # The record is one element, or none if it is damaged; then the empty one takes its place.
            parsed = parsed.concatenate(tf.data.Dataset.from_tensors((*empty, False))).take(1)
            return parsed.map(lambda *record: documents(count, *record))

        def documents(
            count: tf.Tensor,
            ids: tf.Tensor,
            sentence_lengths: tf.Tensor,
            document_lengths: tf.Tensor,
            is_read: tf.Tensor,
        ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
            # A damaged record gives the same number of documents, but empty, so that the order of the others is kept.
            document_lengths = tf.cond(is_read, lambda: document_lengths, lambda: tf.zeros([count], tf.int64))
            ragged = tf.RaggedTensor.from_nested_row_lengths(ids, [document_lengths, sentence_lengths], validate=False)
            read, none = tf.ones_like(document_lengths), tf.zeros_like(document_lengths)
            return ragged, read, tf.stack([tf.where(is_read, none, read), none], axis=1)

        nothing = tf.RaggedTensor.from_nested_row_lengths(empty[0], [tf.zeros([1], tf.int64), empty[1]])
        end = tf.data.Dataset.from_tensors((nothing, tf.zeros([1], tf.int64), tf.zeros([1, 2], tf.int64)))
        blocks = tf.data.Dataset.range(firsts[number], firsts[number + 1]).flat_map(read_record)
        return blocks.concatenate(end).unbatch()


def _parse(record: tf.Tensor, words: str) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Record -> ids int32 [tokens], sentence_lengths int64 [sentences], document_lengths int64 [documents]."""
    numbers = {name: tf.io.RaggedFeature(tf.int64, name) for name in ("ids", "sentence_lengths", "document_lengths")}
    example = tf.io.parse_single_example(
        tf.io.decode_compressed(record, "ZLIB"), numbers | {"word_starts": tf.io.FixedLenFeature([], tf.string)}
    )
    ids = tf.cast(example["ids"], tf.int32)
    if words == "spaces":
        octets = tf.cast(tf.io.decode_raw(example["word_starts"], tf.uint8), tf.int32)
        bits = tf.bitwise.bitwise_and(tf.bitwise.right_shift(octets[:, tf.newaxis], tf.range(8)), 1)
        starts = tf.reshape(bits, [-1])[: tf.size(ids)] > 0
        row = [tf.size(ids, tf.int64)]
        ids = mark_words(
            tf.RaggedTensor.from_row_lengths(ids, row), tf.RaggedTensor.from_row_lengths(starts, row)
        ).values
    return ids, example["sentence_lengths"], example["document_lengths"]


def _integers(values: Sequence[int] | Array) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _short(value: Any) -> Any:
    return f"{value[:12]}..." if isinstance(value, str) else value


def _read(path: str, kind: type[_T]) -> _T:
    if not tf.io.gfile.exists(path):
        raise DataError(f"{path}: no such file; use a directory that prepare has finished, or its shards")
    try:
        return read_json(path, kind)
    except DataError as error:
        raise DataError(f"{error}; prepare the text again") from None
