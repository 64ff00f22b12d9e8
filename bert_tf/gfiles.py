"""Atomic file writes on every file system that TensorFlow knows: write to a temporary name, then rename."""

import contextlib
import json
import uuid
from collections.abc import Iterator
from typing import Any, TypeVar

import tensorflow as tf

from bert_tf.files import parse_json

_T = TypeVar("_T")

PARTIAL = ".part"  # suffix of the temporary names


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields a temporary path next to `path`: renamed to `path` if the block succeeds, removed if it fails."""
    temporary = f"{path}.{uuid.uuid4().hex}{PARTIAL}"  # a runner may have two workers write the same file
    try:
        yield temporary
        tf.io.gfile.rename(temporary, path, overwrite=True)
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)


def write_json(path: str, value: Any, indent: int | None = None) -> None:
    """Writes a value as JSON, atomically."""
    with replacing(path) as temporary, tf.io.gfile.GFile(temporary, "w") as file:
        file.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def read_json(path: str, kind: type[_T]) -> _T:
    """Reads and checks a JSON file, as `files.read_json`; tf.errors.NotFoundError if there is none."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return parse_json(file.read(), path, kind)
