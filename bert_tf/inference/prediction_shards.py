"""Sharded predictions: each output file is either complete or absent, and later runs can tell which.

    labels-00000-of-00007.jsonl, ...    predictions, in the order of the input
    labels.jsonl.shards/00000.json, ... what each shard was made from
    labels.jsonl.shards/00000.rows, ... examples still to be answered; removed at the end

The rows are copied there so that each worker reads only its own, from storage that all workers can reach. The source of
the input (standard input, a local file, TFDS) concerns only the process that starts the pipeline.
"""

import contextlib
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypedDict

import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.files import (
    check_output,
    data_errors,
    final_name,
    read_json,
    replacing,
    temporary_directory,
    write_json,
)
from bert_tf.inputs.datasets.examples import QuestionExample
from bert_tf.inputs.identity import digest
from bert_tf.memory import in_chunks
from bert_tf.types import Json, Writer

# A shard takes minutes, so that a restart repeats little, and fits in memory with its answers, which are ten times as
# long as the text if each word has one.
SHARD_ROWS, SHARD_BYTES = 10_000, 1 << 23
_OWN_FILE = re.compile(r"\d{5,}\.(json|rows)")


class _Description(TypedDict):
    made_of: str
    files: dict[str, int]  # sizes by name


class Shard(NamedTuple):
    """A range of rows.

    Attributes:
        rows: number of rows.
        made_of: digest of the rows and of everything else that determines the predictions.
    """

    rows: int
    made_of: str


class Shards:
    """The shards of one output.

    Args:
        output: path from which the names of the shards are derived, on any file system that TensorFlow knows.
        example: type of the rows, such as TextExample.
        shards: in the order of the input.
    """

    def __init__(self, output: str, example: type, shards: list[Shard]) -> None:
        self._output, self._example, self._shards = output, example, shards

    def __len__(self) -> int:
        return len(self._shards)

    def rows(self, number: int) -> int:
        """Number of rows of a shard."""
        return self._shards[number].rows

    def path(self, number: int) -> str:
        """Path of a shard."""
        stem, extension = os.path.splitext(self._output)
        return f"{stem}-{number:05d}-of-{len(self):05d}{extension}"

    def is_complete(self, number: int) -> bool:
        """Whether a shard has been written, from exactly these rows and settings."""
        with data_errors(f"--output={self._output}"):
            description = _read_description(_description(self._output, number))
            if description is None:
                return False
            folder = os.path.dirname(self._output)
            sizes = {os.path.join(folder, name): size for name, size in description["files"].items()}
            return (
                description["made_of"] == self._shards[number].made_of
                and self.path(number) in sizes
                and all(tf.io.gfile.exists(file) and tf.io.gfile.stat(file).length == sizes[file] for file in sizes)
            )

    def examples(self, number: int) -> list[Any]:
        """The rows of a shard."""
        made_of, lines = "", []
        with (
            contextlib.suppress(tf.errors.NotFoundError, zlib.error, UnicodeDecodeError),
            tf.io.gfile.GFile(_staged(self._output, number), "rb") as file,
        ):
            made_of, *lines = zlib.decompress(file.read()).decode().split("\n")  # a text may contain other line ends
        if made_of != self._shards[number].made_of:
            raise DataError(
                f"{_staged(self._output, number)}: not the rows of this run; another run with the same --output has "
                "replaced them, or they are damaged: choose another --output for one of the two, and run the same "
                "command again"
            )
        return [_unpacked(line, self._example) for line in lines]

    def write(self, number: int, predictions: Iterable[Json], writer: Writer) -> None:
        """Writes the description of a shard, then the shard.

        Args:
            number: of the shard.
            predictions: one per row, in order.
            writer: one of those that `FineTuningTask.writers` returns.
        """
        path = self.path(number)
        folder, name = os.path.split(path)
        with data_errors(path), temporary_directory() as local:  # the writers know only local files
            writer(os.path.join(local, name), zip(self.examples(number), predictions, strict=True))
            sizes = {file: os.path.getsize(os.path.join(local, file)) for file in os.listdir(local)}
            # The description comes first: a later run trusts a shard that has its final name.
            description = {"made_of": self._shards[number].made_of, "files": sizes}
            write_json(_description(self._output, number), description, indent=None)
            for file in sorted(sizes, key=name.__eq__):  # this one last, after those that belong to it
                with replacing(os.path.join(folder, file)) as temporary:
                    tf.io.gfile.copy(os.path.join(local, file), temporary)

    def begin(self) -> list[int]:
        """Removes what earlier runs left of this output, except for its complete shards.

        Returns:
            Numbers of the shards that are still to be made.

        Raises:
            ConfigError: a file has the name of a shard, but is none of this output that is known or still to be made.
        """
        missing = [number for number in range(len(self)) if not self.is_complete(number)]
        complete = set(range(len(self))).difference(missing)
        folder, own = os.path.dirname(self._output), _folder(self._output)
        with data_errors(f"--output={self._output}"):
            names = [name for name in tf.io.gfile.listdir(own) if _OWN_FILE.fullmatch(final_name(name) or name)]
            described = {name: _read_description(os.path.join(own, name)) for name in names if name.endswith(".json")}
            files = {name: set(found["files"]) for name, found in described.items() if found}
            written = set().union(*files.values())  # by this run or an earlier one
            descriptions = {os.path.basename(_description(self._output, number)) for number in complete}
            kept = descriptions.union(*(files[name] for name in descriptions))
            kept |= {os.path.basename(_staged(self._output, number)) for number in missing}
            stem, extension = os.path.splitext(os.path.basename(self._output))
            # Next to NAME.json a task may write NAME.more.json.
            shard = rf"{re.escape(stem)}-\d{{5,}}-of-\d{{5,}}(\.\w+)?{re.escape(extension)}"
            listed = tf.io.gfile.listdir(folder or ".")
            present = [name for name in listed if re.fullmatch(shard, final_name(name) or name)]
            due = tuple(f"{stem}-{number:05d}-of-{len(self):05d}." for number in missing)
            foreign = [name for name in present if name not in written and not name.startswith(due)]
            foreign = [name for name in foreign if not final_name(name)]
            if foreign:
                raise ConfigError(
                    f"{os.path.join(folder, min(foreign))} has the name of a shard of this output, but no run is known "
                    "to have written it; move it away or choose another --output"
                )
            for where, found in ((folder, present), (own, names)):
                for name in found:
                    if name not in kept:
                        remove = tf.io.gfile.rmtree if final_name(name) else tf.io.gfile.remove
                        remove(os.path.join(where, name))
        return missing

    def finish(self) -> None:
        """Removes the copies of the rows.

        Raises:
            DataError: a shard is missing.
        """
        missing = [self.path(number) for number in range(len(self)) if not self.is_complete(number)]
        if missing:
            more = f", and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise DataError(f"{missing[0]}: not written{more}; run the same command again to resume")
        with data_errors(f"--output={self._output}"):
            for number in range(len(self)):
                if tf.io.gfile.exists(_staged(self._output, number)):
                    tf.io.gfile.remove(_staged(self._output, number))


