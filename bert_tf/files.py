"""Files that are never half written under their final name."""

import contextlib
import glob
import json
import math
import os
import shutil
import tempfile
import time
from pathlib import Path

from bert_tf.errors import BertTfError, ConfigError, DataError

_A_DAY = 24 * 60 * 60.0
_PARTIAL = ".partial"  # how the names end that files have while they are written


@contextlib.contextmanager
def replacing(path):
    """Gives a temporary path beside `path`; when the block ends well it gets the final name, else it is removed."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=f".{os.path.basename(path)}.", suffix=_PARTIAL)
    os.close(handle)
    try:
        yield temporary
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        # A full disk names no file, and the temporary name says little; an error without a number is only text.
        if error.errno and error.filename in (None, temporary):
            error.filename = os.fspath(path)
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)


@contextlib.contextmanager
def replacing_with_others(path, *, adding=False):
    """Gives a temporary path of the same name, alone in its folder.

    When the block ends well, all files that are in that folder then get their final place beside `path`, this one last;
    else they are removed.

    Args:
        path: of a file.
        adding: whether the temporary file begins as a copy of the one that has the name now, if there is one.
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


def leftovers(directory):
    """Paths of what processes that were killed in a `replacing` left in a directory; none if it is not there."""
    return glob.glob(os.path.join(glob.escape(os.fspath(directory)), f".*{_PARTIAL}"))


@contextlib.contextmanager
def replacing_directory(path):
    """The same for a directory, which must not exist yet; errors from the block name it as it would be called.

    What processes that were killed here a day ago or earlier left of directories of this name is removed.
    """
    path = os.path.abspath(path)
    if os.path.lexists(path):  # also a link that leads nowhere
        raise ConfigError(f"{path} exists already; choose another name or remove it")
    parent, name = os.path.split(path)
    os.makedirs(parent, exist_ok=True)
    for leftover in glob.glob(os.path.join(glob.escape(parent), f".{glob.escape(name)}.*{_PARTIAL}")):
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
        os.replace(temporary, path)
    except BertTfError as error:
        raise type(error)(str(error).replace(temporary, path)) from None
    except OSError as error:
        if isinstance(error.filename, str):
            error.filename = error.filename.replace(temporary, path)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path, text):
    """Writes UTF-8 text, whole or not at all."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)


def to_json(value, indent=None):
    """A value as JSON text, which knows no numbers that are not finite: null stands for them, see `nan_for_null`."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value):
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def nan_for_null(value):
    """A value that was read, with nan for each None in it: for what held numbers alone when it was written."""
    if isinstance(value, dict):
        return {name: nan_for_null(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [nan_for_null(inner) for inner in value]
    return math.nan if value is None else value


def write_json(path, value):
    """Writes a value as indented JSON (`to_json`), whole or not at all."""
    write_text(path, to_json(value, indent=1) + "\n")


def read_json(path):
    """Reads a JSON file.

    Raises:
        DataError: if it is missing or not JSON.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, numbers of thousands of digits; too deep
        raise DataError(f"{path}: not JSON: {error}") from None


def read_json_object(path):
    """Reads a JSON file that holds an object.

    Raises:
        DataError: if it is missing, not JSON or another value.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}: a JSON {type(value).__name__}; expected an object, {{...}}")
    return value


def bundled(name):
    """Path of a file or folder that comes with the project, e.g. "data/reviews", in a checkout or installed."""
    package = Path(__file__).parent
    for base in (package, package.parent):
        if (base / name).exists():
            return str(base / name)
    raise DataError(f"{name}: not found beside the package {package}; install the project from its checkout")
