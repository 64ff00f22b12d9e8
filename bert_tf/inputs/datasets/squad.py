"""Readers of questions: SQuAD (Rajpurkar et al., 2016, 2018), KorQuAD 1.0 (Lim et al., 2019), KLUE (Park et al., 2021).

Every source of questions (files, JSON lines, TFDS, memory) reads answers with `answers_of` and checks their offsets
with `with_placed_answers`.
"""

import functools
import unicodedata
from collections.abc import Iterator
from typing import Any

from bert_tf.errors import DataError
from bert_tf.files import checked
from bert_tf.inputs.datasets.examples import Answer, QuestionExample, ReadReport, is_blank
from bert_tf.inputs.datasets.text_files import Seen, field, identity, own_id, parts, read_json, whole

MOVED = "moved: answer text found at another offset"
MATCHED = "matched: answer text found in its context with other white space, invisible characters or Unicode form"
MISPLACED = "without offset: answer text not in its context"
AMBIGUOUS = "without offset: answer text several times in its context, not at its offset"


def read_squad(path: str, read_report: ReadReport, *, unanswerable: bool = False) -> Iterator[QuestionExample]:
    """Reads questions in SQuAD's JSON format; the whole file is in memory.

    The id is "id" or, as in KLUE-MRC, "guid": text or a whole number. Answers are read by `answers_of` and checked by
    `with_placed_answers`.

    Args:
        path: the file.
        read_report: counts answers that were moved or have no offset.
        unanswerable: whether questions may have no answer, as in SQuAD 2.0; its `plausible_answers` are not read.

    Yields:
        QuestionExample, in file order.
    """
    data = read_json(path)
    seen, count = Seen(), 0
    for article, location in parts(data, "data", path):
        for paragraph, paragraph_location in parts(article, "paragraphs", location):
            context = field(paragraph, "context", str, paragraph_location)
            for record, location in parts(paragraph, "qas", paragraph_location):
                name = identity(own_id(record), count, seen, location)
                location = f"{location} ({name})"
                question = field(record, "question", str, location)
                answers = answers_of(record, location, unanswerable)
                yield with_placed_answers(QuestionExample(name, question, context, answers, location), read_report)
                count += 1
    if not count:
        raise DataError(f"{path}: no questions; expected at least one")


def with_placed_answers(example: QuestionExample, read_report: ReadReport) -> QuestionExample:
    """Checks the offsets of an example's answers, and repairs those that can be repaired.

    An answer must be the text at its offset, in characters of the context. Otherwise it gets, and it is counted:

    - the span at the offset, or after white space there, if it equals the text; equality ignores the kind and amount of
      white space, invisible characters and the Unicode form (NFC and NFD);
    - else the only place where the text occurs literally, or the only one where it occurs with these differences;
    - else no `start`: it keeps the text, which the official scripts compare, but training must skip it.

    Blank answers are dropped if there are others.
    """
    if not example.answers:
        return example
    # Without any answer left, the question would count as unanswerable, which it is not.
    answers = [answer for answer in example.answers if not is_blank(answer.text)] or example.answers
    return example._replace(answers=tuple(_placed(answer, example, read_report) for answer in answers))


def answers_of(record: Any, location: str, unanswerable: bool) -> tuple[Answer, ...] | None:
    """The answers of a question with their offsets, not yet checked; None if they are missing or null.

    Args:
        record: an object. "answers" is a list of objects with "text" and "answer_start" or "start", as in SQuAD, or an
            object with a list for each of both, as in Hugging Face's and TensorFlow's data sets.
        location: of the record.
        unanswerable: whether there may be no answers.
    """
    impossible, given = record.get("is_impossible", False), record.get("answers")
    if given is None and not impossible:
        return None
    answers = () if given is None else tuple(_listed(given, record, location))
    if impossible and answers:
        raise DataError(f"{location}: is_impossible, but {len(answers)} answers; correct one of them")
    if not answers and not unanswerable:
        remedy = (
            "SQuAD 2.0 and KLUE-MRC have such questions, SQuAD 1.1 and KorQuAD 1.0 do not: read it as 2.0 "
            "(data.format=squad2, task.unanswerable=True) or remove the question"
        )
        raise DataError(f"{location}: no answer; {remedy}")
    return answers


