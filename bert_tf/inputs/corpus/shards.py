"""Prepared corpora: tokenized documents in sharded TFRecord files, with an index and a description of what made them.

A directory holds `NNNNN-of-NNNNN.tfrecord`, beside each an index of the same name ending in `.json`, and
`corpus.json`. A record is a `tf.train.Example`, compressed by zlib, of some documents in a row: `ids` (int64),
`sentence_lengths` (int64, how many ids each sentence has), `document_lengths` (int64, how many sentences each
document has) and `word_starts` (bytes, one bit an id, lowest first: whether a word begins there that stands between
spaces).

The index tells which text file the documents came from and where each record begins, so that shards can be read in the
order of the text, and so that the reader finds its way past a damaged record. Zlib's checksum tells which those are.
"""

import hashlib
import json
import os
import zlib

import numpy as np
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.masking import mark_words

DESCRIPTION = "corpus.json"
ENDING = ".tfrecord"

_FORMAT = 1
# Of a record, at least: enough to read and decompress at one go, little enough to lose when it is damaged.
_RECORD_TOKENS, _RECORD_DOCUMENTS = 1 << 17, 1 << 12
# TFRecord: length and its checksum before each record, the record's checksum behind it.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4


def settings_of(tokenizer):
    """What of a tokenizer decides the ids, and the fingerprint of that.

    Args:
        tokenizer: bert_tf.Tokenizer.

    Returns:
        dict, JSON-ready: format, vocabulary (SHA-256 of its pieces, one a line), vocab_size, lower_case, strip_accents,
        split_cjk, and fingerprint: the first 16 hexadecimal digits of the SHA-256 of the others.
    """
    pieces = "".join(f"{piece}\n" for piece in tokenizer.vocab)
    settings = {
        "format": _FORMAT,
        "vocabulary": hashlib.sha256(pieces.encode()).hexdigest(),
        "vocab_size": tokenizer.vocab_size,
    } | tokenizer.get_config()
    return settings | {"fingerprint": digest(settings)}


