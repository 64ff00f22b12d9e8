"""Atomic file writes: write to a temporary name, then rename. And JSON as this project writes it."""

import contextlib
import glob
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.types import Json, StrPath

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
        os.chmod(temporary, 0o755)
        try:
            if os.path.lexists(path):
                raise FileExistsError
            os.replace(temporary, path)
        except OSError as error:
            if not os.path.lexists(path):
                raise
            raise ConfigError(
                f"{path} was written by another process in the meantime; run the same command again"
            ) from error
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


def read_json(path: StrPath) -> Any:
    """Reads a JSON file."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, numbers with thousands of digits; too deep
        raise DataError(f"{path}: not JSON: {error}") from None


def read_json_object(path: StrPath) -> Json:
    """Reads a JSON file that contains an object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}: a JSON {type(value).__name__}; expected an object, {{...}}")
    return value


def bundled(name: str) -> str:
    """Path of a file or folder that ships with the project, e.g. "data/reviews", in a checkout or installed."""
    package = Path(__file__).parent
    for base in (package, package.parent):
        if (base / name).exists():
            return str(base / name)
    raise DataError(f"{name}: not found next to the package {package}; install the project from its checkout")
