"""Labelled texts from TSV, CSV and JSON-lines files."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from bert_tf.config import ExampleData
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


def read_table(path: str, columns: Sequence[str]) -> dict[str, list[str]]:
    """Reads some columns of a table, in file order. Args as for `table_rows`."""
    rows: dict[str, list[str]] = {column: [] for column in columns}
    for _, values in table_rows(path, columns):
        for column, value in zip(columns, values, strict=True):
            rows[column].append(value)
    return rows


def table_rows(path: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[int, list[Any]]]:
    """Streams some columns of a table, named in its first line (TSV, CSV) or by the keys of JSON objects (JSONL).

    In TSV, quotes are text, as in GLUE's files; in CSV, they quote. Empty lines are skipped. If the table has only
    one column, an empty line is an empty value, except at the end of the file.

    Args:
        path: file ending in .tsv, .csv or .jsonl; "-" for JSON lines on standard input.
        columns: names to read.
        optional: further names to read if they exist.

    Yields:
        (line number, a string for each of `columns` and `optional`). A value of `optional` is None if it does not
        exist, and a tuple of strings if it is a list in JSON.
    """
    ending = ".jsonl" if path == STDIN else os.path.splitext(path)[1].lower()
    if ending == ".jsonl":
        yield from ((number, values) for number, values, _ in _json_rows(path, columns, optional))
        return
    check_file(path)
    if ending not in (".tsv", ".csv"):
        raise DataError(f"{path}: unknown kind of table {ending!r}; expected .tsv, .csv or .jsonl")
    rows: Iterator[tuple[int, list[str]]]
    if ending == ".csv":
        rows = read_csv(path)
    else:
        rows = ((number, text.split("\t") if text else []) for number, text in read_lines(path))
    yield from _delimited_rows(path, rows, columns, optional)


def read_texts(path: str, data: ExampleData) -> Iterator[TextExample]:
    """Reads labelled texts or pairs from a TSV or CSV file.

    Args:
        path: the file.
        data: names the columns.

    Yields:
        TextExample; `id` is the row number from 0, `label` None if there is no such column.
    """
    texts = [data.text, data.second_text] if data.second_text else [data.text]
    for row, (number, (*values, label)) in enumerate(table_rows(path, texts, [data.label])):
        yield TextExample(str(row), tuple(values), label, f"{path}:{number}")


def read_text_lines(path: str, data: ExampleData) -> Iterator[TextExample]:
    """Reads labelled texts or pairs from JSON lines, one object per line.

    Args:
        path: the file; "-" for standard input.
        data: names the fields. The field "id", text or a whole number, is the example's id.

    Yields:
        TextExample; `label` is None if there is no such field, a tuple if it is a list.
    """
    texts = [data.text, data.second_text] if data.second_text else [data.text]
    seen = Seen()
    for count, (number, (*values, label), own) in enumerate(_json_rows(path, texts, [data.label])):
        location = f"{path}:{number}"
        yield TextExample(identity(own, count, seen, location), tuple(values), label, location)


def _delimited_rows(
    path: str, rows: Iterator[tuple[int, list[str]]], columns: Sequence[str], optional: Sequence[str]
) -> Iterator[tuple[int, list[Any]]]:
    header = next((fields for _, fields in rows if fields), None)
    if header is None:
        raise DataError(f"{path}: the file is empty; expected a first line with the column names")
    for column in columns:
        if column not in header:
            raise DataError(f"{path}:1: no column {column!r}; the columns are {', '.join(map(repr, header[:20]))}")
    for column in (*columns, *optional):
        if (count := header.count(column)) > 1:
            raise DataError(f"{path}:1: the column {column!r} occurs {count} times; rename all but one")
    indices = [header.index(column) if column in header else None for column in (*columns, *optional)]
    number = 0
    for number, fields in _without_empty_lines(rows, len(header)):
        if len(fields) != len(header):
            raise DataError(f"{path}:{number}: {len(fields)} columns; expected {len(header)} as in the first line")
        yield number, [None if index is None else fields[index] for index in indices]
    _check_rows(path, number)


def _without_empty_lines(rows: Iterator[tuple[int, list[str]]], columns: int) -> Iterator[tuple[int, list[str]]]:
    """Skips empty lines; with a single column they are empty values, except at the end of the file."""
    empty = []
    for number, fields in rows:
        if not fields:
            empty.append(number)
            continue
        if columns == 1:
            yield from ((line, [""]) for line in empty)
        empty.clear()
        yield number, fields


def _json_rows(path: str, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[int, list[Any], Any]]:
    """Yields (line number, values, the field "id", not checked, None if there is none) for each line."""
    number = 0
    for number, row in read_json_lines(path):
        location = f"{path}:{number}"
        missing = [column for column in columns if not isinstance(row, dict) or row.get(column) is None]
        if missing:
            raise DataError(f"{location}: no field {missing[0]!r}; expected {', '.join(columns)}")
        values: list[Any] = [_json_text(row[column], f"{location}: field {column!r}") for column in columns]
        values += [_json_label(row.get(column), f"{location}: field {column!r}") for column in optional]
        yield number, values, row.get("id")
    _check_rows(path, number)


def _check_rows(path: str, last: int) -> None:
    """Raises DataError if no row was read, so that the number of the last row is 0."""
    if not last:
        raise DataError(f"{path}: no rows; expected at least one")


def _json_text(value: Any, location: str) -> str:
    """Text, or a number as text."""
    return str(checked(value, (str, int, float), location))


def _json_label(value: Any, location: str) -> str | tuple[str, ...] | None:
    if isinstance(value, list):
        return tuple(_json_text(label, location) for label in value)
    return None if value is None else _json_text(value, location)