def stage(
    output: str, examples: Iterable[Any], kind: type, settings: Any, check: Callable[[list[Any]], None]
) -> Shards:
    """Reads all examples once and copies them next to the output, one file per shard.

    Args:
        output: as for `Shards`.
        examples: one shard of it is in memory at a time.
        kind: type of the examples, such as TextExample.
        settings: JSON-ready; everything besides the rows that determines the predictions.
        check: raises an error for examples that cannot be answered.
    """
    if "://" not in output:
        check_output(_folder(output), directory=True)
    with data_errors(f"--output={output}"):
        tf.io.gfile.makedirs(_folder(output))
    shards: list[Shard] = []
    packed = ((example, _packed(example)) for example in examples)
    for rows in in_chunks(packed, SHARD_ROWS, SHARD_BYTES, lambda row: len(row[1])):
        check([example for example, _ in rows])
        content = hashlib.sha256()
        for _, line in rows:
            content.update(line.partition(b"\t")[0] + b"\n")
        shards.append(Shard(len(rows), digest([settings, content.hexdigest()])))
        path = _staged(output, len(shards) - 1)
        with (
            data_errors(f"--output={output}"),
            replacing(path) as temporary,
            tf.io.gfile.GFile(temporary, "wb") as file,
        ):
            file.write(zlib.compress(b"\n".join([shards[-1].made_of.encode(), *(line for _, line in rows)]), 1))
    if not shards:
        raise DataError("no examples to answer; expected at least one")
    return Shards(output, kind, shards)


def _packed(example: Any) -> bytes:
    """A line of JSON; the location of the example, which does not affect its answer, follows after a tab."""
    if isinstance(example, QuestionExample):
        example = example._replace(answers=None)  # nothing that is written depends on them
    *fields, location = example
    return "\t".join(json.dumps(part, ensure_ascii=False) for part in (fields, location)).encode()


def _unpacked(line: str, kind: type) -> Any:
    fields, _, location = line.partition("\t")
    values = (tuple(value) if isinstance(value, list) else value for value in json.loads(fields))
    return kind(*values, json.loads(location))


def _read_description(path: str) -> _Description | None:
    """The description of a shard; None if it is missing or damaged, as a crash or a full disk may leave it."""
    try:
        return read_json(path, _Description)
    except DataError:
        return None


def _folder(output: str) -> str:
    return f"{output}.shards"


def _description(output: str, number: int) -> str:
    return os.path.join(_folder(output), f"{number:05d}.json")


def _staged(output: str, number: int) -> str:
    return os.path.join(_folder(output), f"{number:05d}.rows")
