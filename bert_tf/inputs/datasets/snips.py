"""Reader of intents and slots in three files that belong together: seq.in, seq.out and label (SNIPS, ATIS)."""

import itertools
import os
from collections.abc import Iterator

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TaggedExample, tagged
from bert_tf.inputs.datasets.text_files import read_lines


def read_intents(path: str) -> Iterator[TaggedExample]:
    """Reads a text a line: its words in seq.in, as many tags in seq.out, and its intent in label.

    Args:
        path: the file seq.in; the others are beside it, and may both be missing for prediction.
    """
    others = [os.path.join(os.path.dirname(path), name) for name in ("seq.out", "label")]
    present = [read_lines(file) for file in others if os.path.exists(file)]
    if len(present) == 1:
        missing = next(file for file in others if not os.path.exists(file))
        raise DataError(f"{missing}: not there; expected the tags in seq.out and the intents in label, beside {path}")
    rows = itertools.zip_longest(read_lines(path), *present)
    for number, row in enumerate(rows):
        location = f"{path}:{number + 1}"
        if None in row:
            raise DataError(f"{location}: {' and '.join(others)} have another number of lines; expected one per text")
        words, *rest = (line.split() for _, line in row)
        if not words and not any(rest):
            continue
        tags, label = rest or (None, [None])
        if not words or (tags is not None and len(tags) != len(words)):
            raise DataError(
                f"{location}: {len(words)} words and {len(tags or ())} tags in {others[0]}; expected one per word"
            )
        if len(label) != 1:
            raise DataError(
                f"{location}: {' '.join(map(str, label))!r} in {others[1]}; expected the name of one intent"
            )
        yield tagged(str(number), words, tags, None, location)._replace(label=label[0])
