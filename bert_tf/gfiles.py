"""Atomic file writes on every file system that TensorFlow knows: write to a temporary name, then rename."""

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from typing import Any, TypeVar

import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.files import cause, errors_naming, parse_json, short, system_error

# TensorFlow raises these, besides those of `files.system_error`, for files that vanish, are damaged, are not allowed or
# do not fit on the disk or in memory.
SYSTEM_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
)
_T = TypeVar("_T")

PARTIAL = ".part"  # suffix of the temporary names


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields a temporary path next to `path`: renamed to `path` if the block succeeds, removed if it fails."""
    folder, name = os.path.split(path)
    # A runner may have two workers write the same file.
    temporary = os.path.join(folder, f"{short(name)}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        with errors_naming(path, temporary):
            yield temporary
            tf.io.gfile.rename(temporary, path, overwrite=True)
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)


@contextlib.contextmanager
def data_errors(name: str) -> Iterator[None]:
    """Turns errors of the file system into a DataError that begins with `name`; Beam's workers can hand it on."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, SYSTEM_ERRORS) and system_error(error) is None:
            raise
        raise DataError(f"{name}: {cause(error)}") from None


def write_json(path: str, value: Any, indent: int | None = None) -> None:
    """Writes a value as JSON, atomically."""
    with replacing(path) as temporary, tf.io.gfile.GFile(temporary, "w") as file:
        file.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def read_json(path: str, kind: type[_T]) -> _T:
    """Reads and checks a JSON file, as `files.read_json`; tf.errors.NotFoundError if there is none."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return parse_json(file.read(), path, kind)
