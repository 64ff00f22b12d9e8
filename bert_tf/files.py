"""Atomic file writes: write to a temporary name, then rename. Whole files read, and JSON as this project writes it.

Paths with a scheme, such as gs://, are on the file systems that TensorFlow knows; it is imported for these only.
"""

import contextlib
import errno
import functools
import glob
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bert_tf.config.values import half_pairs, misfit, shown
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.locks import abandoned, locked
from bert_tf.progress import log
from bert_tf.types import StrPath

_T = TypeVar("_T")
_RANDOM = 8  # characters between the start of a temporary name and its suffix
_ANY = "?" * _RANDOM
_A_DAY = 24 * 60 * 60.0
_PATIENCE = 5.0  # seconds, while another process looks whether a folder is locked
_PARTIAL = ".partial"  # suffix of the temporary names
_NAME_BYTES = 200  # of a name in a temporary name; file systems allow 255 for all of it
_MESSAGE = 20_000  # characters of a message of TensorFlow
_POINTER = b"version https://git-lfs"
MOST_GRAPH = 1 << 31  # bytes of a protocol buffer, which may hold weights
_MOST_BYTES = 1 << 28  # of a file that is read whole: vocabularies and settings have a tenth of it
_DESCRIPTOR = re.compile(r"/dev/std(in|out|err)|(/dev|/proc/self)/fd/\d+")
_CODES = {os.strerror(code): code for code in errno.errorcode}
# "FILE; No space left on device", at the start of a line or after the name of a graph node.
_TENSORFLOW = re.compile(rf"^(?:\{{\{{.*?\}}\}} )?(.*); ({'|'.join(map(re.escape, _CODES))})\b", re.MULTILINE)
# Of file systems that cannot be reached, or that TensorFlow lacks; their classes have other meanings, too.
_REMOTE = re.compile("Error executing an HTTP request|File system scheme '.*' not implemented")


def system_error(error: Exception) -> OSError | None:
    """The error of the operating system that an OSError or one of TensorFlow's errors reports; None for others."""
    if isinstance(error, OSError):
        return error
    found = _TENSORFLOW.search(_message(error))
    return OSError(_CODES[found[2]], found[2], found[1]) if found else None


def is_system_error(error: Exception) -> bool:
    """Whether an error is of a file system: a file that vanished, is damaged, not allowed, or does not fit."""
    if system_error(error):
        return True
    import tensorflow as tf

    found = tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError
    if isinstance(error, tf.errors.OpError) and _REMOTE.search(_message(error)):
        return True
    return isinstance(error, (*found, tf.errors.ResourceExhaustedError))


@contextlib.contextmanager
def data_errors(name: str) -> Iterator[None]:
    """Turns errors of the file system into a DataError that begins with `name`; Beam's workers can hand it on."""
    try:
        yield
    except Exception as error:
        if not is_system_error(error):
            raise
        raise DataError(f"{name}: {cause(error)}") from None


def _message(error: Exception, otherwise: str = "") -> str:
    """The message of one of TensorFlow's errors, but not all of a long one: searches in it take quadratic time."""
    return getattr(error, "message", otherwise)[:_MESSAGE]


def cause(error: Exception) -> str:
    """Why a file could not be read or written, in one line without names of files and graph nodes."""
    found = system_error(error)
    if found:
        return found.strerror or str(found)
    text = re.sub(r"\{\{.*?\}\} ?", "", _message(error, str(error)).split("[[")[0])
    lines = text.partition(" [Op:")[0].strip().splitlines()
    return " ".join(line.strip() for line in (lines if _REMOTE.search(text) else lines[-1:]))[:300]


@contextlib.contextmanager
def errors_naming(path: str, temporary: str) -> Iterator[None]:
    """Errors inside name the file or directory `path` instead of `temporary`; TensorFlow's become OSErrors."""
    try:
        yield
    except BertTfError as error:
        if temporary in str(error):
            error.args = (str(error).replace(temporary, path),)
        raise
    except Exception as error:
        found = system_error(error)
        if not (found and found.errno):  # errors without an errno are text
            raise
        named = str(found.filename or "")  # a full disk names no file
        if found is error:
            found.filename = named.replace(temporary, path) or path
            raise
        # TensorFlow also has temporary files of its own.
        found.filename = path if named.startswith((temporary, path)) else named
        raise found from None


