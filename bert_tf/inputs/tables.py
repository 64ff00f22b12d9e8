"""Labelled texts from TSV, CSV and JSON-lines files."""

import os

from bert_tf.errors import DataError
from bert_tf.inputs.text_files import checked, read_csv, read_json_lines, read_lines


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
    rows, lines = {column: [] for column in columns}, []
    read = _json_rows if ending == ".jsonl" else _delimited_rows
    for number, values in read(path, columns, ending):
        lines.append(number)
        for column, value in zip(columns, values, strict=True):
            rows[column].append(value)
    if not lines:
        raise DataError(f"{path}: no rows; expected at least one")
    return rows, lines


def _delimited_rows(path, columns, ending):
    if ending == ".tsv":
        rows = ((number, text.split("\t")) for number, text in read_lines(path) if text)
    else:
        rows = read_csv(path)
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


def _json_rows(path, columns, _):
    for number, row in read_json_lines(path):
        place = f"{path}:{number}"
        missing = [column for column in columns if not isinstance(row, dict) or row.get(column) is None]
        if missing:
            raise DataError(f"{place}: no field {missing[0]!r}; expected {', '.join(columns)}")
        yield number, [checked(str(row[column]), str, f"{place}: field {column!r}") for column in columns]
