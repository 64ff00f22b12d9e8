"""Apache Beam pipeline that turns text into prepared shards, on one machine, Dataflow, Flink or Spark.

The text is read twice: first to hash each document and find duplicates, then to tokenize and write the documents
without duplicates. So Beam has to group, and on one machine to hold in memory, only 32 bytes per document instead of
the text. Both times a worker processes the files of one shard, one after the other.
"""

# mypy: untyped-calls-exclude=apache_beam

import collections
import hashlib
import itertools
import os
import re
import struct
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions

from bert_tf.errors import ConfigError, DataError, of_workers
from bert_tf.files import data_errors, final_name, read_json, replacing, require_space, write_json
from bert_tf.inputs.batching import without_tuning
from bert_tf.inputs.corpus.readers import check_text_file, read_source
from bert_tf.inputs.corpus.shards import (
    DESCRIPTION,
    ENDING,
    Description,
    Index,
    SourceWriter,
    shard_name,
)
from bert_tf.inputs.identity import digest, tokenizer_identity
from bert_tf.inputs.masking import mark_words, unmark_words
from bert_tf.text import BaseTokenizer
from bert_tf.types import Json

# A worker reads a shard of this size within minutes, so that a restart repeats little work.
_SHARD_BYTES = 100_000_000
# Shards take 0.3 of the bytes of plain English text and 0.9 of those of a .gz file, fewer if much of it is repeated or
# unknown to the vocabulary. By whether a file is compressed.
_LEAST_SHARE = {False: 0.03, True: 0.1}
# The hashes are partitioned to find duplicates in parallel.
_PARTITIONS = 64
# A document's hash and its position: shard, file in the shard, document in the file. Positions are in corpus order.
_HASH = np.dtype([("high", "<u8"), ("low", "<u8"), ("shard", "<u4"), ("file", "<u4"), ("document", "<u8")])
_INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x9f\u00ad\u200b-\u200f\u2060\ufeff\ufffd]")