def _existing(path: StrPath) -> str:
    """The nearest of a path and its parents that exists."""
    found = os.path.abspath(path)
    while not os.path.lexists(found):
        found = os.path.dirname(found)
    return found


def text_path(path: StrPath) -> str:
    """The path as text; raises ConfigError for what is no path."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise ConfigError(f"the path is {shown(path)}; expected text or a pathlib.Path")
    if re.search("[\ud800-\udfff]", text):
        raise ConfigError(f"the path {text!a} is not UTF-8; expected one that is, as TensorFlow's are")
    if not text:
        raise ConfigError("the path is empty; give one")
    return text


def check_output(path: StrPath, *, directory: bool = False, new: bool = False, inputs: Iterable[StrPath] = ()) -> None:
    """Refuses an output that cannot be written or would replace an input, before the work begins; changes nothing.

    Args:
        path: a local file, or a directory to write files into.
        directory: whether it is a directory.
        new: whether it must not exist yet.
        inputs: files that are read, or that belong to them, under any of their names: links are followed. The output
            must not be one of these, nor a directory that holds one.

    Raises:
        ConfigError: it cannot be written, or is an input.
    """
    if "://" in text_path(path):
        raise ConfigError(f"{path}: only local files are written; choose a local path and copy the result afterwards")
    if new and os.path.lexists(path):  # true for a dangling link, too
        raise ConfigError(f"{path} already exists; choose another name or remove it")
    if directory and os.path.lexists(path) and not os.path.isdir(path):
        raise ConfigError(f"{path} is not a directory; choose another path")
    if not directory and os.path.isdir(path):
        raise ConfigError(f"{path} is a directory; expected a file to write")
    _refuse_special(path)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.stat(path)  # a name that is too long, a link to itself, a file as a parent
            for one in inputs:
                if _is_input(path, one, directory=directory):
                    what = "holds" if directory else "is"
                    raise ConfigError(f"{path} {what} the input {one}, which could be replaced; choose another path")
        # Only a try shows whether a file system, its quota and the permissions allow it.
        with tempfile.TemporaryFile(dir=_existing(path if directory else os.path.dirname(os.path.realpath(path)))):
            pass
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose another path") from None


def _is_input(path: StrPath, file: StrPath, *, directory: bool) -> bool:
    """Whether an existing output is this file, or the directory in which it is."""
    with contextlib.suppress(OSError):
        return os.path.samefile(path, os.path.dirname(os.path.abspath(file)) if directory else file)
    return False


def check_own_directory(path: StrPath, signs: Iterable[str], what: str) -> None:
    """Refuses a directory with files of somebody else, among which there may be some with the names of ours.

    Args:
        path: need not exist.
        signs: patterns of files in it, one of which shows that the directory is ours.
        what: what a directory of ours holds: "model".

    Raises:
        ConfigError: it has files, but none of the signs; hidden ones do not count.
    """
    found = sorted(name for name in os.listdir(path) if not name.startswith(".")) if os.path.isdir(path) else []
    if found and not any(glob.glob(os.path.join(glob.escape(os.fspath(path)), sign)) for sign in signs):
        raise ConfigError(f"{path} is not empty (it holds {found[0]!r}) and has no {what} of bert_tf; choose another "
                          "directory")  # fmt: skip


def require_space(directory: StrPath, needed: float, what: str) -> None:
    """Refuses to begin if a disk has clearly too little room.

    Args:
        directory: to write into; need not exist yet.
        needed: bytes, rather too few than too many.
        what: what needs them: "the model".

    Raises:
        DataError: fewer bytes are free.
    """
    disk = shutil.disk_usage(_existing(directory))
    if disk.total and disk.free < needed:  # some network file systems report 0 for both
        raise DataError(
            f"{directory}: {what} takes at least {needed:,.0f} bytes, and {disk.free:,} are free; make room or choose "
            "another directory"
        )


def _refuse_special(path: StrPath) -> None:
    """Raises ConfigError for a pipe, a device or an open file such as /dev/stdout: they would be replaced by a file."""
    special = _DESCRIPTOR.fullmatch(os.path.abspath(path)) is not None
    with contextlib.suppress(OSError):
        mode = os.stat(path).st_mode
        special |= not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    if special:
        raise ConfigError(f"{path} is a pipe, a device or an open file; expected the name of a file to write")


class _FileSystem(NamedTuple):
    makedirs: Callable[[str], None]
    listdir: Callable[[str], list[str]]
    rename: Callable[[str, str], None]
    rmtree: Callable[[str], None]
    open: Callable[..., Any]


_LOCAL = _FileSystem(
    functools.partial(os.makedirs, exist_ok=True),
    os.listdir,
    os.replace,
    functools.partial(shutil.rmtree, ignore_errors=True),
    open,
)


def _file_system(path: str) -> _FileSystem:
    if "://" not in path:
        return _LOCAL
    import tensorflow as tf

    files = tf.io.gfile
    return _FileSystem(
        files.makedirs, files.listdir, functools.partial(files.rename, overwrite=True), files.rmtree, files.GFile
    )


@contextlib.contextmanager
def temporary_directory() -> Iterator[str]:
    """Yields a folder in TMPDIR, or where the system has its temporary files, that is removed afterwards."""
    try:
        folder = tempfile.TemporaryDirectory()
    except OSError as error:  # Python looks for a place that can be written
        place = f" to {os.path.dirname(error.filename)}" if error.filename else ""
        raise ConfigError(
            f"no temporary files can be written{place} ({cause(error)}); set TMPDIR to a folder with room"
        ) from None
    with folder as path:
        yield path


@contextlib.contextmanager
def replacing(path: StrPath, *, adding: bool = False) -> Iterator[str]:
    """Yields a temporary path with the same name, in a new folder of its own.

    If the block succeeds, all files in that folder move next to `path`, `path` itself last; if it fails, they are
    removed. A link stays, and the file that it points to is replaced.

    Args:
        path: the file to write, on any file system that TensorFlow knows.
        adding: whether the temporary file starts as a copy of the existing local file, if any.
    """
    path = os.fspath(path)
    files = _file_system(path)
    is_local = files is _LOCAL
    if is_local:
        _refuse_special(path)
    directory, name = os.path.split(os.path.realpath(path) if is_local else path)
    if is_local:  # what processes left that were killed
        remove_abandoned(directory, glob.escape(_prefix(name)), by_age=True)
    folder = _temporary_folder(path, directory, name)
    temporary = os.path.join(folder, name)
    try:
        with errors_naming(directory, folder), errors_naming(path, temporary):
            with locked(folder, _PATIENCE):
                if adding and os.path.exists(path):
                    shutil.copyfile(path, temporary)
                yield temporary
            for file in sorted(files.listdir(folder), key=name.__eq__):
                written = os.path.join(folder, file)
                if is_local:
                    os.chmod(written, 0o644)
                files.rename(written, os.path.join(directory, file))
    finally:
        files.rmtree(folder)


def _temporary_folder(path: str, parent: str, name: str) -> str:
    """A new folder in `parent` for what will be written to `path`."""
    # Beam may have two workers write the same file.
    folder = os.path.join(parent, f"{_prefix(name)}{secrets.token_hex(_RANDOM // 2)}{_PARTIAL}")
    with errors_naming(path, folder):
        _file_system(path).makedirs(folder)
    return folder


def _prefix(name: str) -> str:
    """The start of the temporary names for a file or directory."""
    return f".{os.fsencode(name)[:_NAME_BYTES].decode(errors='ignore')}."


def final_name(name: str) -> str:
    """The name of a file that a process was writing inside `replacing` when it was killed; "" for other names.

    Args:
        name: of a temporary folder, as in the list of a directory; only the first 200 bytes of a name are in it.
    """
    found = re.fullmatch(rf"\.(.+)\.\w{{{_RANDOM}}}{re.escape(_PARTIAL)}/?", name)
    return found[1] if found else ""


def numbers_of(directory: StrPath, before: str, after: str) -> list[int]:
    """The numbers N of the files BEFORE + N + AFTER in a directory, ascending."""
    pattern = os.path.join(glob.escape(os.fspath(directory)), f"{glob.escape(before)}*{glob.escape(after)}")
    names = (os.path.basename(path).removeprefix(before).removesuffix(after) for path in glob.glob(pattern))
    return sorted(int(name) for name in names if name.isdecimal())


def remove_leftovers(directory: StrPath) -> None:
    """Removes the folders that processes killed inside `replacing` left in a directory that this process has locked."""
    for path in _temporary_folders(directory, ".*."):
        shutil.rmtree(path)


def remove_abandoned(directory: StrPath, prefix: str = ".*.", *, by_age: bool = False) -> None:
    """As `remove_leftovers` in a directory into which others may be writing at the same time: locks tell them apart.

    Args:
        directory: need not exist.
        prefix: pattern of the start of the folders' names.
        by_age: whether folders without a lock, as on file systems that have none, are removed when they are a day old.
    """
    for path in _temporary_folders(directory, prefix):
        with contextlib.suppress(OSError):
            dead = abandoned(path)
            if dead or (by_age and dead is None and os.path.getmtime(path) < time.time() - _A_DAY):
                shutil.rmtree(path)


def _temporary_folders(directory: StrPath, prefix: str) -> list[str]:
    found = glob.glob(os.path.join(glob.escape(os.fspath(directory)), f"{prefix}{_ANY}{_PARTIAL}"))
    return [path for path in found if os.path.isdir(path)]


@contextlib.contextmanager
def replacing_directory(path: StrPath) -> Iterator[str]:
    """Like `replacing`, for a directory that must not exist yet; errors from the block name the final path.

    Removes temporary directories that killed processes left here: those of this name or, if it is a number, of any
    other version. A parent directory that is created for it is removed again on failure.
    """
    check_output(path, directory=True, new=True)
    path = os.path.abspath(path)
    parent, name = os.path.split(path)
    parent_existed = os.path.isdir(parent)
    os.makedirs(parent, exist_ok=True)
    remove_abandoned(parent, ".[0-9]*." if name.isdecimal() else glob.escape(_prefix(name)), by_age=True)
    temporary = _temporary_folder(path, parent, name)
    try:
        with errors_naming(path, temporary):
            with locked(temporary, _PATIENCE):
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
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not parent_existed:
            with contextlib.suppress(OSError):
                os.rmdir(parent)  # only if it is empty


def write_text(path: StrPath, text: str) -> None:
    """Writes UTF-8 text atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: StrPath, content: bytes) -> None:
    """Writes a file atomically."""
    with replacing(path) as temporary, _file_system(temporary).open(temporary, "wb") as file:
        file.write(content)


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


