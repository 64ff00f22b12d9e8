"""Examples as plain Python values, one class per kind of task, whatever file they come from."""

import collections
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

# Locations kept for each reason, and those shown on its line.
_LISTED, _SHOWN = 100, 5
INTEGER = re.compile("0|-?[1-9][0-9]{0,299}")  # a whole number as Python writes it
_WHOLE = re.compile(rf"({INTEGER.pattern})(\.0+)?")


class Scale(NamedTuple):
    """Labels that are numbers from `low` to `high`."""

    low: float
    high: float


Labels: TypeAlias = tuple[str, ...] | Scale  # the classes in their order, or numbers


class Cell(str):
    """A label in a table, which does not tell numbers from texts; pandas writes 5 as "5.0" if a value is missing."""


class TextExample(NamedTuple):
    """One text or a pair of texts: single-label or multi-label classification, and regression.

    Attributes:
        id: identifies its prediction: the id in JSON lines or in a published data set, else the row number from 0.
        texts: one or two texts.
        label: a class, several classes between separators, or a number, as in the data: a Cell if it is from a table; a
            float if the format has a Scale; a tuple of classes for a list in JSON; None in a test set.
        location: "file:line" or the like, for errors.
    """

    id: str
    texts: tuple[str, ...]
    label: str | float | tuple[str | float, ...] | None
    location: str


class TextGroup(NamedTuple):
    """Texts from which a sentence encoder or a reranker learns.

    Attributes:
        id: identifies it.
        texts: a query and a text that belongs to it; more texts do not belong to it. Or a pair with a number, or a
            single text, with its class or for a teacher.
        label: a number or a class, as in the data; a number for each text after the first; None if there is none.
        location: "file:line" or the like, for errors.
    """

    id: str
    texts: tuple[str, ...]
    label: str | float | tuple[float, ...] | None
    location: str


class TaggedExample(NamedTuple):
    """A text split into words or characters, with one tag per word.

    Attributes:
        id: the sentence's id in the file, else its number from 0.
        text: the words joined as in the data set: with spaces, or, for single characters, without.
        words: such that `text[starts[i] : starts[i] + len(words[i])] == words[i]`. None if only the text is known.
        starts: start of each word, in characters of `text`; None without words.
        tags: one per word, as in the file: a broken sequence is not repaired. None if there are none.
        document: number of the document from 0; None if the file does not mark documents.
        location: "file:line" of the first word.
        label: the class of the text; None if the data has none.
    """

    id: str
    text: str
    words: tuple[str, ...] | None
    starts: tuple[int, ...] | None
    tags: tuple[str, ...] | None
    document: int | None
    location: str
    label: str | None = None


class Answer(NamedTuple):
    """An answer.

    Attributes:
        text: as in the data set; metrics compare it.
        start: in characters of the context; None if the text does not occur there.
        end: end of the part of the context that is learned, if that differs from the text, for example in white space;
            None for `start + len(text)`.
    """

    text: str
    start: int | None
    end: int | None = None


class QuestionExample(NamedTuple):
    """A question about a text.

    Attributes:
        id: identifies its prediction.
        question: the question.
        context: the text it is about.
        answers: the correct answers; () if the context contains none, None if the data set has no answers.
        location: file and position in it, for errors.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None
    location: str

    @property
    def placed(self) -> Answer | None:
        """The first answer with a start in the context, or None."""
        return next((answer for answer in self.answers or () if answer.start is not None), None)


class ChoiceExample(NamedTuple):
    """Several texts, one of which fits the context.

    Attributes:
        id: identifies its prediction.
        context: the given text.
        question: about the context; "" if it is the same for all examples.
        choices: at least two texts.
        label: index of the correct choice, None in a test set.
        location: file and position in it, for errors.
    """

    id: str
    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None
    location: str


class ReadReport:
    """Examples that readers skipped or changed: a count per reason, and the first locations.

    Attributes:
        counts: number of examples for each reason.
        locations: the first 100 locations for each reason; memory does not grow with the data.
    """

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.locations: collections.defaultdict[str, list[str]] = collections.defaultdict(list)

    def add(self, reason: str, location: str) -> None:
        """Counts one example under `reason`, a few words such as "skipped: empty text"."""
        self.counts[reason] += 1
        if len(self.locations[reason]) < _LISTED:
            self.locations[reason].append(location)

    def merge(self, other: "ReadReport") -> None:
        """Adds the counts of another report."""
        self.counts.update(other.counts)
        for reason, locations in other.locations.items():
            self.locations[reason] = (self.locations[reason] + locations)[:_LISTED]

    def lines(self) -> list[str]:
        """One line per reason, most frequent first: the reason, its count and its first locations."""
        lines = []
        for reason, count in self.counts.most_common():
            locations = self.locations[reason][:_SHOWN]
            more = ", ..." if count > len(locations) else ""
            lines.append(f"{reason}: {count:,} ({', '.join(locations)}{more})")
        return lines


def is_blank(*texts: str) -> bool:
    """Whether any of the texts is empty or white space only."""
    return not all(text.strip() for text in texts)


def is_whole(label: Any) -> bool:
    """Whether a label is from a table and a whole number."""
    return isinstance(label, Cell) and _WHOLE.fullmatch(label) is not None


def tagged(
    identity: str,
    words: Sequence[str],
    tags: Sequence[str] | None,
    document: int | None,
    location: str,
    *,
    joiner: str = " ",
) -> TaggedExample:
    """Makes a TaggedExample from words; its text is the words with `joiner` between them."""
    starts, start = [], 0
    for word in words:
        starts.append(start)
        start += len(word) + len(joiner)
    tags = tags if tags is None else tuple(tags)
    return TaggedExample(identity, joiner.join(words), tuple(words), tuple(starts), tags, document, location)
