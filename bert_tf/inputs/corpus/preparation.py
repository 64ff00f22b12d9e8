"""Text -> prepared shards, as an Apache Beam pipeline: the same code on one machine, Dataflow, Flink or Spark.

The text is read twice. First, each document becomes a hash, of which the pipeline finds the duplicates; then it is
read again, without them, tokenized and written. So what Beam has to group and, on one machine, to hold in memory is
32 bytes a document instead of the text. Both times a worker takes the files of one shard, one after the other.
"""

import collections
import hashlib
import itertools
import os
import re
import unicodedata

import apache_beam as beam
import numpy as np
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.gfiles import PARTIAL, read_json, replacing, write_json
from bert_tf.inputs.corpus.readers import read_source
from bert_tf.inputs.corpus.shards import DESCRIPTION, ENDING, SourceWriter, digest, settings_of, shard_name
from bert_tf.text import Tokenizer

# A shard is what a worker reads in some minutes, so that a restart repeats little.
_SHARD_BYTES = 100_000_000
# Documents are compared in this many parts, each by one worker.
_PARTS = 64
_HASHES_A_BLOCK = 1 << 14
# A document's hash and its position: shard, file in it, document in that. The order of positions is that of the corpus.
_HASH = np.dtype([("high", "<u8"), ("low", "<u8"), ("shard", "<u4"), ("file", "<u4"), ("document", "<u8")])
_INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x9f\u00ad\u200b-\u200f\u2060\ufeff\ufffd]")