def write_json(path: StrPath, value: Any, indent: int | None = 1) -> None:
    """Writes a value as JSON (`to_json`), atomically."""
    write_text(path, to_json(value, indent) + "\n")


def check_file(path: StrPath, hint: str = "") -> None:
    """Refuses what has the name of a file and is none, before it is read: every reader begins with this.

    Args:
        path: local; it need not exist, and may be a directory.
        hint: the end of the error.

    Raises:
        DataError: a pipe or a device, which could be waited for or read for ever; or a pointer of Git LFS.
    """
    with contextlib.suppress(OSError):
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise DataError(f"{path}: a pipe or device, expected a file{hint}")
        with open(path, "rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise DataError(f"{path}: a pointer of Git LFS, expected the file itself; get it: git lfs pull")


def read_bytes(path: StrPath, expected: str = "", most: int = _MOST_BYTES, *, pipes: bool = False) -> bytes:
    """Reads a whole file into memory.

    Args:
        path: on any file system that TensorFlow knows.
        expected: what it should be, for errors: "a vocab.txt".
        most: bytes.
        pipes: whether it may be a pipe, as secrets often are.

    Raises:
        DataError: there is no such file, `check_file` refuses it, it has more bytes, or cannot be read.
    """
    path, hint = text_path(path), f"; expected {expected}" if expected else ""
    files = _file_system(path)
    if files is _LOCAL and not pipes:
        check_file(path)
    try:
        with files.open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size if files is _LOCAL else file.size()
            content: bytes = b"" if size > most else file.read(most + 1 if pipes else -1)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file{hint}") from None
    except Exception as error:
        if not is_system_error(error):
            raise
        raise DataError(f"{path}: {cause(error)}{hint}") from None
    if max(size, len(content)) > most:
        raise DataError(f"{path}: more than {most:,} bytes{hint}")
    return content


def checksum(content: bytes | memoryview, before: str = "0") -> str:
    """CRC-32 as 8 hexadecimal digits, of a file or of the next part of one: two gigabytes per second.

    Args:
        content: bytes.
        before: the result for the parts before it.
    """
    return f"{zlib.crc32(content, int(before, 16)):08x}"


def check_unchanged(path: StrPath, content: bytes, expected: str, listed: str) -> None:
    """Raises DataError for a file that was damaged, or changed, since its checksum was written.

    Args:
        path: of the file, for the error.
        content: its bytes.
        expected: its checksum.
        listed: the file that lists the checksum.
    """
    if (found := checksum(content)) != expected:
        raise DataError(
            f"{path} was changed after the model was written (CRC-32 {found}, expected {expected}): get it again; if "
            f"the change is intended, remove {os.path.basename(path)!r} under 'crc32' in {listed}"
        )


def read_json(path: StrPath, kind: type[_T]) -> _T:
    """Reads a JSON file; `parse_json` says what `kind` is and when this is a DataError."""
    return parse_json(read_bytes(path), path, kind)


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
        raise DataError(f"{at}: not JSON ({error.msg.removesuffix(' at')} at column {error.colno})") from None
    except (ValueError, RecursionError):
        what = "lists or objects nested too deeply, or a number with thousands of digits"
        raise DataError(f"{location}:{line}: JSON with {what}; correct it") from None
    if wrong:
        raise DataError(f"{location}: {wrong}")
    return value if kind is object else checked(value, kind, location)


def checked(value: Any, kind: type[_T], location: StrPath, where: str = "") -> _T:
    """A value from JSON at the path `where` of a file, if it fits `kind`; raises as `parse_json`."""
    try:
        wrong = misfit(value, kind, where, in_json=True)
    except RecursionError:  # a kind that contains itself
        wrong = f"{where or 'the content'} is nested too deeply; correct it"
    if wrong:
        raise DataError(f"{location}: {wrong}")
    return value


def bundled(name: str) -> str:
    """Path of a file or folder that ships with the project, e.g. "data/reviews", in a checkout or installed."""
    package = Path(__file__).parent
    for base in (package, package.parent):
        if (base / name).exists():
            return str(base / name)
    raise DataError(f"{name}: not found next to the package {package}; install the project from its checkout")


def here_or_bundled(path: str, folder: str = "") -> str:
    """A path or pattern to read; where nothing is there, what ships under its name, so that commands work anywhere.

    Args:
        path: such as "configs/finetune/reviews.py" or "data/korean/*_train.txt.gz".
        folder: bundled one, in which names are looked for, too: "configs" finds "finetune/reviews.py".

    Returns:
        The path, or that of the bundled file, which is then reported.
    """
    if _leads_to_files(path):
        return path
    is_there = os.path.isfile if folder else _leads_to_files
    for parts in (Path(path).parts, (folder, *Path(path).parts)):
        if parts[:1] in (("configs",), ("data",)) and not {"..", "/"}.intersection(parts):
            found = os.path.join(bundled(parts[0]), *parts[1:])
            if is_there(found):
                _report_bundled(path, found)
                return found
    return path


def _leads_to_files(path: str) -> bool:
    return os.path.exists(path) or bool(glob.glob(path))


@functools.cache
def _report_bundled(path: str, found: str) -> None:
    log(f"{path}: not in this directory; reading the one that ships with bert_tf, {found}")
