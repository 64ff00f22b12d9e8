"""Sharded predictions: files of consecutive rows that are either whole or absent, and that a later run can trust.

    labels-00000-of-00007.jsonl, ...    predictions, in the order of the input
    labels.jsonl.shards/00000.json, ... what each shard was made of
    labels.jsonl.shards/00000.rows, ... examples that are yet to be answered; removed at the end

The rows are copied there so that a worker reads only its own, from a place that all workers reach. Where the input
comes from (standard input, a local file, TFDS) concerns only the process that started.
"""

import hashlib
import json
import os
import re
import tempfile
import zlib
from typing import NamedTuple

import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.gfiles import PARTIAL, read_json, replacing, write_json
from bert_tf.inputs.corpus.shards import digest
from bert_tf.inputs.datasets.examples import QuestionExample

# A shard is minutes of work, so that a restart repeats little, and small enough to be held in memory with its answers,
# which are ten times as long as the text where each word has one.
SHARD_ROWS, SHARD_BYTES = 10_000, 1 << 23
_COPIED = 1 << 20  # bytes at a time


class Shard(NamedTuple):
    """A range of rows.

    Attributes:
        rows: how many.
        made_of: digest of the rows and of everything else that the predictions depend on.
    """

    rows: int
    made_of: str


class Shards:
    """The shards of one output.

    Args:
        output: path that the shards' names are made of, on any file system that TensorFlow knows.
        example: the kind of the rows, such as TextExample.
        shards: list of Shard, in order.
    """

    def __init__(self, output, example, shards):
        self._output, self._example, self._shards = output, example, shards

    def __len__(self):
        return len(self._shards)

    def rows(self, number):
        """Rows of a shard: int."""
        return self._shards[number].rows

    def path(self, number):
        """Path of a shard."""
        stem, ending = os.path.splitext(self._output)
        return f"{stem}-{number:05d}-of-{len(self):05d}{ending}"

    def is_whole(self, number):
        """Whether a shard has been written, of these very rows and settings."""
        path = _description(self._output, number)
        if not tf.io.gfile.exists(path):
            return False
        description = read_json(path)
        folder = os.path.dirname(self._output)
        sizes = {os.path.join(folder, name): size for name, size in description["files"].items()}
        return (
            description["made_of"] == self._shards[number].made_of
            and self.path(number) in sizes
            and all(tf.io.gfile.exists(file) and tf.io.gfile.stat(file).length == sizes[file] for file in sizes)
        )

    def examples(self, number):
        """list: the rows of a shard."""
        with tf.io.gfile.GFile(_staged(self._output, number), "rb") as file:
            lines = zlib.decompress(file.read()).decode().split("\n")  # a text may hold other ends of lines
        return [_unpacked(line, self._example) for line in lines]

    def write(self, number, predictions, writer):
        """Writes what a shard is made of, then the shard.

        Args:
            number: of the shard.
            predictions: iterable of dicts, one a row, in order.
            writer: function of (path, iterable of (example, prediction)), as in `FineTuningTask.writers`.

        Raises:
            DataError: a file could not be written.
        """
        path = self.path(number)
        folder, name = os.path.split(path)
        try:
            # The writers know only local files.
            with tempfile.TemporaryDirectory() as local:
                writer(os.path.join(local, name), zip(self.examples(number), predictions, strict=True))
                sizes = {file: os.path.getsize(os.path.join(local, file)) for file in os.listdir(local)}
                # Described first: once a shard has its name, a later run believes it.
                write_json(
                    _description(self._output, number), {"made_of": self._shards[number].made_of, "files": sizes}
                )
                for file in sorted(sizes, key=name.__eq__):  # this one last, after those that belong to it
                    with replacing(os.path.join(folder, file)) as temporary:
                        _copy(os.path.join(local, file), temporary)
        except tf.errors.OpError as error:
            raise DataError(f"{path}: {error.message}") from None
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from None

    def begin(self):
        """Removes everything that is no whole shard of this output; what has a shard's name is then to be believed.

        Returns:
            list of int: the shards that are to be made.
        """
        whole = [number for number in range(len(self)) if self.is_whole(number)]
        kept = {os.path.basename(_description(self._output, number)) for number in whole}
        for number in whole:
            kept |= read_json(_description(self._output, number))["files"].keys()
        kept |= {os.path.basename(_staged(self._output, number)) for number in {*range(len(self))} - {*whole}}
        stem, ending = os.path.splitext(os.path.basename(self._output))
        # Beside NAME.json a task may write NAME.more.json.
        shard = re.compile(rf"{re.escape(stem)}-\d{{5,}}-of-\d{{5,}}(\.\w+)?{re.escape(ending)}(\.\w+{PARTIAL})?")
        for folder, pattern in ((os.path.dirname(self._output), shard), (_folder(self._output), re.compile(".*"))):
            for name in tf.io.gfile.listdir(folder or "."):
                if pattern.fullmatch(name) and name not in kept:
                    tf.io.gfile.remove(os.path.join(folder, name))
        return [number for number in range(len(self)) if number not in set(whole)]

    def finish(self):
        """Removes the copies of the rows.

        Raises:
            DataError: a shard is missing.
        """
        missing = [self.path(number) for number in range(len(self)) if not self.is_whole(number)]
        if missing:
            raise DataError(
                f"{missing[0]}: not written, and {len(missing) - 1:,} more; run the same command again to resume"
            )
        for number in range(len(self)):
            if tf.io.gfile.exists(_staged(self._output, number)):
                tf.io.gfile.remove(_staged(self._output, number))


