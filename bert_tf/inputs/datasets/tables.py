"""Labelled texts from TSV, CSV and JSON-lines files."""

import os

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.text_files import (
    STDIN,
    Seen,
    check_file,
    checked,
    identity,
    read_csv,
    read_json_lines,
    read_lines,
)


def read_table(path, columns):
    """All of some columns of a table.

    Args:
        path, columns: as for `table_rows`.

    Returns:
        dict column -> list of str, in file order.

    Raises:
        DataError: as `table_rows`.
    """
    rows = {column: [] for column in columns}
    for _, values in table_rows(path, columns):
        for column, value in zip(columns, values, strict=True):
            rows[column].append(value)
    return rows


def table_rows(path, columns, optional=()):
    """Some columns of a table whose first line names them (TSV, CSV) or whose lines are JSON objects (JSONL).

    In TSV quotes are text, as in GLUE's files; in CSV they quote. An empty line is no row; where there is one column
    alone, it is an empty one, but at the end of the file.

    Args:
        path: file ending in .tsv, .csv or .jsonl; "-" for JSON lines on standard input.
        columns: names to read.
        optional: names to read, too, where they are.

    Yields:
        (line number, a str for each of the columns and the optional ones; None for one of these that is not there, a
        tuple of str for one that is a list in JSON).

    Raises:
        DataError: for a missing or empty file, another ending, bytes that are not UTF-8, a column or field that is
            not there; with file and line.
    """
    ending = ".jsonl" if path == STDIN else os.path.splitext(path)[1].lower()
    if ending == ".jsonl":
        yield from ((number, values) for number, values, _ in _json_rows(path, columns, optional))
        return
    check_file(path)
    if ending not in (".tsv", ".csv"):
        raise DataError(f"{path}: unknown kind of table {ending!r}; expected .tsv, .csv or .jsonl")
    if ending == ".csv":
        rows = read_csv(path)
    else:
        rows = ((number, text.split("\t") if text else []) for number, text in read_lines(path))
    yield from _delimited_rows(path, rows, columns, optional)


def read_texts(path, data):
    """Anybody's own labelled texts or pairs, of a TSV or CSV file.

    Args:
        path: of the file.
        data: ExampleData, which names the columns.

    Yields:
        TextExample; `id` is the row's number from 0, `label` None where there is no such column.

    Raises:
        DataError: as `table_rows`.
    """
    texts = [data.text, data.second_text] if data.second_text else [data.text]
    for row, (number, (*values, label)) in enumerate(table_rows(path, texts, [data.label])):
        yield TextExample(str(row), tuple(values), label, f"{path}:{number}")


def read_text_lines(path, data):
    """Anybody's own labelled texts or pairs, a JSON object a line.

    Args:
        path: the file; "-" for standard input.
        data: ExampleData, which names the fields; "id" names the example, text or a whole number.

    Yields:
        TextExample; `label` is None where there is no such field, a tuple where it is a list.

    Raises:
        DataError: as `table_rows`, and for an id of another kind or that was there before.
    """
    texts = [data.text, data.second_text] if data.second_text else [data.text]
    seen = Seen()
    for count, (number, (*values, label), own) in enumerate(_json_rows(path, texts, [data.label])):
        location = f"{path}:{number}"
        yield TextExample(identity(own, count, seen, location), tuple(values), label, location)


def _delimited_rows(path, rows, columns, optional):
    header = next((fields for _, fields in rows if fields), None)
    if header is None:
        raise DataError(f"{path}: the file is empty; expected a first line with the column names")
    for column in columns:
        if column not in header:
            raise DataError(f"{path}:1: no column {column!r}; the columns are {', '.join(map(repr, header[:20]))}")
    for column in (*columns, *optional):
        if (count := header.count(column)) > 1:
            raise DataError(f"{path}:1: the column {column!r} is there {count} times; rename all but one")
    indices = [header.index(column) if column in header else None for column in (*columns, *optional)]
    number = 0
    for number, fields in _filled(rows, len(header)):
        if len(fields) != len(header):
            raise DataError(f"{path}:{number}: {len(fields)} columns; expected {len(header)} as in the first line")
        yield number, [None if index is None else fields[index] for index in indices]
    _check_rows(path, number)


def _filled(rows, columns):
    """The rows that are no empty lines, with those of them that are rows of one empty column."""
    empty = []
    for number, fields in rows:
        if not fields:
            empty.append(number)
            continue
        if columns == 1:
            yield from ((line, [""]) for line in empty)
        empty.clear()
        yield number, fields


def _json_rows(path, columns, optional):
    """(line number, values, the field "id" as it is, None if there is none) of each line."""
    number = 0
    for number, row in read_json_lines(path):
        location = f"{path}:{number}"
        missing = [column for column in columns if not isinstance(row, dict) or row.get(column) is None]
        if missing:
            raise DataError(f"{location}: no field {missing[0]!r}; expected {', '.join(columns)}")
        values = [_json_text(row[column], f"{location}: field {column!r}") for column in columns]
        values += [_json_label(row.get(column), f"{location}: field {column!r}") for column in optional]
        yield number, values, row.get("id")
    _check_rows(path, number)


def _check_rows(path, last):
    """Raises DataError where no row was read, and so none was the last."""
    if not last:
        raise DataError(f"{path}: no rows; expected at least one")


def _json_text(value, location):
    """Text, or a number as text."""
    return str(checked(value, (str, int, float), location))


def _json_label(value, location):
    if isinstance(value, list):
        return tuple(_json_text(one, location) for one in value)
    return None if value is None else _json_text(value, location)
