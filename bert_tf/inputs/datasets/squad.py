"""Questions about texts: SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, 2018), KorQuAD 1.0 (Lim et al., 2019)."""

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import Answer, QuestionExample, is_blank
from bert_tf.inputs.datasets.text_files import Seen, field, identity, parts, read_json, read_json_lines

MOVED = "moved: answer to the only location that holds its text"
MISPLACED = "without location: answer that is not in its context"
AMBIGUOUS = "without location: answer that is not at its offset and several times in its context"


def read_squad(path, read_report, *, unanswerable=False):
    """Questions of a JSON file in SQuAD's form; the whole file is in memory.

    An answer must be the text at its offset, in characters of the context. Where it is not, it is moved if its text is
    in the context exactly once; otherwise it keeps its text, by which official scripts score, and has no `start`, and
    training must pass it over. Both are counted. Of several answers those that are white space are left out.

    Args:
        path: the file.
        read_report: ReadReport.
        unanswerable: whether questions may have no answer, as in SQuAD 2.0; its `plausible_answers` are not read.

    Yields:
        QuestionExample, in file order.

    Raises:
        DataError: as `read_json`; a field is missing or of another type, an id occurs twice, a question that has
            answers is said to have none, one has none though `unanswerable` is false, or there are no questions.
    """
    data = read_json(path)
    seen = Seen()
    for article, location in parts(data, "data", path):
        for paragraph, paragraph_place in parts(article, "paragraphs", location):
            context = field(paragraph, "context", str, paragraph_place)
            for record, location in parts(paragraph, "qas", paragraph_place):
                name = field(record, "id", str, location)
                seen.add(name, location)
                location = f"{location} ({name})"
                answers = _answers(record, "answer_start", location, unanswerable)
                question = field(record, "question", str, location)
                yield with_placed_answers(QuestionExample(name, question, context, answers, location), read_report)
    if not seen:
        raise DataError(f"{path}: no questions; expected at least one")


def read_questions(path, read_report, *, unanswerable=False):
    """JSON lines of a question and the text that it is about, as anybody can write them.

    Each is an object with "question" and "context" (texts), and, if wanted, "answers" (a list of objects with "text"
    and "start", its location in characters of the context) and "id" as `text_files.identity` takes it.
    Answers are checked as by `read_squad`.

    Args:
        path: the file, or "-" for standard input.
        read_report: ReadReport.
        unanswerable: whether "answers" may be empty.

    Yields:
        QuestionExample; `answers` is None where there is no such field.

    Raises:
        DataError: as `read_json_lines`; a field is missing or of another type, an id occurs twice, a question has no
            answer though `unanswerable` is false, or there are no questions; with the line.
    """
    seen, count = Seen(), 0
    for number, record in read_json_lines(path):
        location = f"{path}:{number}"
        question, context = (field(record, name, str, location) for name in ("question", "context"))
        name = identity(record.get("id"), count, seen, location)
        count += 1
        answers = _answers(record, "start", location, unanswerable)
        yield with_placed_answers(QuestionExample(name, question, context, answers, location), read_report)
    if not count:
        raise DataError(f"{path}: no questions; expected at least one")


def with_placed_answers(example, read_report):
    """A QuestionExample whose answers are where they say, have been moved there or have no location, as in `read_squad`.

    Args:
        example: QuestionExample, its answers with the starts that the data set gives, or None.
        read_report: ReadReport.
    """
    if not example.answers:
        return example
    # Without any text left, the question would be one that nothing answers, which it is not.
    answers = [answer for answer in example.answers if not is_blank(answer.text)] or example.answers
    return example._replace(answers=tuple(_placed(answer, example, read_report) for answer in answers))


def _answers(record, start, location, unanswerable):
    """Tuple of Answer as the file has them, `start` the name of their location; None if it has no such field."""
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


def _placed(answer, example, read_report):
    text, start = answer
    if is_blank(text, example.context):
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
