"""Readers of multiple choice: SWAG (Zellers et al., 2018), COPA (Roemmele et al., 2011), and users' JSON lines."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import ChoiceExample
from bert_tf.inputs.datasets.tables import table_rows
from bert_tf.inputs.datasets.text_files import (
    Seen,
    check_file,
    checked,
    field,
    identity,
    parts,
    read_json_lines,
)

_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
# As COPA's authors asked human annotators.
COPA_QUESTIONS = {"cause": "What was the CAUSE of this?", "effect": "What happened as a RESULT?"}


def read_swag(path: str) -> Iterator[ChoiceExample]:
    """Reads SWAG's `train.csv`, `val.csv` or `test.csv`: a sentence, the beginning of the next, and four endings.

    As in the BERT paper (section 4.4), the sentence is the context, and each choice is the beginning with one of the
    endings.

    Yields:
        ChoiceExample; `id` is the row number from 0, `label` None if the file has no such column.
    """
    for count, (number, row) in enumerate(table_rows(path, ("sent1", "sent2", *_ENDINGS), ["label"])):
        location = f"{path}:{number}"
        context, beginning, *endings, label = row
        choices = tuple(f"{beginning} {ending}".strip() for ending in endings)
        yield ChoiceExample(
            str(count), context, "", choices, None if label is None else _index(label, 0, 4, location), location
        )


def read_copa(path: str) -> Iterator[ChoiceExample]:
    """Reads COPA's XML: a premise, a question about its cause or effect, and two alternatives.

    Yields:
        ChoiceExample; `question` is one of `COPA_QUESTIONS`.
    """
    check_file(path)
    seen = Seen()
    try:
        for _, item in ElementTree.iterparse(path):
            if item.tag != "item":
                continue
            name = item.get("id", "")
            location = f"{path}: item {name or len(seen) + 1}"
            if not name:
                raise DataError(f"{location}: no id; number the items")
            # Items with the same id have the same location: the number tells them apart.
            seen.add(name, f"{location}, number {len(seen) + 1} of the file")
            asked = item.get("asks-for")
            if asked not in COPA_QUESTIONS:
                raise DataError(f"{location}: asks-for is {asked!r}; expected {' or '.join(COPA_QUESTIONS)}")
            premise, *choices = (_xml_text(item, tag, location) for tag in ("p", "a1", "a2"))
            answer = item.get("most-plausible-alternative")
            label = None if answer is None else _index(answer, 1, 2, location)
            yield ChoiceExample(name, premise, COPA_QUESTIONS[asked], tuple(choices), label, location)
            item.clear()  # memory stays flat
    except ElementTree.ParseError as error:
        raise DataError(f"{path}:{error.position[0]}: not XML ({error}); expected COPA's copa-corpus") from None
    if not seen:
        raise DataError(f"{path}: no items; expected COPA's copa-corpus")


def read_choices(path: str) -> Iterator[ChoiceExample]:
    """Reads JSON lines with a context and any number of choices.

    Each line is an object with "context" (text) and "choices" (a list of at least two texts). Optional fields are
    "question" (text), "label" (index of the correct choice, from 0) and "id" (see `text_files.identity`).

    Yields:
        ChoiceExample; `label` is None without the field.
    """
    seen, count = Seen(), 0
    for number, row in read_json_lines(path):
        location = f"{path}:{number}"
        context = field(row, "context", str, location)
        choices = tuple(checked(choice, str, where) for choice, where in parts(row, "choices", location))
        if len(choices) < 2:
            raise DataError(f"{location}: {len(choices)} choices; expected at least two")
        question = field(row, "question", str, location) if "question" in row else ""
        name = identity(row.get("id"), count, seen, location)
        label = row.get("label")
        if label is not None and not 0 <= checked(label, int, f"{location}: label") < len(choices):
            raise DataError(f"{location}: label {label}; expected the index of a choice, 0 to {len(choices) - 1}")
        count += 1
        yield ChoiceExample(name, context, question, choices, label, location)
    if not count:
        raise DataError(f"{path}: no examples; expected at least one")


def _index(text: str, first: int, count: int, location: str) -> int:
    """The index from 0 of a label counted from `first`."""
    labels = [str(first + index) for index in range(count)]
    if text not in labels:
        raise DataError(f"{location}: label {text!r}; expected one of {', '.join(labels)}")
    return labels.index(text)


def _xml_text(item: ElementTree.Element, tag: str, location: str) -> str:
    element = item.find(tag)
    if element is None:
        raise DataError(f"{location}: no <{tag}>; expected <p>, <a1> and <a2>")
    return (element.text or "").strip()
