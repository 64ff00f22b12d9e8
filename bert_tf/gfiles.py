"""Atomic file writes on every file system that TensorFlow knows: write to a temporary name, then rename."""

import contextlib
import json
import uuid
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

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


def read_json(path: str) -> Any:
    """Reads a JSON file written by `write_json`."""
    with tf.io.gfile.GFile(path) as file:
        return json.load(file)