def stage(output, examples, kind, settings, check):
    """Reads all examples once and copies them beside the output, a file a shard.

    Args:
        output: as for `Shards`.
        examples: iterable; one shard of it is in memory at a time.
        kind: of the examples, such as TextExample.
        settings: JSON-ready, everything besides the rows that the predictions depend on.
        check: function of a list of examples that raises what is wrong with them.

    Returns:
        Shards.

    Raises:
        BertTfError: as the readers or `check`; there are no examples.
    """
    tf.io.gfile.makedirs(_folder(output))
    shards = []
    for rows in _ranges(examples):
        check([example for example, _ in rows])
        content = hashlib.sha256()
        for _, line in rows:
            content.update(line.partition(b"\t")[0] + b"\n")
        with replacing(_staged(output, len(shards))) as temporary, tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(zlib.compress(b"\n".join(line for _, line in rows), 1))
        shards.append(Shard(len(rows), digest([settings, content.hexdigest()])))
    if not shards:
        raise DataError("no examples to answer; expected at least one")
    return Shards(output, kind, shards)


def _ranges(examples):
    """Lists of (example, its line) that make a shard each."""
    rows, size = [], 0
    for example in examples:
        line = _packed(example)
        if rows and (len(rows) == SHARD_ROWS or size + len(line) > SHARD_BYTES):
            yield rows
            rows, size = [], 0
        rows.append((example, line))
        size += len(line)
    if rows:
        yield rows


def _packed(example):
    """A line of JSON, bytes; after a tab the example's location, which says nothing of what the answer is."""
    if isinstance(example, QuestionExample):
        example = example._replace(answers=None)  # nothing that is written depends on them
    *fields, location = example
    return "\t".join(json.dumps(part, ensure_ascii=False) for part in (fields, location)).encode()


def _unpacked(line, kind):
    fields, _, location = line.partition("\t")
    return kind(
        *(tuple(value) if isinstance(value, list) else value for value in json.loads(fields)), json.loads(location)
    )


def _copy(source, target):
    with open(source, "rb") as read, tf.io.gfile.GFile(target, "wb") as written:
        while block := read.read(_COPIED):
            written.write(block)


def _folder(output):
    return f"{output}.shards"


def _description(output, number):
    return os.path.join(_folder(output), f"{number:05d}.json")


def _staged(output, number):
    return os.path.join(_folder(output), f"{number:05d}.rows")
