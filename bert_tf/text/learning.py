"""Learns a WordPiece vocabulary from text, with Hugging Face's `tokenizers` as the learner."""

import collections
import gzip
import itertools

from tokenizers import Tokenizer as Learner
from tokenizers import models, pre_tokenizers, trainers

from bert_tf.errors import ConfigError, DataError
from bert_tf.text.codepoints import SPECIAL_PIECES
from bert_tf.text.normalizer import Normalizer
from bert_tf.text.tokenizer import MAX_WORD_CHARS

MIN_SIZE = 100  # below it there is no room for an alphabet, digits and punctuation
_CHUNK_BYTES = 1 << 20  # of text normalized at a time


def read_lines(path):
    """Yields the lines of a text file, or of one compressed by gzip (".gz"), as bytes."""
    try:
        with gzip.open(path, "rb") if str(path).endswith(".gz") else open(path, "rb") as file:
            yield from file
    except (EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: not a whole gzip file ({error}); fetch it again or unpack it") from error


def learn_vocabulary(lines, size, lower_case=True, strip_accents=None, split_cjk=True):
    """Learns a vocabulary; the same text always gives the same one.

    Characters come first, each alone and as "##" piece, but at most size / 4 of them: the most frequent. Words with
    others, which will be [UNK], and words that a tokenizer would cap teach nothing.

    Args:
        lines: iterable of str or bytes (UTF-8).
        size: number of pieces; a small text may not have as many.
        lower_case, strip_accents, split_cjk: as the `Tokenizer` that will use the vocabulary has them.

    Returns:
        list of str, the pieces by id; [PAD], [UNK], [CLS], [SEP] and [MASK] are 0 to 4.

    Raises:
        ConfigError: size is too small.
        DataError: no words.
    """
    if size < MIN_SIZE:
        raise ConfigError(f"a vocabulary of {size} pieces was asked for; expected at least {MIN_SIZE}")
    words = _count_words(lines, Normalizer(lower_case, strip_accents, split_cjk))
    if not words:
        raise DataError("no words in the text to learn a vocabulary from; expected lines of text")

    frequencies = collections.Counter()
    for word, count in words.items():
        for char in word:
            frequencies[char] += count
    # Ties by code point: a Counter's own order is that of the text, which is fine, but this can be reproduced by hand.
    characters = sorted(sorted(frequencies), key=lambda char: -frequencies[char])[: size // 4]
    known = set(characters)
    words = {word: count for word, count in sorted(words.items()) if known.issuperset(word)}
    inner = {char for word in words for char in word[1:]}

    # The learner meets words in the order of a randomly seeded hash table and numbers the "##" characters as they come,
    # and these numbers decide between equally frequent merges. Pieces it is given are numbered in the order given.
    given = [*SPECIAL_PIECES, *sorted(known), *(f"##{char}" for char in sorted(inner))]
    learner = Learner(models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, show_progress=False, special_tokens=given, continuing_subword_prefix="##"
    )
    learner.train_from_iterator((f"{word} " * count for word, count in words.items()), trainer)
    ids = learner.get_vocab()
    return sorted(ids, key=ids.get)[:size]


def _count_words(lines, normalizer):
    words = collections.Counter()
    for chunk in _chunks(lines):
        words.update(itertools.chain.from_iterable(normalizer.words(chunk)))
    return {word: count for word, count in words.items() if len(word) <= MAX_WORD_CHARS}


def _chunks(lines):
    chunk, chunk_bytes = [], 0
    for line in lines:
        chunk.append(line)
        chunk_bytes += len(line)
        if chunk_bytes >= _CHUNK_BYTES:
            yield chunk
            chunk, chunk_bytes = [], 0
    if chunk:
        yield chunk
