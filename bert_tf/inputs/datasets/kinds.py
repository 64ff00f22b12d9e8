"""What the classes of examples need beside their format: readers of JSON lines and TFDS, and values for Python."""

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bert_tf.inputs.datasets import json_lines, tfds_sets
from bert_tf.inputs.datasets.examples import (
    ChoiceExample,
    QuestionExample,
    TaggedExample,
    TextExample,
    TextGroup,
    is_blank,
)
from bert_tf.inputs.datasets.formats import FORMATS, File, texts_of
from bert_tf.inputs.datasets.groups import of_question, of_text, read_groups
from bert_tf.inputs.datasets.tagged import adjoin

EMPTY = "skipped: empty text"


class Kind(NamedTuple):
    """Readers and checks for one class of examples, independent of the task and the format.

    Attributes:
        gold: name of the attribute with the label; it is None in a test set.
        skip_reason: maps a labelled example to the reason why it is useless for training and evaluation, or to None.
        lines: reader of JSON lines, or of such objects in memory.
        tfds: reader of TFDS.
        values: maps an example to its input and its label as the Python API takes them.
        converts: other classes of examples -> a function that makes this one of them, or None to skip them.
    """

    gold: str
    skip_reason: Callable[[Any], str | None]
    lines: Callable[[json_lines.Lines, File], Iterator[Any]]
    tfds: Callable[[File], Iterator[Any]]
    values: Callable[[Any], tuple[Any, Any]]
    converts: Mapping[type, Callable[[Any], Any]] = types.MappingProxyType({})

    def read(self, examples: Iterator[Any]) -> Iterator[Any]:
        """Examples of this class from those that a format has."""
        made = (self.converts[type(one)](one) if type(one) in self.converts else one for one in examples)
        return (one for one in made if one is not None)


def _unanswerable(file: File) -> bool:
    return FORMATS[file.data.format].unanswerable


def _question_skip_reason(example: QuestionExample) -> str | None:
    if is_blank(example.question, example.context):
        return EMPTY
    if example.answers and is_blank(*(answer.text for answer in example.answers)):
        return "skipped: question whose answers are all empty"
    return None


def _text_values(example: TextExample) -> tuple[Any, Any]:
    return example.texts if len(example.texts) > 1 else example.texts[0], example.label


def _tagged_values(example: TaggedExample) -> tuple[Any, Any]:
    tags = None if example.tags is None else list(example.tags)
    of_characters = example.words is None or adjoin(example)
    units = example.text if of_characters else list(example.words or ())
    return units, tags if example.label is None else (example.label, tags)


def _question_values(example: QuestionExample) -> tuple[Any, Any]:
    texts = [answer.text for answer in example.answers or ()]
    # -1: at no offset, also where one occurrence of several is the first word.
    starts = [-1 if answer.start is None else answer.start for answer in example.answers or ()]
    return (example.question, example.context), {"text": texts, "answer_start": starts} if texts else None


def _choice_values(example: ChoiceExample) -> tuple[Any, Any]:
    return (example.context, example.question, list(example.choices)), example.label


KINDS: dict[type, Kind] = {
    TextExample: Kind(
        "label",
        lambda example: EMPTY if is_blank(*example.texts) else None,
        lambda lines, file: json_lines.read_text_lines(
            lines, texts_of(file.data), file.data.label, labelled=file.labelled
        ),
        lambda file: tfds_sets.read_tfds_texts(file.path, file.part, texts_of(file.data), file.data.label),
        _text_values,
    ),
    TaggedExample: Kind(
        "tags",
        lambda example: EMPTY if is_blank(example.text) else None,
        lambda lines, file: json_lines.read_tagged_lines(lines),
        lambda file: tfds_sets.read_tfds_tags(file.path, file.part, file.data.column or "ner"),
        _tagged_values,
    ),
    QuestionExample: Kind(
        "answers",
        _question_skip_reason,
        lambda lines, file: json_lines.read_questions(lines, file.read_report, unanswerable=_unanswerable(file)),
        lambda file: tfds_sets.read_tfds_questions(
            file.path, file.part, file.read_report, unanswerable=_unanswerable(file)
        ),
        _question_values,
    ),
    ChoiceExample: Kind(
        "label",
        lambda example: EMPTY if is_blank(example.context + example.question, *example.choices) else None,
        lambda lines, file: json_lines.read_choices(lines),
        lambda file: tfds_sets.read_tfds_choices(file.path, file.part),
        _choice_values,
    ),
    TextGroup: Kind(
        "texts",
        lambda example: EMPTY if is_blank(*example.texts) else None,
        lambda lines, file: read_groups(lines),
        lambda file: map(
            of_text, tfds_sets.read_tfds_texts(file.path, file.part, texts_of(file.data), file.data.label)
        ),
        lambda example: (example.texts if len(example.texts) > 1 else example.texts[0], example.label),
        {TextExample: of_text, QuestionExample: of_question},
    ),
}