def digest(value):
    """The first 16 hexadecimal digits of the SHA-256 of a JSON-ready value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def shard_name(number, count):
    """Name of a shard without its ending."""
    return f"{number:05d}-of-{count:05d}"


class SourceWriter:
    """Appends the documents of one text file to a shard; `close` it before the next file's.

    Attributes:
        records: list of [offset of its first byte, bytes, documents], the header before it not counted.
        offset: bytes that the shard has.

    Args:
        writer: tf.io.TFRecordWriter, uncompressed.
        offset: bytes that the shard has so far.
    """

    def __init__(self, writer, offset):
        self._writer = writer
        self.offset = offset
        self.records = []
        self._documents, self._tokens = [], 0

    def write(self, ids, sentence_lengths, word_starts):
        """Writes a document.

        Args:
            ids: int array [num_tokens].
            sentence_lengths: int array [num_sentences].
            word_starts: bool array [num_tokens].
        """
        self._documents.append((ids, sentence_lengths, word_starts))
        self._tokens += len(ids)
        if self._tokens >= _RECORD_TOKENS or len(self._documents) == _RECORD_DOCUMENTS:
            self.close()

    def close(self):
        """Writes what is left as a record."""
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


def find_shards(patterns):
    """Replaces each prepared directory among paths by its shards.

    Args:
        patterns: list of str, paths or glob patterns.

    Returns:
        list of str.

    Raises:
        DataError: a directory that was to be prepared never got whole.
    """
    found = []
    for pattern in patterns:
        if not tf.io.gfile.isdir(pattern):
            found.append(pattern)
        elif tf.io.gfile.exists(os.path.join(pattern, DESCRIPTION)):
            found += [os.path.join(pattern, shard) for shard in _read(os.path.join(pattern, DESCRIPTION))["shards"]]
        elif tf.io.gfile.glob(os.path.join(pattern, f"*-of-*{ENDING}")):
            raise DataError(
                f"{pattern}: shards but no {DESCRIPTION}: it was never finished; run the same prepare again"
            )
        else:
            found.append(pattern)
    return found


def are_shards(files):
    """Whether files are prepared shards.

    Raises:
        ConfigError: some are and some are not.
    """
    shards = [file for file in files if file.endswith(ENDING)]
    if shards and len(shards) < len(files):
        text = next(file for file in files if not file.endswith(ENDING))
        raise ConfigError(f"{text} is text and {shards[0]} a prepared shard; name either, or prepare all of the text")
    return bool(shards)


class Shards:
    """The index of prepared shards, in memory: some bytes a record, so far less than a thousandth of the corpus.

    Attributes:
        num_sources: text files that the documents come from.
        num_tokens: of all documents.

    Args:
        paths: list of str, shards of one or more prepared directories.

    Raises:
        DataError: a shard or its index is missing or cut short, or is none of those that its directory describes.
    """

    def __init__(self, paths):
        self.paths = list(paths)
        self._descriptions = {}
        firsts, shards, records, sizes = [0], [], [], []
        self.num_tokens = 0
        for number, path in enumerate(self.paths):
            folder, name = os.path.split(path)
            if folder not in self._descriptions:
                self._descriptions[folder] = _read(os.path.join(folder, DESCRIPTION))
            if name not in self._descriptions[folder]["shards"]:
                raise DataError(f"{path}: not one of the shards in {folder}/{DESCRIPTION}; remove it or prepare again")
            index = _read(path.removesuffix(ENDING) + ".json")
            size = tf.io.gfile.stat(path).length if tf.io.gfile.exists(path) else 0
            if size != index["bytes"]:
                raise DataError(f"{path}: {size} bytes, expected {index['bytes']}; copy it again or prepare again")
            sizes.append(size)
            self.num_tokens += index["counts"]["tokens"]
            for source in index["sources"]:
                records += source["records"]
                shards += [number] * len(source["records"])
                firsts.append(len(records))
        self.num_sources = len(firsts) - 1
        self._firsts = np.array(firsts, np.int64)  # [sources + 1], of each source the first record
        self._shards = np.array(shards, np.int64)  # [records]
        self._records = np.array(records, np.int64).reshape(-1, 3)
        self._sizes = np.array(sizes, np.int64)  # [shards]

    def check(self, tokenizer):
        """Refuses shards that another tokenizer made. Lengths are no matter: records are whole documents.

        Raises:
            ConfigError: with both fingerprints and what differs.
        """
        now = settings_of(tokenizer)
        for folder, description in self._descriptions.items():
            before = description["tokenizer"]
            if before["fingerprint"] != now["fingerprint"]:
                names = [name for name in now if name != "fingerprint" and before.get(name) != now[name]]
                shown = ", ".join(
                    f"{name} {_short(before.get(name))} there, {_short(now[name])} here" for name in names
                )
                raise ConfigError(
                    f"{folder} was prepared with the fingerprint {before['fingerprint']}, this run has"
                    f" {now['fingerprint']} ({shown}); use the tokenizer of the shards or prepare the text again"
                )

    def read_source(self, number, words):
        """Reads the documents that come from one text file.

        Args:
            number: int64 scalar tensor.
            words: as in `bert_tf.config.PretrainingData`; with "spaces" the ids carry where words begin.

        Returns:
            tf.data.Dataset of tuples, one a document and one, without sentences, at the end: (ids int32 [num_tokens],
            sentence_lengths int64 [num_sentences]); int64 [], 1 for a document and 0 at the end; int64 [2]: (1, 0) for
            a document that could not be read, which has no sentences, else (0, 0).
        """
        paths, sizes = tf.constant(self.paths), tf.constant(self._sizes)
        shards, records, firsts = tf.constant(self._shards), tf.constant(self._records), tf.constant(self._firsts)
        nothing = tf.zeros([0], tf.int32), tf.zeros([0], tf.int64), tf.zeros([0], tf.int64)

        def read_record(index):
            offset, length, count = tf.unstack(records[index])
            shard = shards[index]
            # Not a TFRecordDataset: it can not begin in the middle of a file.
            record = tf.data.FixedLengthRecordDataset(
                paths[shard], length, header_bytes=offset, footer_bytes=sizes[shard] - offset - length
            )
            parsed = record.map(lambda record: (*_parse(record, words), True)).ignore_errors()
            # One or none can be read; what comes first is used.
            parsed = parsed.concatenate(tf.data.Dataset.from_tensors((*nothing, False))).take(1)
            return parsed.flat_map(lambda *record: documents(count, *record))

        def documents(count, ids, sentence_lengths, document_lengths, is_read):
            # A damaged record is as many documents without sentences, so that the others keep their places.
            document_lengths = tf.cond(is_read, lambda: document_lengths, lambda: tf.zeros([count], tf.int64))
            sentence_ends = _bounds(document_lengths)
            token_ends = tf.gather(_bounds(sentence_lengths), sentence_ends)
            bad = tf.stack([tf.cast(~is_read, tf.int64), 0])

            def document(start, end, first, last):
                return (ids[first:last], sentence_lengths[start:end]), tf.constant(1, tf.int64), bad

            bounds = sentence_ends[:-1], sentence_ends[1:], token_ends[:-1], token_ends[1:]
            return tf.data.Dataset.from_tensor_slices(bounds).map(document)

        end = tf.data.Dataset.from_tensors((nothing[:2], tf.constant(0, tf.int64), tf.zeros([2], tf.int64)))
        return tf.data.Dataset.range(firsts[number], firsts[number + 1]).flat_map(read_record).concatenate(end)


def _parse(record, words):
    """A record -> ids int32 [tokens], sentence_lengths int64 [sentences], document_lengths int64 [documents]."""
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


def _bounds(lengths):
    return tf.concat([[0], tf.cumsum(lengths)], axis=0)


def _integers(values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _short(value):
    return f"{value[:12]}..." if isinstance(value, str) else value


def _read(path):
    try:
        with tf.io.gfile.GFile(path) as file:
            return json.load(file)
    except tf.errors.NotFoundError:
        raise DataError(f"{path}: no such file; name a directory that prepare has finished, or its shards") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not JSON: {error}; prepare the text again") from None
