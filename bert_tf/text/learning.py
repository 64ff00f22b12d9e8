"""Learns vocabularies from text, by the trainers of Hugging Face's `tokenizers` and of `sentencepiece`."""

import collections
import gzip
import heapq
import io
import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bert_tf.config.values import half_pairs
from bert_tf.errors import ConfigError, DataError
from bert_tf.text.base import BERT, ROBERTA
from bert_tf.text.codepoints import SPECIAL_PIECES
from bert_tf.text.normalizer import AlbertNormalizer, Normalizer, strips_accents
from bert_tf.text.sentence_piece import parse_model
from bert_tf.text.wordpiece import MAX_WORD_CHARS
from bert_tf.types import StrPath

MIN_SIZE = 100  # a smaller one has no room for an alphabet, digits and punctuation
MAX_SIZE = 10_000_000  # of a model (config.model); the largest published one has a million
_LINES_PER_CHUNK = 1024  # normalized at a time
_NO_WORDS = "no words in the text to learn a vocabulary from; expected lines of text"
_FIRST = (ROBERTA.cls, ROBERTA.pad, ROBERTA.sep, ROBERTA.unk)  # RoBERTa's ids 0 to 3; <mask> is the last
# sentencepiece keeps its text in memory, and takes 45 bytes for each character.
_SAMPLE_CHARS = 50_000_000
# Longer lines are cut at white space: sentencepiece drops very long ones, and see `_counted`.
_PART_CHARS = 1000
_PARTS = re.compile(rf"(?s).{{1,{_PART_CHARS}}}(?:\s|$)|.{{{_PART_CHARS}}}")


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
    """Learns a WordPiece vocabulary; deterministic: the same text always gives the same one.

    It starts with the most frequent characters, at most size / 4 of them, each alone and as "##" piece. Words with
    other characters, which will be [UNK], and words longer than a tokenizer accepts are ignored.

    Args:
        lines: text; bytes are UTF-8.
        size: number of pieces; a small text may give fewer.
        lower_case, strip_accents, split_cjk: as for the `Tokenizer` that will use the vocabulary.

    Returns:
        The pieces by id; [PAD], [UNK], [CLS], [SEP] and [MASK] are 0 to 4.
    """
    from tokenizers import Tokenizer as Learner
    from tokenizers import models, pre_tokenizers, trainers

    _check_size(size, MIN_SIZE)
    words = _count_words(lines, Normalizer(lower_case, strip_accents, split_cjk))
    if not words:
        raise DataError(_NO_WORDS)

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


def learn_byte_pairs(lines: Iterable[str | bytes], size: int) -> tuple[list[str], list[str]]:
    """Learns a vocabulary of byte-level BPE; deterministic: the same text always gives the same one.

    Args:
        lines: text; bytes are UTF-8. Their ends are left out.
        size: number of pieces; a small text may give fewer.

    Returns:
        The arguments of `BytePairTokenizer`: the pieces by id, of which <s>, <pad>, </s> and <unk> are 0 to 3, the
        bytes follow and <mask> is the last, as RoBERTa's; and the merges by rank. Each merge makes a piece of its own,
        and merging by the joined string equals merging by pairs, because a piece always forms in the same steps.
    """
    from tokenizers import Tokenizer as Learner
    from tokenizers import models, pre_tokenizers, trainers

    _check_size(size, 256 + len(ROBERTA))
    learner = Learner(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.pre_tokenizer = words
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, min_frequency=2, show_progress=False, special_tokens=list(_FIRST),
        initial_alphabet=words.alphabet(),
    )  # fmt: skip
    learner.train_from_iterator(_texts(lines), trainer)
    learned = json.loads(learner.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    return [*pieces, ROBERTA.mask], [" ".join(pair) for pair in learned["merges"]]


def learn_unigram(lines: Iterable[str | bytes], size: int) -> bytes:
    """Learns a unigram model of SentencePiece; deterministic: the same text always gives the same one.

    Normalization (NFKC) and the share of characters that are covered (0.9995) are XLM-R's. Of more than 50 million
    characters, a random sample of the lines is used.

    Args:
        lines: text; bytes are UTF-8.
        size: number of pieces; a small text may give fewer.

    Returns:
        The content of a .model file, the argument of `SentencePieceTokenizer`. <s>, <pad>, </s> and <unk> are 0 to 3,
        and <mask> is the last piece, as in XLM-R's checkpoints.

    Raises:
        ConfigError: the size is too small for the characters of the text.
    """
    ids = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3, "control_symbols": [ROBERTA.mask]}
    proto = parse_model(_trained(_texts(lines), size, ids))
    proto.pieces.append(proto.pieces.pop(len(_FIRST)))
    return proto.SerializeToString()