def plan(files: Sequence[str], layout: str, tokenizer: BaseTokenizer, shards: int = 0) -> Json:
    """Assigns files to shards of about the same size, in the order of the files.

    Args:
        files: text files as `readers.find_files` returns them.
        layout: "sentences" or "documents".
        tokenizer: what `prepare` will tokenize with.
        shards: number of shards, at most one per file; 0 for one per 100 MB of files.

    Returns:
        dict, JSON-ready: layout, tokenizer (`tokenizer_identity`), and groups: for each shard a list of [path, bytes,
        modification time in ns].
    """
    stats = [tf.io.gfile.stat(file) for file in files]
    sizes = np.array([stat.length for stat in stats], np.float64)
    total = max(sizes.sum(), 1.0)
    wanted = min(shards or -(-int(total) // _SHARD_BYTES), len(files))
    middles = np.cumsum(sizes) - sizes / 2
    _, shard_of = np.unique(np.minimum(middles * wanted // total, wanted - 1), return_inverse=True)
    groups: list[list[list[Any]]] = [[] for _ in range(shard_of.max() + 1)]
    for file, stat, shard in zip(files, stats, shard_of, strict=True):
        groups[shard].append([file, stat.length, stat.mtime_nsec])
    return {"layout": layout, "tokenizer": tokenizer_identity(tokenizer), "groups": groups}


def prepare(
    planned: Json,
    tokenizer: BaseTokenizer,
    output: str,
    options: PipelineOptions | None = None,
    max_bad_share: float = 0.01,
) -> Json:
    """Runs the pipeline.

    A shard and then its index get their final names when they are complete, corpus.json when all are. After an
    interruption the same call resumes: complete shards of the same documents and settings are kept.

    Args:
        planned: the result of `plan`.
        tokenizer: that of the plan.
        output: directory, on a file system that TensorFlow supports and all workers can access.
        max_bad_share: largest share of sentences that may be invalid UTF-8; more is a DataError.

    Returns:
        The content of corpus.json: plan (a digest), layout, tokenizer (`tokenizer_identity`), shards (names) and the
        total counts: documents, sentences and tokens written, sentences_read, duplicates (documents dropped), not_utf8
        and empty (sentences dropped), and text_bytes (size of the files, uncompressed).
    """
    path = os.path.join(output, DESCRIPTION)
    count = len(planned["groups"])
    _clear(output, digest(planned), count)
    if "://" not in output:
        require_space(output, _least_bytes(planned, output), "the prepared corpus")
    with of_workers(), beam.Pipeline(options=options) as pipeline:
        shards = pipeline | "Shards" >> beam.Create(range(count)) | "Spread" >> beam.Reshuffle()
        duplicates = (
            shards
            | "Hash" >> beam.ParDo(_Hash(planned))
            | "Group hashes" >> beam.GroupByKey()
            | "Find duplicates" >> beam.FlatMap(_duplicates)
        )
        numbered = shards | "Number" >> beam.Map(lambda number: (number, b""))
        joined = (numbered, duplicates) | "Join" >> beam.Flatten() | "Group by shard" >> beam.GroupByKey()
        joined | "Write" >> beam.ParDo(_Write(planned, tokenizer, output))
    names = [shard_name(number, count) for number in range(count)]
    counts: collections.Counter[str] = collections.Counter()
    for name in names:
        counts.update(read_json(os.path.join(output, f"{name}.json"), Index)["counts"])
    if counts["not_utf8"] > max_bad_share * counts["sentences_read"]:
        raise DataError(
            f"{counts['not_utf8']} of {counts['sentences_read']} sentences are not UTF-8; expected at most "
            f"{max_bad_share:.3%}; convert the files of another encoding (iconv -f CP949 -t UTF-8), and no others, or "
            "raise --max_bad_share"
        )
    description = {
        "plan": digest(planned),
        "layout": planned["layout"],
        "tokenizer": planned["tokenizer"],
        "counts": dict(sorted(counts.items())),
        "shards": [name + ENDING for name in names],
    }
    write_json(path, description)
    return description


def normalized(sentences: Iterable[bytes]) -> str:
    """Normal form of a document, for finding duplicates: NFC, no invisible characters, white space as single spaces.

    Case and punctuation matter, sentence boundaries do not. Sentences repeated within or across documents are kept:
    removing them would make neighbors of sentences that do not follow each other in the text.

    Args:
        sentences: UTF-8.
    """
    text = unicodedata.normalize("NFC", b" ".join(sentences).decode())
    return " ".join(_INVISIBLE.sub("", text).split())


class _Hash(beam.DoFn):
    """Number of a shard -> (partition, hashes and positions of the shard's documents, as bytes)."""

    def __init__(self, planned: Json) -> None:
        self._plan = planned

    def process(self, number: int) -> Iterator[tuple[int, bytes]]:
        rows = bytearray()  # of _HASH
        for (file, document), _, _, sentences, _ in _documents(self._plan, number).as_numpy_iterator():
            if len(sentences):
                rows += hashlib.blake2b(normalized(sentences).encode(), digest_size=16).digest()
                rows += struct.pack("<IIQ", number, file, document)
        hashes = np.frombuffer(rows, _HASH)
        partitions = hashes["high"] % _PARTITIONS
        for partition in np.unique(partitions):
            yield int(partition), hashes[partitions == partition].tobytes()


def _duplicates(item: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
    """Hashes of one partition -> (shard, hashes and positions of its documents that occurred before).

    The first occurrence in the corpus is kept, so the result does not depend on the speed of the workers.
    """
    hashes = np.concatenate([np.frombuffer(block, _HASH) for block in item[1]])
    hashes = np.sort(hashes, order=_HASH.names)
    repeated = (hashes["high"][1:] == hashes["high"][:-1]) & (hashes["low"][1:] == hashes["low"][:-1])
    hashes = hashes[1:][repeated]
    for shard in np.unique(hashes["shard"]):
        yield int(shard), hashes[hashes["shard"] == shard].tobytes()


class _Write(beam.DoFn):
    """Writes a shard and its index, unless they exist. Takes (number of the shard, blocks of `_duplicates`)."""

    def __init__(self, planned: Json, tokenizer: BaseTokenizer, output: str) -> None:
        self._plan, self._tokenizer, self._output = planned, tokenizer, output

    def process(self, item: tuple[int, Iterable[bytes]]) -> None:
        number, blocks = item
        duplicates = np.sort(np.frombuffer(b"".join(blocks), _HASH), order=("file", "document"))
        positions = duplicates[["file", "document"]].tolist()
        made_of = digest([self._plan["layout"], self._plan["tokenizer"], self._plan["groups"][number], positions])
        base = os.path.join(self._output, shard_name(number, len(self._plan["groups"])))
        with data_errors(base + ENDING):
            if not _is_complete(base, made_of):
                with replacing(base + ENDING) as temporary:
                    index = self._write(temporary, number, set(positions))
                write_json(base + ".json", {"made_of": made_of} | index, indent=None)

    def _write(self, path: str, number: int, duplicates: set[tuple[int, int]]) -> Json:
        """Writes the shard to `path`; returns its index."""
        counts: collections.Counter[str] = collections.Counter()
        documents = _documents(
            self._plan, number, lambda strings: mark_words(*self._tokenizer.tokenize_with_words(strings))
        )
        files: list[Json] = [{"file": file, "records": []} for file, _, _ in self._plan["groups"][number]]
        # By which languages are sampled. Unpacking a file once more is cheap beside tokenizing it.
        counts["text_bytes"] = sum(check_text_file(file) for file, *_ in self._plan["groups"][number])
        offset = 0
        with tf.io.TFRecordWriter(path) as writer:
            elements = documents.as_numpy_iterator()
            for file, group in itertools.groupby(elements, key=lambda element: int(element[0][0])):
                source = SourceWriter(writer, offset)
                for position, read, (not_utf8, empty), marked, lengths in group:
                    counts.update(sentences_read=int(read), not_utf8=int(not_utf8), empty=int(empty))
                    if tuple(position.tolist()) in duplicates:
                        counts["duplicates"] += 1
                    elif len(lengths):
                        ids, starts = unmark_words(marked)
                        source.write(ids, lengths, starts)
                        counts.update(documents=1, sentences=len(lengths), tokens=len(ids))
                source.close()
                files[file]["records"], offset = source.records, source.offset
        return {"bytes": offset, "counts": counts, "sources": files}


def _documents(
    planned: Json, number: int, tokenize: Callable[[tf.Tensor], tf.RaggedTensor] | None = None
) -> tf.data.Dataset:
    """Dataset of the elements of `readers.read_source` of one shard, in order.

    These are vectors here: (file, document); sentences read; dropped, by kind; tokens or strings; tokens per sentence.
    """

    def read(file: tf.Tensor, path: tf.Tensor) -> tf.data.Dataset:
        def flat(document: tf.Tensor, element: tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            sentences, read, dropped = element
            return tf.stack([file, document]), read, dropped, sentences.values, sentences.row_lengths()

        return read_source(path, planned["layout"], tokenize).enumerate().map(flat)

    paths = [path for path, _, _ in planned["groups"][number]]
    return tf.data.Dataset.from_tensor_slices(paths).enumerate().flat_map(read).with_options(without_tuning())


def _clear(output: str, plan_digest: str, count: int) -> None:
    """Creates `output` or removes leftovers of interrupted runs; a corpus of another plan there is a ConfigError."""
    tf.io.gfile.makedirs(output)
    path = os.path.join(output, DESCRIPTION)
    if tf.io.gfile.exists(path) and read_json(path, Description)["plan"] != plan_digest:
        raise ConfigError(f"{output} has a corpus of other files or settings; choose another --output or remove it")
    for name in tf.io.gfile.listdir(output):
        # Not any name that looks like a leftover, such as that of a download.
        final = final_name(name)
        own = re.fullmatch(rf"\d{{5}}-of-(\d{{5}})(?:{ENDING}|\.json)|{re.escape(DESCRIPTION)}", final or name)
        if own and final:
            tf.io.gfile.rmtree(os.path.join(output, name))
        elif own and own[1] and int(own[1]) != count:
            tf.io.gfile.remove(os.path.join(output, name))


def _least_bytes(planned: Json, output: str) -> float:
    """A lower limit of the bytes that shards still to be written will take."""
    files = [(path, size) for group in planned["groups"] for path, size, _ in group]
    shares = (size * _LEAST_SHARE[path.endswith(".gz")] for path, size in files)
    return sum(shares) - sum(os.path.getsize(path) for path in tf.io.gfile.glob(os.path.join(output, f"*{ENDING}")))


def _is_complete(base: str, made_of: str) -> bool:
    if not tf.io.gfile.exists(base + ".json") or not tf.io.gfile.exists(base + ENDING):
        return False
    try:
        index = read_json(base + ".json", Index)
    except DataError:
        return False  # damaged: the shard is written again
    size = tf.io.gfile.stat(base + ENDING).length
    # Earlier versions did not count the bytes of the text.
    return index["made_of"] == made_of and index["bytes"] == size and "text_bytes" in index["counts"]
