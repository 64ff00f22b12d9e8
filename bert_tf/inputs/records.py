"""Prepared corpora: tokenized documents in sharded TFRecord files, with an index and a description of what made them.

A directory holds `NNNNN-of-NNNNN.tfrecord`, beside each an index of the same name ending in `.json`, and `corpus.json`.
A record is a `tf.train.Example` of one document: `ids` (int64), `sentence_lengths` (int64, how many ids each sentence has)
and `word_starts` (bytes, one bit an id: whether a word begins there that stands between white space).

The index tells which text file each document came from and where its records begin, so that reading shards can take the
files in the same order as reading the text itself.
"""

import hashlib
import json
import os

import numpy as np
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.masking import mark_words

DESCRIPTION = "corpus.json"
ENDING = ".tfrecord"
# A damaged record costs what is left of its run: the reader finds its way again where the next run begins.
RUN_DOCUMENTS, RUN_BYTES = 256, 1 << 20

_FORMAT = 1
_FRAME_BYTES = 16  # TFRecord: length and its checksum before each record, the record's checksum behind it
_BUFFER_BYTES = 1 << 18


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
    """Appends the documents of one text file to a shard, and notes where each run of records begins.

    Attributes:
        runs: list of [byte offset in the shard, number of records].

    Args:
        writer: tf.io.TFRecordWriter, uncompressed.
        offset: bytes that the shard has so far.
    """

    def __init__(self, writer, offset):
        self._writer = writer
        self.offset = offset
        self.runs = []

    def write(self, ids, sentence_lengths, word_starts):
        """Writes a document.

        Args:
            ids: int array [num_tokens].
            sentence_lengths: int array [num_sentences].
            word_starts: bool array [num_tokens].
        """
        features = {
            "ids": tf.train.Feature(int64_list=tf.train.Int64List(value=ids)),
            "sentence_lengths": tf.train.Feature(int64_list=tf.train.Int64List(value=sentence_lengths)),
            "word_starts": tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[np.packbits(word_starts, bitorder="little").tobytes()])
            ),
        }
        record = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
        if not self.runs or self.runs[-1][1] == RUN_DOCUMENTS or self.offset - self.runs[-1][0] > RUN_BYTES:
            self.runs.append([self.offset, 0])
        self._writer.write(record)
        self.runs[-1][1] += 1
        self.offset += len(record) + _FRAME_BYTES


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
    """The index of prepared shards, in memory: some bytes for every 256 documents.

    Attributes:
        num_sources: text files that the documents come from.
        num_documents: int.

    Args:
        paths: list of str, shards of one or more prepared directories.

    Raises:
        DataError: a shard or its index is missing or cut short, or is none of those that its directory describes.
    """

    def __init__(self, paths):
        self.paths = list(paths)
        self._descriptions = {}
        firsts, shards, runs = [0], [], []
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
            for source in index["sources"]:
                runs += source["runs"]
                shards += [number] * len(source["runs"])
                firsts.append(len(runs))
        self.num_sources = len(firsts) - 1
        self._firsts = np.array(firsts, np.int64)
        self._shards = np.array(shards, np.int64)
        self._runs = np.array(runs, np.int64).reshape(-1, 2)
        self.num_documents = int(self._runs[:, 1].sum())

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

    def read_source(self, number):
        """Reads the records that come from one text file.

        Args:
            number: int64 scalar tensor.

        Returns:
            tf.data.Dataset of tuples like those of `readers.read_source`, but in place of sentences the serialized
            record, string [], and counted in documents: for one that is damaged, an empty string and int64 [2] (1, 0).
        """
        paths, shards = tf.constant(self.paths), tf.constant(self._shards)
        runs, firsts = tf.constant(self._runs), tf.constant(self._firsts)

        def read_run(place):
            offset, count = tf.unstack(runs[place])
            variant = tf.raw_ops.TFRecordDatasetV2(
                filenames=[paths[shards[place]]],
                compression_type="",
                buffer_size=_BUFFER_BYTES,
                byte_offsets=[offset],
            )
            records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).take(count)
            # Behind what could be read, as many empty records as are missing, so that the others keep their places.
            records = records.ignore_errors().concatenate(tf.data.Dataset.from_tensors("")).batch(count + 1)
            return records.flat_map(lambda found: pad(found[:-1], count))

        def pad(found, count):
            missing = count - tf.size(found, tf.int64)
            records = tf.concat([found, tf.fill([missing], "")], axis=0)
            bad = tf.repeat(tf.constant([0, 1], tf.int64), tf.stack([count - missing, missing]))
            read = tf.ones_like(bad)
            return tf.data.Dataset.from_tensor_slices((records, read, tf.stack([bad, tf.zeros_like(bad)], axis=1)))

        nothing = tf.constant(""), tf.constant(0, tf.int64), tf.zeros([2], tf.int64)
        places = tf.data.Dataset.range(firsts[number], firsts[number + 1])
        return places.flat_map(read_run).concatenate(tf.data.Dataset.from_tensors(nothing))


def parse(record, words):
    """A record -> token ids.

    Args:
        record: string [].
        words: as in `bert_tf.config.PretrainingData`; with "spaces" the ids carry where words begin.

    Returns:
        RaggedTensor int32 [num_sentences, None].
    """
    lengths = tf.io.RaggedFeature.RowLengths("sentence_lengths")
    features = {
        "ids": tf.io.RaggedFeature(tf.int64, "ids", [lengths], row_splits_dtype=tf.int64),
        "word_starts": tf.io.FixedLenFeature([], tf.string),
    }
    example = tf.io.parse_single_example(record, features)
    ids = tf.cast(example["ids"], tf.int32)
    if words != "spaces":
        return ids
    octets = tf.cast(tf.io.decode_raw(example["word_starts"], tf.uint8), tf.int32)
    bits = tf.bitwise.bitwise_and(tf.bitwise.right_shift(octets[:, tf.newaxis], tf.range(8)), 1)
    starts = tf.reshape(bits, [-1])[: tf.size(ids.values)]
    return mark_words(ids, ids.with_values(starts > 0))


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
