"""The readers of labelled texts: one for tables (TSV and CSV), one for JSON files. A `Layout` names their columns."""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import Cell, Labels, ReadReport, Scale, TextExample
from bert_tf.inputs.datasets.text_files import Seen, field, parts, read_csv, read_json, read_lines, read_tsv

Rows: TypeAlias = Callable[..., Iterator[tuple[int, list[str]]]]  # a reader such as `read_tsv`

# What separates columns. Tabs come without quotes, but if the names in the header have quotes, so do the other rows.
_TABS: tuple[Rows, ...] = (read_tsv, functools.partial(read_csv, delimiter="\t"))
_COMMAS: tuple[Rows, ...] = (read_csv, functools.partial(read_csv, delimiter=";"))
_BARS: tuple[Rows, ...] = (functools.partial(read_csv, delimiter="|"),)
_NAME_ONE = "set data.{0} (in Python, {0}) to one of these"
# Lines, and rows in them, that show which of these it is.
_LINES, _ROWS = 1000, 20


class Layout(NamedTuple):
    """Names of the columns of a table, or of the fields of a JSON object, from which examples are read.

    Attributes:
        texts: the texts.
        label: the label, "" if there is none; in JSON it may be a path such as "labels/real-label".
        id: a unique value in every row, "" if there is none.
        columns: all columns of a table without header, or all values of a JSON list; () if the first line is a header.
        more: number of further columns that a row may have after these; they are ignored.
    """

    texts: tuple[str, ...]
    label: str = ""
    id: str = ""
    columns: tuple[str, ...] = ()
    more: int = 0

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the columns that are read."""
        return tuple(filter(None, (*self.texts, self.label, self.id)))

    def missing(self, fields: Sequence[str]) -> str:
        """What a table with these fields in its first line lacks to have this layout; "" if nothing."""
        if not self.columns:
            return next((f"column {name!r}" for name in self.used if name not in fields), "")
        fits = len(self.columns) <= len(fields) <= len(self.columns) + self.more
        return "" if fits else f"{len(self.columns)} columns without header ({', '.join(self.columns)})"


def read_table(path: str, columns: Sequence[str]) -> dict[str, list[str]]:
    """Reads some columns of a TSV or CSV file with a header, in file order."""
    rows = [example.texts for example in read_texts(path, columns)]
    return {column: [row[index] for row in rows] for index, column in enumerate(columns)}


def read_texts(path: str, texts: Sequence[str], label: str = "", *, labelled: bool = False) -> Iterator[TextExample]:
    """Reads some columns of a TSV or CSV file.

    Args:
        path: the file; its first rows show whether tabs, commas, semicolons or bars separate the columns.
        texts: names of the columns, or, if the first line has no such names, numbers from 1: all lines are rows then.
        label: name or number of the column with the labels.
        labelled: whether this column must be there.
    """
    layouts = Layout(tuple(texts), label), Layout(tuple(texts))
    readers = _readers(path)
    starts = [(rows, start) for rows in readers if (start := _start(rows, path))]
    named = ((rows, layout) for layout in layouts for rows, start in starts if not layout.missing(start[0]))
    for rows, layout in itertools.chain(named, _numbered(layouts, starts)):
        if labelled and not layout.label:
            first = layout.columns or next(tuple(start[0]) for one, start in starts if one is rows)
            raise DataError(
                f"{path}: no column {label!r} with the labels; the columns are {_shown(first)}; "
                f"{_NAME_ONE.format('label')}, or use predict"
            )
        return read_rows(path, [layout], rows=rows)
    # What is wrong with it is said about the most columns, or, if not a row can be read, by the reader.
    widest = max(starts, key=lambda one: len(one[1][0]), default=(readers[0], []))
    return read_rows(path, layouts, rows=widest[0], remedy=f"; {_NAME_ONE.format('text')}")


def columns_of(path: str) -> list[str]:
    """The fields of the first row of a TSV or CSV file: as many as any reader finds."""
    found = [start[0] for rows in _readers(path) if (start := _start(rows, path))]
    return max(found, key=len, default=[])


def _readers(path: str) -> tuple[Rows, ...]:
    """The possible readers of a table, that of its ending first."""
    ending = os.path.splitext(path)[1].lower()
    if ending == ".csv":
        return (*_COMMAS, *_TABS, *_BARS)
    if ending != ".tsv":
        number, first = next(((number, text) for number, text in read_lines(path) if text), (0, ""))
        if first.lstrip().startswith(("{", "[")):
            raise DataError(f"{path}:{number}: JSON, expected a table; JSON lines are read if the name ends in .jsonl")
    return (*_TABS, *_COMMAS, *_BARS)


def _start(rows: Rows, path: str) -> list[list[str]]:
    """The first rows that a reader finds."""
    found: list[list[str]] = []
    with contextlib.suppress(DataError):  # of another reader's file; that of this one is raised when it is read
        for _, fields in rows(path, _LINES):
            found += [fields] if fields else []
            if len(found) == _ROWS:
                break
    return found


def _numbered(
    layouts: Sequence[Layout], starts: Sequence[tuple[Rows, list[list[str]]]]
) -> Iterator[tuple[Rows, Layout]]:
    """The layouts with numbers for names, in a table without header, and the readers that find so many columns."""
    for least, layout in itertools.product((2, 1), layouts):
        for rows, start in starts:
            columns = tuple(str(number) for number in range(1, len(start[0]) + 1))
            # Tabs are hardly ever a part of a text, as all others are: these must be in each row.
            is_table = rows is read_tsv or all(len(fields) == len(columns) for fields in start)
            if is_table and len(columns) >= least and set(layout.used) <= set(columns):
                yield rows, layout._replace(columns=columns)


def read_rows(
    path: str,
    layouts: Sequence[Layout],
    labels: Labels = (),
    read_report: ReadReport | None = None,
    rows: Rows = read_tsv,
    remedy: str = "",
) -> Iterator[TextExample]:
    """Reads labelled texts from a table. Empty lines are skipped, but see `_without_empty_lines`.

    Args:
        path: the file.
        layouts: possible layouts; the first one that fits the first line is taken, so those with a header come first.
        labels: the classes, or a Scale; () for any text.
        read_report: counts labelled rows with a wrong number of columns, which are skipped then; if None, they are
            errors.
        rows: reader of the file's rows.
        remedy: end of the error for a missing column.

    Yields:
        TextExample; `id` is the row number from 0 if the layout has none.
    """
    lines = rows(path)
    number, first = next(((number, fields) for number, fields in lines if fields), (0, [""]))
    if not number:
        raise DataError(f"{path}: no rows; expected at least one")
    layout = next((layout for layout in layouts if not layout.missing(first)), None)
    if layout is None:
        missing = " or ".join(dict.fromkeys(layout.missing(first) for layout in layouts))
        raise DataError(f"{path}:{number}: no {missing}; the columns are {_shown(first)}{remedy}")
    columns = layout.columns or first
    if layout.columns:
        lines = itertools.chain([(number, first)], lines)
    for name in layout.used:
        if (count := columns.count(name)) > 1:
            raise DataError(f"{path}:{number}: the column {name!r} occurs {count} times; rename all but one")
    texts = [columns.index(name) for name in layout.texts]
    id_at, label_at = (columns.index(name) if name else None for name in (layout.id, layout.label))
    seen, row = Seen(), -1
    for row, (number, fields) in enumerate(_without_empty_lines(lines, len(columns))):
        location = f"{path}:{number}"
        if not len(columns) <= len(fields) <= len(columns) + layout.more:
            if read_report is not None and layout.label:
                read_report.add("skipped: wrong number of columns", location)
                continue
            raise DataError(f"{location}: {len(fields)} columns; expected {len(columns)}: {', '.join(columns[:20])}")
        identity = str(row) if id_at is None else seen.add(fields[id_at], location)
        label = None if label_at is None else read_label(Cell(fields[label_at]), labels, location)
        yield TextExample(identity, tuple(fields[index] for index in texts), label, location)
    if row < 0:
        raise DataError(f"{path}: no rows below the header; expected at least one")


def _shown(columns: Sequence[str]) -> str:
    return ", ".join(repr(text[:40]) for text in columns[:20])


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


def read_json_rows(path: str, layout: Layout, lists: Mapping[str, Labels]) -> Iterator[TextExample]:
    """Reads labelled texts from a JSON file; the whole file is in memory.

    Args:
        path: the file.
        layout: of each element of the lists.
        lists: name of each list in the file, "" if the file is a list, -> its classes, a Scale, or () for any text.

    Yields:
        TextExample; `id` counts from 0 if the layout has none.
    """
    data = read_json(path)
    seen, count = Seen(), 0
    for name, labels in lists.items():
        for row, location in parts(data, name, path, list[list[Any]] if layout.columns else list):
            if layout.columns:
                if len(row) != len(layout.columns):
                    raise DataError(f"{location}: {len(row)} values; expected [{', '.join(layout.columns)}]")
                row = dict(zip(layout.columns, row, strict=True))
            identity = seen.add(field(row, layout.id, str, location), location) if layout.id else str(count)
            texts = tuple(field(row, text, str, location) for text in layout.texts)
            owner, where, (*outer, last) = row, location, layout.label.split("/")
            for part in outer:
                owner, where = field(owner, part, dict[str, Any], where), f"{where}: {part}"
            label: Any = field(owner, last, float if isinstance(labels, Scale) else str, where)
            yield TextExample(identity, texts, read_label(label, labels, location), location)
            count += 1
    if not count:
        raise DataError(f"{path}: no examples; expected at least one")


def read_label(text: Any, labels: Labels, location: str) -> str | float:
    """Parses a label: one of the classes, or a number on a Scale, as a float."""
    if not isinstance(labels, Scale):
        if not labels or text in labels:
            return text
        known = ", ".join(map(repr, labels[:20])) + ", ..." * (len(labels) > 20)
        raise DataError(f"{location}: label {text!r}; expected one of {known}")
    try:
        value = None if "_" in str(text) else float(text)  # Python reads "1_5" as 15
    except (ValueError, OverflowError):  # of a whole number with hundreds of digits
        value = None
    # "nan" is neither below nor above.
    if value is None or not labels.low <= value <= labels.high:
        raise DataError(f"{location}: label {text!r}; expected a number from {labels.low:g} to {labels.high:g}")
    return value
