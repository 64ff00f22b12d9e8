"""Learns a WordPiece vocabulary from text, with the trainer of Hugging Face's `tokenizers`."""

import collections
import gzip
import itertools
from collections.abc import Iterable, Iterator

from bert_tf.errors import ConfigError, DataError
from bert_tf.text.codepoints import SPECIAL_PIECES
from bert_tf.text.normalizer import Normalizer
from bert_tf.text.tokenizer import MAX_WORD_CHARS
from bert_tf.types import StrPath

MIN_SIZE = 100  # a smaller one has no room for an alphabet, digits and punctuation
MAX_SIZE = 10_000_000  # of a model (config.model); the largest published one has a million
_LINES_PER_CHUNK = 1024  # normalized at a time


def read_lines(path: StrPath) -> Iterator[bytes]:
    """Yields the lines of a text file, plain or compressed by gzip (".gz"), that `check_text_files` has accepted."""
    with gzip.open(path, "rb") if str(path).endswith(".gz") else open(path, "rb") as file:
        yield from file


def learn_vocabulary(
    lines: Iterable[str | bytes],
    size: int,
    lower_case: bool = True,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
) -> list[str]:
    """Learns a vocabulary; deterministic: the same text always gives the same one.

    It starts with the most frequent characters, at most size / 4 of them, each alone and as "##" piece. Words with
    other characters, which will be [UNK], and words longer than a tokenizer accepts are ignored.

    Args:
        lines: text; bytes are UTF-8.
        size: number of pieces; a small text may give fewer.
        lower_case, strip_accents, split_cjk: as for the `Tokenizer` that will use the vocabulary.

    Returns:
        The pieces by id; [PAD], [UNK], [CLS], [SEP] and [MASK] are 0 to 4.
    """
    from tokenizers import Tokenizer as Learner  # here: nothing else in this package needs it
    from tokenizers import models, pre_tokenizers, trainers

    if not MIN_SIZE <= size <= MAX_SIZE:
        raise ConfigError(f"vocabulary size {size:,} is too {'small' if size < MIN_SIZE else 'large'}; expected "
                          f"{MIN_SIZE} up to {MAX_SIZE:,}")  # fmt: skip
    words = _count_words(lines, Normalizer(lower_case, strip_accents, split_cjk))
    if not words:
        raise DataError("no words in the text to learn a vocabulary from; expected lines of text")

    frequencies = collections.Counter[str]()
    for word, count in words.items():
        for char in word:
            frequencies[char] += count
    # Ties are sorted by code point. A Counter's own order, that of the text, would do, but this is easy to reproduce.
    characters = sorted(sorted(frequencies), key=lambda char: -frequencies[char])[: size // 4]
    known = set(characters)
    words = {word: count for word, count in sorted(words.items()) if known.issuperset(word)}
    inner = {char for word in words for char in word[1:]}

    # The learner visits words in the order of a randomly seeded hash table, and numbers "##" characters as it meets
    # them. These numbers decide between equally frequent merges. Pieces that it is given are numbered in their order.
    given = [*SPECIAL_PIECES, *sorted(known), *(f"##{char}" for char in sorted(inner))]
    learner = Learner(models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, show_progress=False, special_tokens=given, continuing_subword_prefix="##"
    )
    learner.train_from_iterator((f"{word} " * count for word, count in words.items()), trainer)
    ids = learner.get_vocab()
    return sorted(ids, key=ids.__getitem__)[:size]


def _count_words(lines: Iterable[str | bytes], normalizer: Normalizer) -> dict[str, int]:
    words = collections.Counter[str]()
    left = iter(lines)
    while chunk := list(itertools.islice(left, _LINES_PER_CHUNK)):
        words.update(itertools.chain.from_iterable(normalizer.words(chunk)))
    return {word: count for word, count in words.items() if len(word) <= MAX_WORD_CHARS}