def _listed(given: Any, record: Any, location: str) -> Iterator[Answer]:
    if not isinstance(given, dict):
        for answer, where in parts(record, "answers", location):
            name = _start_of(answer)
            if isinstance(answer, dict) and name in answer:
                answer = answer | {name: whole(answer[name])}
            yield Answer(field(answer, "text", str, where), field(answer, name, int, where))
        return
    where = f"{location}: answers"
    name = _start_of(given)
    texts, starts = field(given, "text", list[str], where), list(map(whole, field(given, name, list, where)))
    if len(texts) != len(starts):
        raise DataError(f"{where}: {len(texts)} texts and {len(starts)} starts; expected one start per text")
    yield from map(Answer, texts, checked(starts, list[int], where, name))


def _start_of(answer: Any) -> str:
    """The field with the offset, or the offsets."""
    return "start" if isinstance(answer, dict) and "start" in answer else "answer_start"


def _placed(answer: Answer, example: QuestionExample, read_report: ReadReport) -> Answer:
    text, start, context = answer.text, answer.start, example.context
    if start is None or is_blank(text, context):
        return Answer(text, None)
    # A negative offset would count from the end.
    if start >= 0 and context.startswith(text, start):
        return answer
    spans = _equal_spans(text, context)
    span = next((span for span in spans if 0 <= start <= span[0] and not context[start : span[0]].strip()), None)
    if not span:
        found = context.find(text)
        if found >= 0:
            spans = [(found, found + len(text))] if context.find(text, found + 1) < 0 else []
        if len(spans) != 1:
            read_report.add(AMBIGUOUS if found >= 0 or spans else MISPLACED, example.location)
            return Answer(text, None)
        span = spans[0]
    is_literal = context[slice(*span)] == text
    read_report.add(MOVED if is_literal else MATCHED, example.location)
    return Answer(text, span[0], None if is_literal else span[1])


def _equal_spans(text: str, context: str) -> list[tuple[int, int]]:
    """Start and end of all parts of the context that equal the text up to the differences that `_normal` removes."""
    wanted, (normal, starts) = _normal(text)[0].strip(), _normal(context)
    spans = []
    position = normal.find(wanted)
    while wanted and position >= 0:
        end = position + len(wanted)
        # One character can become several: a part of them is no span of the context.
        if starts[end - 1] < starts[end] and (not position or starts[position - 1] < starts[position]):
            spans.append((starts[position], starts[end]))
        position = normal.find(wanted, position + 1)
    return spans


@functools.lru_cache(maxsize=4)  # many questions are about the same context
def _normal(text: str) -> tuple[str, tuple[int, ...]]:
    """A text in NFC, without invisible characters, with single spaces for white space; and where its characters start.

    Returns:
        (the text, the start of each of its characters in the original text and the length of that).
    """
    normal, starts = "", list[int]()
    for start, unit in _units(text):
        if unit.isspace():
            unit = "" if normal.endswith(" ") else " "
        elif unicodedata.category(unit[0]) in ("Cc", "Cf"):
            unit = unit[1:]
        unit = unicodedata.normalize("NFC", unit)
        normal += unit
        starts += [start] * len(unit)
    return normal, (*starts, len(text))


def _units(text: str) -> Iterator[tuple[int, str]]:
    """(start, characters) of the shortest parts of a text that can be brought into NFC each by itself."""
    unit, first = "", 0
    for index, character in enumerate(text):
        if unit and not character.isascii() and _combine(unit, character):
            unit += character
            continue
        if unit:
            yield first, unit
        unit, first = character, index
    if unit:
        yield first, unit


def _combine(unit: str, character: str) -> bool:
    both, *each = (unicodedata.normalize("NFC", text) for text in (unit + character, unit, character))
    return unicodedata.combining(character) > 0 or both != "".join(each)
