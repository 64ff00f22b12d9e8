"""Lines, rows and JSON values of UTF-8 files, each with its location, which errors name."""

import codecs
import contextlib
import csv
import json
import math
import os
import re
import sqlite3
import sys

from bert_tf.errors import DataError

STDIN = "-"  # the path that stands for standard input
_KINDS = {
    str: "text",
    list: "a list",
    dict: "an object",
    int: "a whole number",
    float: "a number",
    (str, int): "text or a whole number",
    (str, int, float): "text or a number",
}


def read_lines(path):
    """The lines of a file as a stream; only a line feed ends one, for texts hold other separators.

    Args:
        path: a UTF-8 file, with or without byte order mark, Unix or DOS line ends; "-" for standard input.

    Yields:
        (line number from 1, text without line end).

    Raises:
        DataError: there is no such file, it is empty or not UTF-8, with the line.
    """
    check_file(path)
    with contextlib.nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                bad = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
                remedy = "convert the file, e.g. iconv -f CP949 -t UTF-8 (or -f LATIN1)"
                if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    remedy = "it is UTF-16: iconv -f UTF-16 -t UTF-8"
                raise DataError(f"{path}:{number}: {bad} is not UTF-8; {remedy}") from None
            yield number, text


def check_file(path):
    """Refuses what is no file or an empty one; standard input is left to show what it holds.

    Raises:
        DataError
    """
    if path == STDIN:
        return
    if os.path.isdir(path):
        raise DataError(f"{path}: a directory; name one of the files in it")
    if not os.path.isfile(path):
        raise DataError(f"{path}: no such file; check the path")
    if not os.path.getsize(path):
        raise DataError(f"{path}: the file is empty; fetch it again")


def read_csv(path):
    """The rows of a CSV file, whose fields may be quoted and hold line ends.

    Yields:
        (number of the row's last line, list of str; [] for an empty line).

    Raises:
        DataError: as `read_lines`, and for quotes that do not close.
    """
    csv.field_size_limit(2**31 - 1)
    # The reader is fed lines, so that its own count is the line number of a row's end.
    reader = csv.reader((text + "\n" for _, text in read_lines(path)), strict=True)
    try:
        for fields in reader:
            yield reader.line_num, fields
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}; expected CSV with double quotes") from None


def read_json(path):
    """The one value that a JSON file holds; the whole file is in memory, as JSON can not be read otherwise.

    Raises:
        DataError: as `read_lines`, and for what is not JSON, with line and column, or JSON that Python can not hold.
    """
    return _parsed("\n".join(text for _, text in read_lines(path)), path)


def read_json_lines(path):
    """The values of a file with one JSON value a line; empty lines are none.

    Yields:
        (line number, value).

    Raises:
        DataError: as `read_lines`, and for a line that is not JSON, or JSON that Python can not hold.
    """
    for number, text in read_lines(path):
        if text:
            yield number, _parsed(text, path, number)


def _parsed(text, path, number=1):
    """The JSON value of a text that begins on line `number`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = number + error.lineno - 1
        raise DataError(f"{path}:{line}: not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError):
        what = "lists or objects too deep in one another, or a number of thousands of digits"
        raise DataError(f"{path}:{number}: JSON with {what}; correct it") from None


def field(record, name, kind, location):
    """`record[name]`, checked.

    Args:
        record: what should be a dict, from JSON.
        name: of the field.
        kind: str, list, dict, int or float, where a whole number is a float, too; (str, int) or (str, int, float) for
            one of these.
        location: of the record.

    Raises:
        DataError: no such field, another type, or text that UTF-8 can not write.
    """
    if not isinstance(record, dict):
        raise DataError(f"{location}: {type(record).__name__}; expected an object with the field {name!r}")
    if name not in record:
        raise DataError(f"{location}: no field {name!r}; the fields are {', '.join(map(repr, list(record)[:20]))}")
    return checked(record[name], kind, f"{location}: {name}")


def checked(value, kind, location):
    """`value`, if it is of the type that `field` would want.

    Raises:
        DataError: another type, or text that UTF-8 can not write.
    """
    wanted = (int, float) if kind is float else kind
    # For Python, True is a whole number; in a file it is not.
    unfit = isinstance(value, bool)
    # JSON has neither, but Python's json writes a missing text as NaN.
    unfit |= isinstance(value, float) and not math.isfinite(value)
    if unfit or not isinstance(value, wanted):
        raise DataError(f"{location}: {json.dumps(value)[:60]}; expected {_KINDS[kind]}")
    if isinstance(value, str):
        # JSON can write half of a surrogate pair, but neither UTF-8 nor a string tensor can.
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DataError(f"{location}: has half of a surrogate pair; remove it") from None
    return value


def parts(record, name, location):
    """The elements of the list `record[name]`, each with its location, such as "file: data[3]".

    Raises:
        DataError: as `field`.
    """
    for index, element in enumerate(field(record, name, list, location)):
        yield element, f"{location}: {name}[{index}]"


class Seen:
    """The ids of a file and their locations: on disk, so that memory does not grow with them."""

    def __init__(self):
        # Of "" SQLite makes a temporary file, and removes it.
        self._ids = sqlite3.connect("", check_same_thread=False)
        self._ids.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, location TEXT) WITHOUT ROWID")
        self._count = 0

    def __len__(self):
        return self._count

    def location(self, identity):
        """Where an id was used; None if it was not."""
        row = self._ids.execute("SELECT location FROM ids WHERE id = ?", (identity,)).fetchone()
        return row and row[0]

    def add(self, identity, location):
        """Notes an id.

        Raises:
            DataError: it was used before, and two examples' predictions could not be told apart.
        """
        if not self._ids.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (identity, location)).rowcount:
            before = self.location(identity)
            raise DataError(f"{location}: the id {identity!r} was used before, at {before}; make ids unique")
        self._count += 1


def identity(own, count, seen, location):
    """What an example is called: by its own id, or by its number where it has none.

    Args:
        own: the id as the file has it, text or a whole number; None for none.
        count: int, how many examples precede it.
        seen: Seen, the own ids before, to which this one is added.
        location: of the example.

    Returns:
        str.

    Raises:
        DataError: the id is of another type, or what another example is called, or may be.
    """
    if own is None:
        if before := len(seen) and seen.location(str(count)):
            raise DataError(f"{location}: no id, and its number, {count}, is that of {before}; give it an id")
        return str(count)
    name = str(checked(own, (str, int), f"{location}: id"))
    seen.add(name, location)
    # Only while some had none: `len(seen)` is one more than `count` where all had their own.
    if len(seen) <= count and re.fullmatch("0|[1-9][0-9]{0,17}", name) and int(name) < count:
        raise DataError(f"{location}: the id {name!r} may be the number of an example without id; give each one an id")
    return name