def learn_albert(
    lines: Iterable[str | bytes], size: int, lower_case: bool = True, strip_accents: bool | None = None
) -> bytes:
    """Learns a unigram model as `learn_unigram`, with ALBERT's special tokens and of texts as ALBERT changes them.

    Args:
        lines: text; bytes are UTF-8.
        size: number of pieces; a small text may give fewer.
        lower_case, strip_accents: as for `albert_tokenizer`; None for the same as `lower_case`.

    Returns:
        The content of a .model file. <pad>, <unk>, [CLS], [SEP] and [MASK] are 0 to 4.
    """
    normalizer = AlbertNormalizer(lower_case, strips_accents(lower_case, strip_accents), True)
    left = _texts(lines)
    chunks = iter(lambda: list(itertools.islice(left, _LINES_PER_CHUNK)), [])
    texts = (text.decode() for chunk in chunks for text in normalizer.normalize(chunk)[0].numpy().tolist())
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": [BERT.cls, BERT.sep, BERT.mask]}
    return _trained(texts, size, ids)


def _trained(texts: Iterable[str], size: int, ids: Mapping[str, Any]) -> bytes:
    """A .model file of SentencePiece with special tokens as its trainer's settings `ids` say."""
    from sentencepiece import SentencePieceTrainer

    _check_size(size, MIN_SIZE)
    model = io.BytesIO()
    # sentencepiece drops lines with U+2585, its mark of unknown characters, and a tab is between text and frequency.
    texts = (text.translate({0x2585: " ", ord("\t"): " "}) for text in texts)
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(_counted(sample_text(texts, _SAMPLE_CHARS))), input_format="tsv",
            model_writer=model, model_type="unigram", vocab_size=size, hard_vocab_limit=False,
            character_coverage=0.9995, normalization_rule_name="nmt_nfkc",
            num_threads=16,  # whose sums of floating-point numbers decide
            max_sentence_length=4 * (_PART_CHARS + 1), minloglevel=2, **ids,
        )  # fmt: skip
    except RuntimeError as error:
        if found := re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error)):
            raise ConfigError(
                f"vocabulary size {size:,} is too small for a text whose characters alone are {int(found[1]):,} pieces"
            ) from None
        if "_.empty()]" in str(error):
            raise DataError(_NO_WORDS) from None
        raise
    return model.getvalue()


def sample_text(texts: Iterable[str], chars: int) -> list[str]:
    """Draws texts at random, the same each time, until they have a number of characters; keeps their order.

    Args:
        texts: those of more than 1,000 characters are cut into parts.
        chars: at most this many are drawn.
    """
    parts = itertools.chain.from_iterable(map(_PARTS.findall, texts))
    draws, total = random.Random(0), 0
    drawn: list[tuple[float, int, str]] = []  # a heap, whose first one is left out next
    for number, part in enumerate(parts):
        heapq.heappush(drawn, (draws.random(), number, part))
        total += len(part)
        while total > chars:
            total -= len(heapq.heappop(drawn)[2])
    return [part for _, _, part in sorted(drawn, key=lambda one: one[1])]


def _counted(texts: Iterable[str]) -> list[str]:
    """Lines of a text, a tab and a frequency, in random order, the same each time.

    The trainer's time grows with the square of the length of passages that occur twice. In this order only lines do,
    at most: substrings that occur once are not considered for pieces.
    """
    counts = collections.Counter(texts)
    halves = ((text, half) for text, count in counts.items() for half in (count - count // 2, count // 2))
    lines = [f"{text}\t{count}" for text, count in halves if count]
    random.Random(0).shuffle(lines)
    return lines


def _check_size(size: int, least: int) -> None:
    if not least <= size <= MAX_SIZE:
        raise ConfigError(f"vocabulary size {size:,} is too {'small' if size < least else 'large'}; expected "
                          f"{least} up to {MAX_SIZE:,}")  # fmt: skip


def _texts(lines: Iterable[str | bytes]) -> Iterator[str]:
    """The lines without their ends and bytes that are not UTF-8; a DataError if all are blank."""
    blank = True
    for line in lines:
        if wrong := next(half_pairs(line, "the text"), None):
            raise DataError(wrong)
        text = (line if isinstance(line, str) else line.decode("utf-8", "ignore")).rstrip("\r\n")
        if text.strip():
            blank = False
            yield text
    if blank:
        raise DataError(_NO_WORDS)
