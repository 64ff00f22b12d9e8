"""Learns a vocabulary: python -m bert_tf.learn_vocab --input='corpus/*.txt.gz' --output=vocab.txt --vocab_size=8000."""

import os
from collections.abc import Iterator

from absl import flags

from bert_tf.app import run
from bert_tf.files import check_output
from bert_tf.inputs.corpus.readers import check_text_files, find_files
from bert_tf.progress import bar
from bert_tf.text import learn_vocabulary, write_vocabulary
from bert_tf.text.learning import read_lines

_INPUT = flags.DEFINE_string(
    "input", None, "Text files, plain or .gz: names or glob patterns, separated by commas.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "Vocabulary file (vocab.txt) to write.", required=True)
_SIZE = flags.DEFINE_integer("vocab_size", 8000, "Number of wordpieces.")
_LOWER_CASE = flags.DEFINE_bool("lower_case", True, "Lower-case the text.")
_STRIP_ACCENTS = flags.DEFINE_bool("strip_accents", None, "Strip accents; by default the same as --lower_case.")
_SPLIT_CJK = flags.DEFINE_bool("split_cjk", True, "Make every CJK ideograph a separate word.")


def _read(paths: list[str]) -> Iterator[bytes]:
    """The lines of all files; a progress bar counts the bytes read from disk."""
    with bar("reading", sum(map(os.path.getsize, paths)), "B") as progress:
        for path in paths:
            yield from read_lines(path)
            progress.update(os.path.getsize(path))


def main(_: list[str]) -> None:
    check_output(_OUTPUT.value)
    paths = find_files(_INPUT.value.split(","))
    check_output(_OUTPUT.value, inputs=paths)
    check_text_files(paths)
    pieces = learn_vocabulary(
        _read(paths), _SIZE.value, _LOWER_CASE.value, _STRIP_ACCENTS.value, split_cjk=_SPLIT_CJK.value
    )
    write_vocabulary(_OUTPUT.value, pieces)
    short = "" if len(pieces) == _SIZE.value else f" of the {_SIZE.value} requested (the text has no more)"
    print(f"{_OUTPUT.value}: {len(pieces)} wordpieces{short}, from {len(paths)} file{'s' if len(paths) > 1 else ''}")


if __name__ == "__main__":
    run(main)
