"""Labelled texts from TSV, CSV and JSON-lines files."""

import csv
import json
import os

from bert_tf.errors import DataError


def read_table(path, columns):
    """Reads some columns of a table whose first line names them (TSV, CSV) or whose lines are JSON objects (JSONL).

    In TSV quotes are text, as in GLUE's files; in CSV they quote. An empty line is no row.

    Args:
        path: file ending in .tsv, .csv or .jsonl.
        columns: names to read.

    Returns:
        dict column -> list of str, in file order; and a list with the line number of each row.

    Raises:
        DataError: for a missing or empty file, another ending, bytes that are not UTF-8, a column or field that is
            not there; with file and line.
    """
    ending = os.path.splitext(path)[1]
    if ending not in (".tsv", ".csv", ".jsonl"):
        raise DataError(f"{path}: unknown kind of table {ending!r}; expected .tsv, .csv or .jsonl")
    if not os.path.isfile(path):
        raise DataError(f"{path}: no such file")
    rows, lines = {column: [] for column in columns}, []
    read = _json_rows if ending == ".jsonl" else _delimited_rows
    for number, values in read(path, columns, ending):
        lines.append(number)
        for column, value in zip(columns, values, strict=True):
            rows[column].append(value)
    if not lines:
        raise DataError(f"{path}: no rows; expected at least one")
    return rows, lines


def _lines(path):
    """(line number, text) of every line."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                bad = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
                remedy = "convert the file, e.g. iconv -f CP949 -t UTF-8 (or -f LATIN1)"
                raise DataError(f"{path}:{number}: {bad} is not UTF-8; {remedy}") from None
            yield number, text


def _delimited_rows(path, columns, ending):
    if ending == ".tsv":
        rows = ((number, text.split("\t")) for number, text in _lines(path) if text)
    else:
        rows = _csv_rows(path)
    _, header = next(rows, (0, None))
    if header is None:
        raise DataError(f"{path}: the file is empty; expected a first line with the column names")
    for column in columns:
        if column not in header:
            raise DataError(f"{path}:1: no column {column!r}; the columns are {', '.join(map(repr, header[:20]))}")
    places = [header.index(column) for column in columns]
    for number, fields in rows:
        if len(fields) != len(header):
            raise DataError(f"{path}:{number}: {len(fields)} columns; expected {len(header)} as in the first line")
        yield number, [fields[place] for place in places]


def _csv_rows(path):
    # A quoted field may span lines, so the reader is fed lines and its own count is the line number of a row's end.
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader((text + "\n" for _, text in _lines(path)), strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}; expected CSV with double quotes") from None


def _json_rows(path, columns, _):
    for number, text in _lines(path):
        if not text:
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}: not JSON ({error.msg} at column {error.colno})") from None
        missing = [column for column in columns if not isinstance(row, dict) or row.get(column) is None]
        if missing:
            raise DataError(f"{path}:{number}: no field {missing[0]!r}; expected {', '.join(columns)}")
        values = [str(row[column]) for column in columns]
        for column, value in zip(columns, values, strict=True):
            # JSON can write half of a surrogate pair, but neither UTF-8 nor a string tensor can.
            if any(0xD800 <= ord(char) <= 0xDFFF for char in value):
                raise DataError(f"{path}:{number}: field {column!r} has half of a surrogate pair; remove it")
        yield number, values
