"""Readers of lines, CSV rows and JSON values in UTF-8 files; errors name the file and the line."""

import contextlib
import csv
import itertools
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TypeVar

from bert_tf import files
from bert_tf.errors import DataError
from bert_tf.files import checked, parse_json
from bert_tf.text.encoding import decode

_T = TypeVar("_T")

STDIN = "-"  # the path that stands for standard input
_ID: Any = str | int


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Streams the lines of a file. Only a line feed ends a line, since texts contain other separators.

    Args:
        path: a UTF-8 file, with or without byte order mark, with Unix or DOS line ends; "-" for standard input.

    Yields:
        (line number from 1, text without line end).
    """
    check_file(path)
    with contextlib.nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb") as file:
        offset = 0
        for number, line in enumerate(file, 1):
            yield number, decode(line, path, number, offset).rstrip("\r\n")
            offset += len(line)


def check_file(path: str) -> None:
    """Raises DataError unless `path` is a file that is not empty, or standard input, which is not looked at."""
    if path == STDIN:
        return
    if os.path.isdir(path):
        raise DataError(f"{path}: a directory; name one of the files in it")
    files.check_file(path, "; pipe JSON lines to standard input instead (-)")
    if not os.path.isfile(path):
        raise DataError(f"{path}: no such file; check the path")
    if not os.path.getsize(path):
        raise DataError(f"{path}: the file is empty; expected at least one example")


def read_tsv(path: str, lines: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """Streams (line number, fields) of a TSV file, in which quotes are text; [] for an empty line.

    Args:
        path: the file.
        lines: number of lines to read at most; None for all.
    """
    read = itertools.islice(read_lines(path), lines)
    return ((number, text.split("\t") if text else []) for number, text in read)


def read_csv(path: str, lines: int | None = None, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Streams the rows of a CSV file. Fields may be quoted and contain line ends.

    Args:
        path, lines: as for `read_tsv`.
        delimiter: between the fields.

    Yields:
        (number of the row's last line, fields; [] for an empty line).
    """
    csv.field_size_limit(2**31 - 1)
    # The reader is fed lines, so that its own count is the line number of a row's end.
    read = (text + "\n" for _, text in itertools.islice(read_lines(path), lines))
    reader = csv.reader(read, delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            yield reader.line_num, fields
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}; expected CSV with double quotes") from None


def read_json(path: str) -> Any:
    """Reads a JSON file, the whole of it into memory."""
    return parse_json("\n".join(text for _, text in read_lines(path)), path, object)


def read_json_lines(path: str) -> Iterator[tuple[int, Any]]:
    """Streams (line number, value) of a file with one JSON value per line; empty lines are skipped."""
    for number, text in read_lines(path):
        if text:
            yield number, parse_json(text, path, object, number)


def field(record: Any, name: str, kind: type[_T], location: str) -> _T:
    """Returns `record[name]`, checked.

    Args:
        record: a value from JSON, which should be an object.
        name: of the field.
        kind: annotation of its value, as for `parse_json`.
        location: of the record.
    """
    if not isinstance(record, dict):
        raise DataError(f"{location}: {type(record).__name__}; expected an object with the field {name!r}")
    if name not in record:
        raise DataError(f"{location}: no field {name!r}; the fields are {', '.join(map(repr, list(record)[:20]))}")
    return checked(record[name], kind, location, name)


def whole(value: Any) -> Any:
    """A float without fraction as a whole number, anything else unchanged.

    A column of pandas holds whole numbers as floats if a value is missing.
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


def parts(record: Any, name: str, location: str, kind: Any = list) -> Iterator[tuple[Any, str]]:
    """Yields the elements of the list `record[name]` or of `record` for "", and their locations: "file: data[3]".

    Args:
        record, name, location: as for `field`.
        kind: annotation of the list.
    """
    elements = field(record, name, kind, location) if name else checked(record, kind, location)
    return ((element, f"{location}: {name}[{index}]") for index, element in enumerate(elements))


class Seen:
    """Hashes of the ids used in a file: 0.7 GB for 10 million, of which two are equal at odds of 1 to 370,000."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, identity: str) -> bool:
        return hash(identity) in self._hashes

    def add(self, identity: str, location: str) -> str:
        """Adds an id and returns it. Raises DataError if it was used before: predictions could not be told apart."""
        if identity in self:
            raise DataError(f"{location}: the id {identity!r} was used before; make ids unique")
        self._hashes.add(hash(identity))
        return identity


def own_id(record: Any) -> Any:
    """The "id" of an object from JSON or, as KLUE's data sets name it, its "guid"; None if it has neither."""
    named = (record.get(name) for name in ("id", "guid")) if isinstance(record, dict) else ()
    return next((value for value in named if value is not None), None)


def identity(own: Any, count: int, seen: Seen, location: str) -> str:
    """Returns an example's own id, or its number if it has none.

    Args:
        own: the id in the file, text or a whole number; None if there is none.
        count: number of examples before this one.
        seen: own ids of earlier examples; `own` is added.
        location: of the example.

    Raises:
        DataError: the id has another type, or is or may be the id of another example.
    """
    if own is None:
        if str(count) in seen:
            raise DataError(f"{location}: no id, and its number, {count}, is the id of an earlier one; give it an id")
        return str(count)
    name = seen.add(str(checked(own, _ID, location, "id")), location)
    # Only if an earlier example had no id: `len(seen)` is `count + 1` where all had their own.
    if len(seen) <= count and re.fullmatch("0|[1-9][0-9]{0,17}", name) and int(name) < count:
        raise DataError(
            f"{location}: the id {name!r} may be the number of an example without an id; give each one an id"
        )
    return name
