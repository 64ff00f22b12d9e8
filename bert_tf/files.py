"""Atomic file writes: write to a temporary name, then rename. And JSON as this project writes it."""

import contextlib
import glob
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from bert_tf.config.values import half_pairs, misfit
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.types import StrPath

_T = TypeVar("_T")
_RANDOM = 8  # characters that tempfile.mkdtemp puts between prefix and suffix
_A_DAY = 24 * 60 * 60.0
_PARTIAL = ".partial"  # suffix of the temporary names


@contextlib.contextmanager
def replacing(path: StrPath) -> Iterator[str]:
    """Yields a temporary path next to `path`: renamed to `path` if the block succeeds, removed if it fails."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=f".{os.path.basename(path)}.", suffix=_PARTIAL)
    os.close(handle)
    try:
        yield temporary
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        # A full disk names no file, and the temporary name means nothing to the user. Errors without an errno are text.
        if error.errno and error.filename in (None, temporary):
            error.filename = os.fspath(path)
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)


@contextlib.contextmanager
def replacing_with_others(path: StrPath, *, adding: bool = False) -> Iterator[str]:
    """Yields a temporary path with the same name, in a new folder of its own.

    If the block succeeds, all files in that folder move next to `path`, `path` itself last; if it fails, they are
    removed.

    Args:
        path: the file to write.
        adding: whether the temporary file starts as a copy of the existing file, if any.
    """
    directory, name = os.path.split(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    folder = tempfile.mkdtemp(dir=directory, prefix=f".{name}.")
    try:
        if adding and os.path.exists(path):
            shutil.copyfile(path, os.path.join(folder, name))
        yield os.path.join(folder, name)
        for file in sorted(os.listdir(folder), key=name.__eq__):
            os.replace(os.path.join(folder, file), os.path.join(directory, file))
    except OSError as error:
        if error.errno and (error.filename is None or str(error.filename).startswith(folder)):
            error.filename = os.fspath(path)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def leftovers(directory: StrPath) -> list[str]:
    """Temporary files left in a directory by processes killed inside `replacing`; empty if there is no directory."""
    return glob.glob(os.path.join(glob.escape(os.fspath(directory)), f".*{_PARTIAL}"))


@contextlib.contextmanager
def replacing_directory(path: StrPath) -> Iterator[str]:
    """Like `replacing`, for a directory that must not exist yet; errors from the block name the final path.

    Removes temporary directories that were left here by processes killed at least a day ago: those of this name or, if
    it is a number, of any other version. A parent directory that is created for it is removed again on failure.
    """
    path = os.path.abspath(path)
    if os.path.lexists(path):  # true for a dangling link, too
        raise ConfigError(f"{path} already exists; choose another name or remove it")
    parent, name = os.path.split(path)
    parent_existed = os.path.isdir(parent)
    os.makedirs(parent, exist_ok=True)
    left = "[0-9]*" if name.isdecimal() else glob.escape(name)
    for leftover in glob.glob(os.path.join(glob.escape(parent), f".{left}.{'?' * _RANDOM}{_PARTIAL}")):
        with contextlib.suppress(OSError):
            if os.path.getmtime(leftover) < time.time() - _A_DAY:
                shutil.rmtree(leftover)
    try:
        temporary = tempfile.mkdtemp(dir=parent, prefix=f".{name}.", suffix=_PARTIAL)
    except OSError as error:
        error.filename = path
        raise
    try:
        yield temporary
        if os.path.lexists(path):
            raise ConfigError(f"{path} was written by another process in the meantime; run the same command again")
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except BertTfError as error:
        raise type(error)(str(error).replace(temporary, path)) from None
    except OSError as error:
        if isinstance(error.filename, str):
            error.filename = error.filename.replace(temporary, path)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not parent_existed:
            with contextlib.suppress(OSError):
                os.rmdir(parent)  # only if it is empty


def write_text(path: StrPath, text: str) -> None:
    """Writes UTF-8 text atomically."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)


def to_json(value: Any, indent: int | None = None) -> str:
    """A value as JSON text. Numbers that are not finite become null, as JSON has none; see `nan_for_null`."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def nan_for_null(value: Any) -> Any:
    """Reads null back as nan: the inverse of `to_json` for values that had no None when they were written."""
    if isinstance(value, dict):
        return {name: nan_for_null(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [nan_for_null(inner) for inner in value]
    return math.nan if value is None else value


def write_json(path: StrPath, value: Any) -> None:
    """Writes a value as indented JSON (`to_json`), atomically."""
    write_text(path, to_json(value, indent=1) + "\n")


def read_json(path: StrPath, kind: type[_T]) -> _T:
    """Reads a JSON file; `parse_json` says what `kind` is and when this is a DataError."""
    try:
        with open(path, "rb") as file:
            return parse_json(file.read(), path, kind)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise DataError(f"{path}: {reason}") from None


def parse_json(text: str | bytes, location: StrPath, kind: type[_T], line: int = 1) -> _T:
    """Parses JSON and checks what it contains: the only way JSON is read.

    Args:
        text: UTF-8 if it is bytes.
        location: its file, for errors.
        kind: annotation of the expected value as in `misfit`, such as a TypedDict or dict[str, int]; object for
            anything, which is not looked into.
        line: number of its first line in the file.

    Raises:
        DataError: the text is no JSON, or has other content; names file, field, value and what was expected.
    """
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(text)
        # Not for data: only what is read of a record needs to be valid.
        wrong = next(half_pairs(value), None) if kind is not object and re.search(r"\\u[dD][89a-fA-F]", text) else None
    except UnicodeDecodeError as error:
        bad = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise DataError(f"{location}: {bad} is not UTF-8; expected JSON") from None
    except json.JSONDecodeError as error:
        at = f"{location}:{line + error.lineno - 1}"
        raise DataError(f"{at}: not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError):
        what = "lists or objects nested too deeply, or a number with thousands of digits"
        raise DataError(f"{location}:{line}: JSON with {what}; correct it") from None
    if wrong:
        raise DataError(f"{location}: {wrong}")
    return value if kind is object else checked(value, kind, location)


def checked(value: Any, kind: type[_T], location: StrPath, where: str = "") -> _T:
    """A value from JSON at the path `where` of a file, if it fits `kind`; raises as `parse_json`."""
    if wrong := misfit(value, kind, where, in_json=True):
        raise DataError(f"{location}: {wrong}")
    return value


def bundled(name: str) -> str:
    """Path of a file or folder that ships with the project, e.g. "data/reviews", in a checkout or installed."""
    package = Path(__file__).parent
    for base in (package, package.parent):
        if (base / name).exists():
            return str(base / name)
    raise DataError(f"{name}: not found next to the package {package}; install the project from its checkout")
