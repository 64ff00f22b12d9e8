"""Readers of questions: SQuAD (Rajpurkar et al., 2016, 2018) and KorQuAD 1.0 (Lim et al., 2019)."""

from collections.abc import Iterator
from typing import Any

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import Answer, QuestionExample, ReadReport, is_blank
from bert_tf.inputs.datasets.text_files import Seen, field, parts, read_json

MOVED = "moved: answer text found once, at another offset"
MISPLACED = "without offset: answer text not in its context"
AMBIGUOUS = "without offset: answer text several times in its context, not at its offset"


def read_squad(path: str, read_report: ReadReport, *, unanswerable: bool = False) -> Iterator[QuestionExample]:
    """Reads questions in SQuAD's JSON format; the whole file is in memory.

    An answer must be the text at its offset, in characters of the context. If it is not, it is moved if its text
    occurs in the context exactly once; otherwise its `start` is None: it keeps the text, which the official scripts
    compare, but training must skip it. Both are counted. Blank answers are dropped if there are others.

    Args:
        path: the file.
        read_report: counts answers that were moved or have no offset.
        unanswerable: whether questions may have no answer, as in SQuAD 2.0; its `plausible_answers` are not read.

    Yields:
        QuestionExample, in file order.
    """
    data = read_json(path)
    seen = Seen()
    for article, location in parts(data, "data", path):
        for paragraph, paragraph_location in parts(article, "paragraphs", location):
            context = field(paragraph, "context", str, paragraph_location)
            for record, location in parts(paragraph, "qas", paragraph_location):
                name = field(record, "id", str, location)
                seen.add(name, location)
                location = f"{location} ({name})"
                answers = answers_of(record, "answer_start", location, unanswerable)
                question = field(record, "question", str, location)
                yield with_placed_answers(QuestionExample(name, question, context, answers, location), read_report)
    if not seen:
        raise DataError(f"{path}: no questions; expected at least one")


def with_placed_answers(example: QuestionExample, read_report: ReadReport) -> QuestionExample:
    """Checks the offsets of an example's answers, and moves them or sets them to None as `read_squad` describes."""
    if not example.answers:
        return example
    # Without any answer left, the question would count as unanswerable, which it is not.
    answers = [answer for answer in example.answers if not is_blank(answer.text)] or example.answers
    return example._replace(answers=tuple(_placed(answer, example, read_report) for answer in answers))


def answers_of(record: Any, start: str, location: str, unanswerable: bool) -> tuple[Answer, ...] | None:
    """The answers as in the file, with their offsets in the field `start`; None if there is no field "answers"."""
    impossible = record.get("is_impossible", False)
    if "answers" not in record and not impossible:
        return None
    answers = tuple(
        Answer(field(answer, "text", str, where), field(answer, start, int, where))
        for answer, where in (parts(record, "answers", location) if "answers" in record else ())
    )
    if impossible and answers:
        raise DataError(f"{location}: is_impossible, but {len(answers)} answers; correct one of them")
    if not answers and not unanswerable:
        remedy = (
            "SQuAD 2.0 has such questions, SQuAD 1.1 and KorQuAD 1.0 do not: read it as 2.0 (data.format=squad2, "
            "task.unanswerable=True) or remove the question"
        )
        raise DataError(f"{location}: no answer; {remedy}")
    return answers


def _placed(answer: Answer, example: QuestionExample, read_report: ReadReport) -> Answer:
    text, start = answer
    if start is None or is_blank(text, example.context):
        return Answer(text, None)
    # A negative offset would count from the end.
    if start >= 0 and example.context.startswith(text, start):
        return answer
    found = example.context.find(text)
    several = found >= 0 and example.context.find(text, found + 1) >= 0
    if found >= 0 and not several:
        read_report.add(MOVED, example.location)
        return Answer(text, found)
    read_report.add(AMBIGUOUS if several else MISPLACED, example.location)
    return Answer(text, None)
