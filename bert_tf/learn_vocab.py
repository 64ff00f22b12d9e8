"""Learns a vocabulary: python -m bert_tf.learn_vocab --input='corpus/*.txt.gz' --output=vocab.txt --vocab_size=8000.

Of several languages, --input=en:english/*.txt,ko:korean/*.txt, each is read as often as pre-training samples it.
"""

import itertools
import math
import os
from collections.abc import Iterator, Sequence

from absl import flags

from bert_tf.app import run
from bert_tf.config.data import EXPONENT, corpora
from bert_tf.config.values import fitting
from bert_tf.errors import ConfigError
from bert_tf.files import check_output, replacing, write_bytes
from bert_tf.inputs.corpus.languages import Language, mixed_lines, passes, smoothed
from bert_tf.inputs.corpus.readers import check_text_files, find_files
from bert_tf.progress import bar
from bert_tf.text import BaseTokenizer, Tokenizer, learn_byte_pairs, learn_unigram, learn_vocabulary
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.learning import learn_albert, read_lines
from bert_tf.text.sentence_piece import SentencePieceTokenizer

_OUTPUTS = {"wordpiece": "vocab.txt", "byte_bpe": "vocab.json", "unigram": "NAME.model", "albert": "NAME.model"}
_KINDS = {".json": ("byte_bpe",), ".model": ("unigram", "albert")}  # by the ending of the output; wordpiece for others

_INPUT = flags.DEFINE_string(
    "input",
    None,
    "Text files, plain or .gz: names or glob patterns, separated by commas; of several languages with their names, "
    "en:FILES,ko:FILES.",
    required=True,
)
_EXPONENT = flags.DEFINE_float(
    "language_exponent", 0.7, "How languages are mixed, as data.language_exponent of pretrain."
)
_KIND = flags.DEFINE_enum(
    "kind",
    "wordpiece",
    list(_OUTPUTS),
    "wordpiece (BERT), byte_bpe (RoBERTa), or unigram (SentencePiece, XLM-R) or albert.",
)
_OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "Vocabulary file to write: vocab.txt for wordpiece, vocab.json for byte_bpe (and merges.txt beside it), NAME.model "
    "for unigram and albert.",
    required=True,
)
_SIZE = flags.DEFINE_integer("vocab_size", 8000, "Number of pieces.")
_LOWER_CASE = flags.DEFINE_bool("lower_case", True, "Lower-case the text; for wordpiece and albert.")
_STRIP_ACCENTS = flags.DEFINE_bool(
    "strip_accents", None, "Strip accents, likewise; by default the same as --lower_case."
)
_SPLIT_CJK = flags.DEFINE_bool("split_cjk", True, "Make every CJK ideograph a separate word; for wordpiece.")


def _read(languages: Sequence[Language]) -> Iterator[bytes]:
    """The lines of all files, by the shares of their languages; a progress bar counts the bytes read from disk."""
    sizes = {file: os.path.getsize(file) for one in languages for file in one.files}
    total = sum(math.ceil(passes(one, languages)) * sizes[file] for one in languages for file in one.files)
    with bar("reading", total, "B") as progress:

        def read(path: str) -> Iterator[bytes]:
            yield from read_lines(path)
            progress.update(sizes[path])

        yield from mixed_lines(languages, read)


def _check_kind() -> None:
    """Refuses an output or settings of another kind."""
    kind, output = _KIND.value, _OUTPUT.value
    named = _KINDS.get(os.path.splitext(output)[1], ("wordpiece",))
    # Two vocabularies in one folder would have one merges.txt.
    if kind not in named or (kind == "byte_bpe" and os.path.basename(output) != _OUTPUTS[kind]):
        raise ConfigError(f"--output={output}: expected {_OUTPUTS[kind]} for --kind={kind}")
    settings = _LOWER_CASE, _STRIP_ACCENTS, _SPLIT_CJK
    given = [one.name for one in settings[{"wordpiece": 3, "albert": 2}.get(kind, 0) :] if one.present]
    if given:
        raise ConfigError(f"--{given[0]} is no setting of {kind}; leave it out with --kind={kind}")


def _learn(lines: Iterator[bytes], size: int) -> BaseTokenizer:
    if _KIND.value == "byte_bpe":
        return BytePairTokenizer(*learn_byte_pairs(lines, size))
    if _KIND.value == "unigram":
        return SentencePieceTokenizer(learn_unigram(lines, size))
    settings = _LOWER_CASE.value, _STRIP_ACCENTS.value, _SPLIT_CJK.value
    if _KIND.value == "albert":
        return SentencePieceTokenizer(learn_albert(lines, size, *settings[:2]))
    return Tokenizer(learn_vocabulary(lines, size, *settings), *settings)


def _write(path: str, others: list[str], tokenizer: BaseTokenizer) -> None:
    """Writes the files of a tokenizer, which appear together: the first one to `path`, and the others beside it."""
    with replacing(path) as temporary:
        folder = os.path.dirname(temporary)
        paths = temporary, *(os.path.join(folder, os.path.basename(other)) for other in others)
        for written, content in zip(paths, tokenizer.contents(), strict=True):
            write_bytes(written, content)


def main(_: list[str]) -> None:
    output, size = _OUTPUT.value, _SIZE.value
    check_output(output)
    _check_kind()
    exponent = fitting(_EXPONENT.value, float, "--language_exponent", EXPONENT)
    files = {name: find_files(own.split(",")) for name, own in corpora(_INPUT.value, "--input").items()}
    paths = [*itertools.chain(*files.values())]
    merges = [os.path.join(os.path.dirname(output), BytePairTokenizer.FILES[1])] if _KIND.value == "byte_bpe" else []
    for written in (output, *merges):
        check_output(written, inputs=paths)
    sizes = {name: sum(check_text_files(own)) for name, own in files.items()}
    tokenizer = _learn(_read(smoothed(files, sizes, exponent)), size)
    _write(output, merges, tokenizer)
    count = tokenizer.vocab_size
    short = "" if count == size else f" of the {size} requested (the text has no more)"
    print(f"{output}: {count} pieces{short}, from {len(paths)} file{'s' if len(paths) > 1 else ''}")


if __name__ == "__main__":
    run(main)
