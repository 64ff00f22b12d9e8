"""Readers of users' own examples: JSON lines, with one object per example, the same for all formats.

The optional field "id" (or "guid") is text or a whole number and identifies the prediction (`text_files.identity`).
Every reader takes the path of a file ("-" is standard input), or its objects with their locations: so values in memory,
which the Python API turns into such objects, are checked and repaired by the same code.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

from bert_tf.errors import DataError
from bert_tf.files import checked
from bert_tf.inputs.datasets.examples import (
    ChoiceExample,
    QuestionExample,
    ReadReport,
    TaggedExample,
    TextExample,
    tagged,
)
from bert_tf.inputs.datasets.squad import answers_of, with_placed_answers
from bert_tf.inputs.datasets.text_files import Seen, field, identity, own_id, read_json_lines, whole

_Example = TypeVar("_Example", TextExample, TaggedExample, QuestionExample, ChoiceExample)
Lines: TypeAlias = "str | Iterable[tuple[str, Any]]"  # the path of a file, or (location, object) pairs
_TEXT: Any = str | float  # a number is read as text


def read_text_lines(
    lines: Lines, texts: tuple[str, ...], label: str, *, labelled: bool = False
) -> Iterator[TextExample]:
    """Reads texts or pairs.

    Args:
        lines: the file or its objects.
        texts: names of the one or two fields with the texts.
        label: name of the field with the label, or a list of labels; may be missing.
        labelled: whether at least one object must have this field.
    """
    fields: dict[str, None] = {}

    def example(record: Any, location: str) -> TextExample:
        values = tuple(str(field(record, text, _TEXT, location)) for text in texts)
        if labelled and label not in fields:
            fields.update(dict.fromkeys(record))
        given = record.get(label)
        if isinstance(given, list):
            return TextExample("", values, tuple(map(whole, checked(given, list[_TEXT], location, label))), location)
        found = None if given is None else whole(checked(given, _TEXT, location, label))
        return TextExample("", values, found, location)

    yield from _read(lines, example)
    if labelled and label not in fields:
        known = ", ".join(map(repr, list(fields)[:20]))
        raise DataError(f"{lines}: no field {label!r} with the labels in any line; the fields are {known}")


def read_tagged_lines(lines: Lines, text: str = "text") -> Iterator[TaggedExample]:
    """Reads sentences: {"words": [...], "tags": [...]}, or {"text": "...", "tags": [...]} with a tag per character.

    "tags" may be missing for prediction. The task then splits a text into its own units. With "label", the class of
    the text, they are for intent and slots.

    Args:
        lines: the file or its objects.
        text: name of the text field.
    """

    def example(record: Any, location: str) -> TaggedExample:
        if isinstance(record, dict) and "words" not in record and text in record:
            words, unit, joiner = list(field(record, text, str, location)), "character", ""
            if record.get("tags") is None:
                return TaggedExample("", "".join(words), None, None, None, None, location)
        else:
            words, unit, joiner = field(record, "words", list[str], location), "word", " "
            words = [_filled(word, f"{location}: words") for word in words]
            if record.get("tags") is None:
                return tagged("", words, None, None, location)
        numbered = field(record, "tags", list[str | int], location)
        tags = [_filled(str(tag), f"{location}: tags").strip() for tag in numbered]
        if len(words) != len(tags):
            raise DataError(f"{location}: {len(words)} {unit}s and {len(tags)} tags; expected one per {unit}")
        label = None
        if record.get("label") is not None:
            label = _filled(field(record, "label", str, location), f"{location}: label")
        return tagged("", words, tags, None, location, joiner=joiner)._replace(label=label)

    return _read(lines, example)


def read_questions(lines: Lines, read_report: ReadReport, *, unanswerable: bool = False) -> Iterator[QuestionExample]:
    """Reads objects with "question" and "context" (texts) and, if known, "answers".

    These are read by `squad.answers_of`, and checked by `squad.with_placed_answers`.

    Args:
        lines: the file or its objects.
        read_report: counts answers that were moved or have no offset.
        unanswerable: whether "answers" may be empty.
    """

    def example(record: Any, location: str) -> QuestionExample:
        question, context = (field(record, name, str, location) for name in ("question", "context"))
        answers = answers_of(record, location, unanswerable)
        return with_placed_answers(QuestionExample("", question, context, answers, location), read_report)

    return _read(lines, example)


def read_choices(lines: Lines) -> Iterator[ChoiceExample]:
    """Reads objects with "context" (text) and "choices" (a list of at least two texts).

    Optional are "question" (text) and "label" (index of the correct choice, from 0).
    """

    def example(record: Any, location: str) -> ChoiceExample:
        context = field(record, "context", str, location)
        choices = tuple(field(record, "choices", list[str], location))
        if len(choices) < 2:
            raise DataError(f"{location}: {len(choices)} choices; expected at least two")
        question = field(record, "question", str, location) if "question" in record else ""
        label = whole(record.get("label"))
        if label is not None and not 0 <= checked(label, int, location, "label") < len(choices):
            raise DataError(f"{location}: label {label}; expected the index of a choice, 0 to {len(choices) - 1}")
        return ChoiceExample("", context, question, choices, label, location)

    return _read(lines, example)


def _read(lines: Lines, example: Callable[[Any, str], _Example]) -> Iterator[_Example]:
    """Maps each (object, location) to an example, and sets its id."""
    seen, count = Seen(), 0
    for location, record in _located(lines) if isinstance(lines, str) else lines:
        made = example(record, location)
        yield made._replace(id=identity(own_id(record), count, seen, location))
        count += 1
    if not count and isinstance(lines, str):
        raise DataError(f"{lines}: no examples; expected at least one")


def _located(path: str) -> Iterator[tuple[str, Any]]:
    return ((f"{path}:{number}", record) for number, record in read_json_lines(path))


def _filled(value: str, location: str) -> str:
    if not value.strip():
        raise DataError(f"{location}: {value!r}; expected text")
    return value
