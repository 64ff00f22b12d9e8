"""Examples of each kind of task as plain Python values, whatever file they were read from."""

import collections
from typing import NamedTuple

# Places that are kept for each reason to skip an example, and those that are told on one line.
_LISTED, _SHOWN = 100, 5


class TextExample(NamedTuple):
    """One text or a pair, for classification with one label or several, and for regression.

    Attributes:
        id: what its prediction is called: its id in JSON lines or in a published set; else the row's number from 0.
        texts: one or two texts.
        label: as the file writes it, a class, several between separators, or a number; a float where the format has a
            Scale; a tuple of classes where JSON has a list; None in a test set.
        location: "file:line" or the like, for errors.
    """

    id: str
    texts: tuple[str, ...]
    label: str | float | tuple[str, ...] | None
    location: str


class TaggedExample(NamedTuple):
    """A text cut into words or characters, each with a tag.

    Attributes:
        id: the file's own id of the sentence, else its number from 0.
        text: the words joined as the data set has them: with spaces, or, of single characters, without.
        words: the words; `text[starts[i] : starts[i] + len(words[i])] == words[i]`. None where only the text is known.
        starts: where each word begins, in characters of `text`; None without words.
        tags: one a word, as the file writes them: a broken sequence is not mended. None where there are none.
        document: number of the document from 0; None where the file marks no documents.
        location: "file:line" of the first word.
    """

    id: str
    text: str
    words: tuple[str, ...] | None
    starts: tuple[int, ...] | None
    tags: tuple[str, ...] | None
    document: int | None
    location: str


class Answer(NamedTuple):
    """An answer's text; its start in characters of the context, None if the text is not there."""

    text: str
    start: int | None


class QuestionExample(NamedTuple):
    """A question about a text.

    Attributes:
        id: what its prediction is called.
        question, context: texts.
        answers: what counts as right; () if the context holds no answer, None if the data set does not say.
        location: the file and where in it, for errors.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None
    location: str

    @property
    def placed(self):
        """The first of the answers that is in the context, or None."""
        return next((answer for answer in self.answers or () if answer.start is not None), None)


class ChoiceExample(NamedTuple):
    """Several texts of which one goes with the context.

    Attributes:
        id: what its prediction is called.
        context: the text that is given.
        question: what is asked about it; "" if that is the same for all.
        choices: at least two texts.
        label: index of the right choice, None in a test set.
        location: the file and where in it, for errors.
    """

    id: str
    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None
    location: str


class ReadReport:
    """What readers left out or changed: how often for each reason, and the first locations.

    Attributes:
        counts: Counter reason -> how often.
        locations: dict reason -> list of the first 100 locations: memory does not grow with the data.
    """

    def __init__(self):
        self.counts = collections.Counter()
        self.locations = collections.defaultdict(list)

    def add(self, reason, location):
        """Counts one more for `reason`, a few words such as "skipped: empty text"."""
        self.counts[reason] += 1
        if len(self.locations[reason]) < _LISTED:
            self.locations[reason].append(location)

    def lines(self):
        """One line a reason, most frequent first: the reason, how often, and its first locations."""
        lines = []
        for reason, count in self.counts.most_common():
            locations = self.locations[reason][:_SHOWN]
            more = ", ..." if count > len(locations) else ""
            lines.append(f"{reason}: {count:,} ({', '.join(locations)}{more})")
        return lines


def is_blank(*texts):
    """Whether one of the texts has nothing but white space."""
    return not all(text.strip() for text in texts)


def tagged(identity, words, tags, document, location, *, joiner=" "):
    """A TaggedExample whose text is its words, joined; tags may be None."""
    starts, start = [], 0
    for word in words:
        starts.append(start)
        start += len(word) + len(joiner)
    tags = tags if tags is None else tuple(tags)
    return TaggedExample(identity, joiner.join(words), tuple(words), tuple(starts), tags, document, location)