def plan(files, layout, pieces, tokenizer_config, shards=0):
    """Decides what goes into which shard: files in their order, cut where shards get about as many bytes each.

    Args:
        files: list of str, text files as `readers.find_files` gives.
        layout: "sentences" or "documents".
        pieces: list of str, the vocabulary.
        tokenizer_config: dict, keyword arguments of `Tokenizer`.
        shards: how many, at most one a file; 0: one for every 100 MB of files.

    Returns:
        dict, JSON-ready: layout, pieces, tokenizer_config, and groups: for each shard a list of [path, bytes, time of
        the last change in ns].
    """
    stats = [tf.io.gfile.stat(file) for file in files]
    sizes = np.array([stat.length for stat in stats], np.float64)
    total = max(sizes.sum(), 1.0)
    wanted = min(shards or -(-int(total) // _SHARD_BYTES), len(files))
    middles = np.cumsum(sizes) - sizes / 2
    _, shard_of = np.unique(np.minimum(middles * wanted // total, wanted - 1), return_inverse=True)
    groups = [[] for _ in range(shard_of.max() + 1)]
    for file, stat, shard in zip(files, stats, shard_of, strict=True):
        groups[shard].append([file, stat.length, stat.mtime_nsec])
    return {"layout": layout, "pieces": pieces, "tokenizer_config": tokenizer_config, "groups": groups}


def prepare(planned, output, options=None, max_bad_share=0.01):
    """Runs the pipeline.

    A shard and then its index appear under their names when they are whole, corpus.json when everything is. After an
    interruption the same call goes on: shards that are whole and were made of the same documents with the same settings
    stay as they are.

    Args:
        planned: what `plan` gave.
        output: directory, on a file system that TensorFlow knows and all workers reach.
        options: apache_beam.options.pipeline_options.PipelineOptions.
        max_bad_share: of the sentences, that may not be UTF-8.

    Returns:
        dict, what corpus.json holds: plan (a digest), layout, tokenizer (`records.settings_of`), shards (names) and
        counts: documents, sentences, tokens, duplicates (documents left out), not_utf8 and empty (sentences left out),
        in all.

    Raises:
        ConfigError: a corpus of other files or settings is there.
        DataError: too much is not UTF-8.
    """
    path = os.path.join(output, DESCRIPTION)
    count = len(planned["groups"])
    _clear(output, digest(planned), count)
    with beam.Pipeline(options=options) as pipeline:
        shards = pipeline | "Shards" >> beam.Create(range(count)) | "Spread" >> beam.Reshuffle()
        duplicates = (
            shards
            | "Hash" >> beam.ParDo(_Hash(planned))
            | "Group hashes" >> beam.GroupByKey()
            | "Find duplicates" >> beam.FlatMap(_duplicates)
        )
        numbered = shards | "Number" >> beam.Map(lambda number: (number, b""))
        joined = (numbered, duplicates) | "Join" >> beam.Flatten() | "Group by shard" >> beam.GroupByKey()
        joined | "Write" >> beam.ParDo(_Write(planned, output))
    names = [shard_name(number, count) for number in range(count)]
    counts = collections.Counter()
    for name in names:
        counts.update(read_json(os.path.join(output, f"{name}.json"))["counts"])
    if counts["not_utf8"] > max_bad_share * counts["sentences_read"]:
        raise DataError(
            f"{counts['not_utf8']} of {counts['sentences_read']} sentences are not UTF-8; expected at most "
            f"{max_bad_share:.3%}; convert the files (iconv -f CP949 -t UTF-8) or raise --max_bad_share"
        )
    tokenizer = Tokenizer(planned["pieces"], **planned["tokenizer_config"])
    description = {
        "plan": digest(planned),
        "layout": planned["layout"],
        "tokenizer": settings_of(tokenizer),
        "counts": dict(sorted(counts.items())),
        "shards": [name + ENDING for name in names],
    }
    write_json(path, description, indent=1)
    return description


def normalized(sentences):
    """What documents are compared by: NFC, without characters that can not be seen, each white space one space.

    Case and punctuation count, and where sentences end does not. Sentences that come again inside a document or in
    others stay: without them, what followed them would seem to follow what came before.

    Args:
        sentences: sequence of bytes, UTF-8.

    Returns:
        str.
    """
    text = unicodedata.normalize("NFC", b" ".join(sentences).decode())
    return " ".join(_INVISIBLE.sub("", text).split())


class _Hash(beam.DoFn):
    """Number of a shard -> (part, hashes and positions of its documents, packed)."""

    def __init__(self, planned):
        self._plan = planned

    def process(self, number):
        parts = collections.defaultdict(list)
        for (file, document), (sentences, _, _) in _documents(self._plan, number).as_numpy_iterator():
            if not len(sentences):
                continue
            value = hashlib.blake2b(normalized(sentences).encode(), digest_size=16).digest()
            high, low = np.frombuffer(value, "<u8").tolist()
            part = parts[high % _PARTS]
            part.append((high, low, number, file, document))
            if len(part) == _HASHES_A_BLOCK:
                yield high % _PARTS, np.array(parts.pop(high % _PARTS), _HASH).tobytes()
        for part, hashes in parts.items():
            yield part, np.array(hashes, _HASH).tobytes()


def _duplicates(item):
    """The hashes of one part -> (shard, positions of the documents in it that are there before), packed as hashes.

    What comes first in the corpus stays, so the result does not depend on which worker was faster.
    """
    hashes = np.concatenate([np.frombuffer(block, _HASH) for block in item[1]])
    hashes = np.sort(hashes, order=_HASH.names)
    again = (hashes["high"][1:] == hashes["high"][:-1]) & (hashes["low"][1:] == hashes["low"][:-1])
    hashes = hashes[1:][again]
    for shard in np.unique(hashes["shard"]):
        yield int(shard), hashes[hashes["shard"] == shard].tobytes()


class _Write(beam.DoFn):
    """(Number of a shard, blocks of `_duplicates`) -> the shard and its index, written, unless they are there."""

    def __init__(self, planned, output):
        self._plan, self._output = planned, output

    def setup(self):
        self._tokenizer = Tokenizer(self._plan["pieces"], **self._plan["tokenizer_config"])

    def process(self, item):
        number, blocks = item
        left_out = np.sort(np.frombuffer(b"".join(blocks), _HASH), order=("file", "document"))
        positions = left_out[["file", "document"]].tolist()
        made_of = digest([self._plan["layout"], settings_of(self._tokenizer), self._plan["groups"][number], positions])
        base = os.path.join(self._output, shard_name(number, len(self._plan["groups"])))
        if not _is_whole(base, made_of):
            with replacing(base + ENDING) as temporary:
                index = self._write(temporary, number, set(positions))
            write_json(base + ".json", {"made_of": made_of} | index)

    def _write(self, path, number, left_out):
        """Writes the shard to `path`; returns its index."""
        counts = collections.Counter()
        documents = _documents(self._plan, number).map(self._tokenize, num_parallel_calls=tf.data.AUTOTUNE)
        files = [{"file": file, "records": []} for file, _, _ in self._plan["groups"][number]]
        offset = 0
        with tf.io.TFRecordWriter(path) as writer:
            elements = documents.as_numpy_iterator()
            for file, group in itertools.groupby(elements, key=lambda element: int(element[0][0])):
                source = SourceWriter(writer, offset)
                for position, read, (not_utf8, empty), ids, lengths, starts in group:
                    counts.update(sentences_read=int(read), not_utf8=int(not_utf8), empty=int(empty))
                    if tuple(position.tolist()) in left_out:
                        counts["duplicates"] += 1
                    elif len(lengths):
                        source.write(ids, lengths, starts)
                        counts.update(documents=1, sentences=len(lengths), tokens=len(ids))
                source.close()
                files[file]["records"], offset = source.records, source.offset
        return {"bytes": offset, "counts": counts, "sources": files}

    def _tokenize(self, position, element):
        sentences, read, left_out = element
        ids, starts = self._tokenizer.tokenize_with_words(sentences)
        return tf.stack(position), read, left_out, ids.values, ids.row_lengths(), starts.values


def _documents(planned, number):
    """Dataset of ((file, document), element of `readers.read_source`) of one shard, in order."""

    def read(file, path):
        numbered = read_source(path, planned["layout"]).enumerate()
        return numbered.map(lambda document, element: ((file, document), element))

    paths = [path for path, _, _ in planned["groups"][number]]
    return tf.data.Dataset.from_tensor_slices(paths).enumerate().flat_map(read)


def _clear(output, planned, count):
    """Makes `output` a directory without left-overs of interrupted or other work.

    Raises:
        ConfigError: a whole corpus of another plan is there.
    """
    tf.io.gfile.makedirs(output)
    path = os.path.join(output, DESCRIPTION)
    if tf.io.gfile.exists(path) and read_json(path)["plan"] != planned:
        raise ConfigError(f"{output} holds a corpus of other files or settings; choose another --output or remove it")
    for name in tf.io.gfile.listdir(output):
        shard = re.fullmatch(rf"\d{{5}}-of-(\d{{5}})({ENDING}|\.json)", name)
        if name.endswith(PARTIAL) or (shard and int(shard[1]) != count):
            tf.io.gfile.remove(os.path.join(output, name))


def _is_whole(base, made_of):
    if not tf.io.gfile.exists(base + ".json") or not tf.io.gfile.exists(base + ENDING):
        return False
    index = read_json(base + ".json")
    return index["made_of"] == made_of and index["bytes"] == tf.io.gfile.stat(base + ENDING).length
