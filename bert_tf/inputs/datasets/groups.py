"""Readers of groups of texts, from which sentence encoders and rerankers learn, and of judgements in BEIR's layout.

Each line of JSON, or row of a table with a header, has a text that comes first, usually one that belongs to it, and
others that do not. The fields have the names that data sets for sentence-transformers use.
"""

import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

from bert_tf.errors import DataError
from bert_tf.files import checked
from bert_tf.inputs.datasets.examples import QuestionExample, ReadReport, TextExample, TextGroup
from bert_tf.inputs.datasets.tables import columns_of, read_texts
from bert_tf.inputs.datasets.text_files import Seen, field, identity, own_id, read_json_lines, read_lines, whole

_FIRST = ("query", "anchor", "question", "sentence1", "text", "sentence", "english")
_SECOND = ("positive", "passage", "answer", "sentence2", "second_text", "document", "translation")
LABELS = ("scores", "score", "label", "similarity")
_NEGATIVES = "negative"  # the start of their names: negative, negatives, negative_1
_TEXT: Any = str | float  # a number is read as text
_TEXTS: Any = list[str] | str | None
_NUMBERS: Any = float | str | list[float]
_ID: Any = str | int

Lines = str | Iterable[tuple[str, Any]]  # as in `json_lines`


def read_groups(lines: Lines) -> Iterator[TextGroup]:
    """Reads a file of JSON lines or a table, or objects with their locations.

    A line has "query" (or anchor, question, sentence1, text, sentence, english) and, but for single texts, "positive"
    (or passage, answer, sentence2, second_text, document, translation); or both and more in a list, "texts". Optional
    are "negatives", a list of texts, or fields whose names begin with "negative"; and "score" (or similarity), a
    number, "scores", one for each text after the first, or "label", a class or a number. Empty negatives are missing.
    """
    seen, count = Seen(), 0
    records = _records(lines) if isinstance(lines, str) else lines
    for location, record in records:
        texts = _texts(record, location)
        label = _label(record, len(texts) - 1, location)
        yield TextGroup(identity(own_id(record), count, seen, location), texts, label, location)
        count += 1
    if not count and isinstance(lines, str):
        raise DataError(f"{lines}: no examples; expected at least one")


def _records(path: str) -> Iterator[tuple[str, Any]]:
    """The objects of JSON lines, or the rows of a table as objects, with their locations."""
    if path == "-" or path.lower().endswith((".jsonl", ".json")):
        yield from ((f"{path}:{number}", record) for number, record in read_json_lines(path))
        return
    columns = columns_of(path)
    used = [name for name in columns if name in (*_FIRST, *_SECOND, *LABELS, "id") or name.startswith(_NEGATIVES)]
    if not used:
        raise DataError(
            f"{path}: the columns are {', '.join(columns)}; expected {_FIRST[0]} and {_SECOND[0]}, or other names that "
            "groups of texts have (docs/search.md)"
        )
    for row in read_texts(path, used):
        yield row.location, {name: value for name, value in zip(used, row.texts, strict=True) if value}


def _texts(record: Any, location: str) -> tuple[str, ...]:
    if isinstance(record, dict) and "texts" in record:
        texts = tuple(map(str, field(record, "texts", list[_TEXT], location)))
        if not texts:
            raise DataError(f"{location}: texts is empty; expected at least one text")
        return texts
    first = next((name for name in _FIRST if isinstance(record, dict) and name in record), _FIRST[0])
    texts = (str(field(record, first, _TEXT, location)),)
    if second := next((name for name in _SECOND if name in record), ""):
        texts += (str(field(record, second, _TEXT, location)),)
    negatives: list[str] = []
    for name in record:
        if name.startswith(_NEGATIVES):
            found = checked(record[name], _TEXTS, location, name)
            negatives += [found] if isinstance(found, str) else found or []
    negatives = [text for text in negatives if text.strip()]
    if negatives and not second:
        raise DataError(f"{location}: negatives, but no text that belongs to {first}; expected {_SECOND[0]!r}")
    return (*texts, *negatives)


def _label(record: Any, others: int, location: str) -> str | float | tuple[float, ...] | None:
    name = next((name for name in LABELS if isinstance(record, dict) and record.get(name) is not None), "")
    if not name:
        return None
    value = checked(record[name], _NUMBERS, location, name)
    if not isinstance(value, list | tuple):
        return whole(value)
    if len(value) != others:
        raise DataError(f"{location}: {len(value)} {name} for {others} texts after the first; expected one for each")
    return tuple(value)


def of_text(example: TextExample) -> TextGroup:
    """A text with its class, or a pair with its number."""
    label: Any = example.label
    return TextGroup(example.id, example.texts, label, example.location)


def of_question(example: QuestionExample) -> TextGroup | None:
    """A question and the text that answers it; None if it does not."""
    if example.answers == ():
        return None
    return TextGroup(example.id, (example.question, example.context), None, example.location)


def read_judgements(path: str) -> Iterator[tuple[str, str, float, str]]:
    """Streams (query id, document id, relevance, location) of a table of BEIR (query-id, corpus-id, score) or TREC."""
    columns = columns_of(path)
    names = ["query-id", "corpus-id", "score"]
    if set(names) <= set(columns):
        for row in read_texts(path, names):
            query, document, score = row.texts
            yield query, document, _relevance(score, row.location), row.location
        return
    for number, parts in _trec(path):
        yield parts[0], parts[2], _relevance(parts[3], f"{path}:{number}"), f"{path}:{number}"


def _trec(path: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in read_lines(path):
        parts = line.split()
        if parts and len(parts) != 4:
            raise DataError(
                f"{path}:{number}: {len(parts)} columns; expected query-id, corpus-id and score with a header (BEIR), "
                "or query, 0, document and relevance (TREC)"
            )
        if parts:
            yield number, parts


def _relevance(text: str, location: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{location}: relevance {text!r}; expected a finite number")
    return value


def read_texts_by_id(path: str, *, title: bool = False) -> Iterator[tuple[str, str, str]]:
    """Streams (id, text, location) of corpus.jsonl or queries.jsonl in BEIR's layout.

    Args:
        title: whether to put the title, if there is one, in front of the text.
    """
    for number, record in read_json_lines(path):
        location = f"{path}:{number}"
        name = "_id" if isinstance(record, dict) and "_id" in record else "id"
        text = str(field(record, "text", _TEXT, location))
        heading = record.get("title") if title else ""
        if isinstance(heading, str) and heading.strip():
            text = f"{heading.strip()} {text}"
        yield str(field(record, name, _ID, location)), text, location


def read_beir(folder: str, judgements: str, read_report: ReadReport) -> Iterator[TextGroup]:
    """Pairs of a query and a text that was judged relevant, of a folder in BEIR's layout.

    Args:
        folder: with corpus.jsonl and queries.jsonl.
        judgements: the table of judgements.
        read_report: counts judgements of unknown ids.
    """
    corpus = {
        identity: text for identity, text, _ in read_texts_by_id(os.path.join(folder, "corpus.jsonl"), title=True)
    }
    queries = {identity: text for identity, text, _ in read_texts_by_id(os.path.join(folder, "queries.jsonl"))}
    for query, document, relevance, location in read_judgements(judgements):
        if relevance <= 0:
            continue
        if query not in queries or document not in corpus:
            read_report.add("skipped: judgement of an unknown id", location)
            continue
        yield TextGroup(f"{query}/{document}", (queries[query], corpus[document]), None, location)
