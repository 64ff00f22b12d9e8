"""Reader of COPA's XML (Roemmele et al., 2011)."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import ChoiceExample
from bert_tf.inputs.datasets.text_files import Seen, check_file

# As its authors asked human annotators.
COPA_QUESTIONS = {"cause": "What was the CAUSE of this?", "effect": "What happened as a RESULT?"}


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
            premise, *choices = (_text(item, tag, location) for tag in ("p", "a1", "a2"))
            answer = item.get("most-plausible-alternative")
            if answer not in (None, "1", "2"):
                raise DataError(f"{location}: label {answer!r}; expected one of 1, 2")
            label = int(answer) - 1 if answer else None
            yield ChoiceExample(name, premise, COPA_QUESTIONS[asked], tuple(choices), label, location)
            item.clear()  # memory stays flat
    except ElementTree.ParseError as error:
        raise DataError(f"{path}:{error.position[0]}: not XML ({error}); expected COPA's copa-corpus") from None
    if not seen:
        raise DataError(f"{path}: no items; expected COPA's copa-corpus")


def _text(item: ElementTree.Element, tag: str, location: str) -> str:
    element = item.find(tag)
    if element is None:
        raise DataError(f"{location}: no <{tag}>; expected <p>, <a1> and <a2>")
    return (element.text or "").strip()
