"""Special pieces in texts: a text is split at their names, and what is between them is tokenized.

A piece that was added to a vocabulary as a special one, such as a marker of entities, is a token in every text. The
names of the model's own special tokens, such as [SEP], are tokens only on request: otherwise any text could inject
them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from bert_tf.text.base import ROBERTA, SPECIAL, rows_of
from bert_tf.text.codepoints import RE2_WHITE_SPACE, quoted

# Tokenizes segments, string [segments], valid UTF-8: ids int32 [segments, None], and the starts and ends of the pieces,
# int64 [pieces] in bytes of their segments, or empty.
Tokenize: TypeAlias = Callable[[tf.Tensor], tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]]
# Replaces matches, string [matches], by strings [matches]; and for each byte of these, int64 [matches, None], where in
# the match its character began.
Replaced: TypeAlias = Callable[[tf.Tensor], tuple[tf.Tensor, tf.RaggedTensor]]

# In segmented text: bytes that UTF-8 never contains.
WALL = b"\xff"  # between two segments
_SPECIAL = b"\xf5"  # begins a segment that is a special piece; two bytes with its number follow
_SKIPPED = b"\xfd"  # begins a segment without tokens
_DIGIT = 0x80  # the bytes of numbers have this value and more, so that no name contains them
_BASE = 0x40
# What a word consists of for Hugging Face's `tokenizers`, the inside of a character class.
_WORD = r"\pL\pM\p{Nd}\p{Pc}"


class Segments:
    """Splits texts at special pieces.

    Args:
        pieces: the vocabulary, by id.
        names: of its special tokens.
        added: as for `BaseTokenizer`.
    """

    def __init__(self, pieces: Sequence[str], names: Sequence[str], added: Mapping[str, Collection[str]]) -> None:
        special: dict[str, Collection[str]] = {name: ("lstrip",) if name == ROBERTA.mask else () for name in names}
        special |= {piece: flags for piece, flags in added.items() if SPECIAL in flags or piece in names}
        # A word needs its neighbours as they are, and a piece that contains another one comes before it.
        order = sorted(special, key=lambda piece: ("single_word" not in special[piece], -len(piece)))
        numbers = {piece: number for number, piece in enumerate(pieces)}
        rewrites = {name: _rewrites(name, number, special[name]) for number, name in enumerate(order)}
        self._rewrites = {
            requested: [one for name in order if requested or name not in names for one in rewrites[name]]
            for requested in (False, True)
        }
        with tf.init_scope():
            self._ids = tf.constant([numbers[name] for name in order], tf.int32)
            self._lengths = tf.constant([len(name.encode()) for name in order], tf.int64)

    def splits(self, special_tokens: bool) -> bool:
        """Whether there is anything to split texts at."""
        return bool(self._rewrites[special_tokens])

    def tokenize(
        self, text: tf.Tensor, tokenize: Tokenize, *, special_tokens: bool, with_offsets: bool
    ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Tokenizes texts with special pieces.

        Args:
            text: string [batch], valid UTF-8.
            tokenize: tokenizes what is between them.
            special_tokens: whether to split at the names of special tokens, too.
            with_offsets: whether starts and ends are needed.

        Returns:
            ids int32 [batch, None]; starts and ends int64 [pieces] in bytes of the concatenation of all texts.
        """
        segments = self._split(text, special_tokens)  # [batch, None]
        values = segments.values
        special, skipped, ordinary = _sorted(values)
        found, starts, ends = tokenize(ordinary)
        marks = tf.strings.substr(tf.where(special, values, _marked(0)), 1, 2)
        decoded = tf.reshape(tf.io.decode_raw(marks, tf.uint8), [-1, 2])  # which has no columns without segments
        digits = tf.cast(decoded, tf.int32) - _DIGIT
        number = digits[:, 0] * _BASE + digits[:, 1]

        def joined(of_specials: tf.Tensor, of_pieces: tf.Tensor) -> tf.RaggedTensor:
            ones = tf.RaggedTensor.from_row_lengths(
                tf.boolean_mask(of_specials, special), tf.cast(special, tf.int64), validate=False
            )
            return tf.concat([ones, found.with_values(of_pieces)], 1)

        ids = joined(tf.gather(self._ids, number), found.values)
        if with_offsets:
            names = tf.gather(self._lengths, number)
            lengths = tf.cast(tf.strings.length(values) - tf.cast(skipped, tf.int32), tf.int64)
            begins = tf.cumsum(tf.where(special, names, lengths), exclusive=True)
            shift = tf.gather(begins, rows_of(ids.row_splits))
            starts = joined(tf.zeros_like(names), starts).values + shift
            ends = joined(names, ends).values + shift
        return segments.with_values(ids).merge_dims(1, 2), starts, ends

    def ordinary(self, text: tf.Tensor) -> tf.Tensor:
        """The ordinary segments of texts, string [segments], and empty ones; split at added pieces only."""
        return _sorted(self._split(text, special_tokens=False).values)[2]

    def _split(self, text: tf.Tensor, special_tokens: bool) -> tf.RaggedTensor:
        """Segments [batch, None] of texts: ordinary ones, special pieces, and the white space that these take along."""
        for pattern, rewrite in self._rewrites[special_tokens]:
            text = tf.strings.regex_replace(text, pattern, rewrite)
        return tf.strings.split(text, WALL)


def split_around(texts: tf.Tensor, pattern: str) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Splits texts, string [batch], at what a regular expression matches.

    Returns:
        string [batch, None], what is between the matches and, in every second place, the matches; bool [parts], which
        parts are matches.
    """
    parts = tf.strings.split(tf.strings.regex_replace(texts, pattern, WALL + rb"\0" + WALL), WALL)
    places = tf.range(parts.row_splits[-1]) - tf.gather(parts.row_splits, rows_of(parts.row_splits))
    return parts, places % 2 == 1


def within_texts(parts: tf.RaggedTensor, texts: tf.Tensor) -> tf.Tensor:
    """int64 [parts]: where each of the parts [batch, None] of texts [batch] begins in its text, in bytes."""
    begins, of_text = (
        tf.cumsum(tf.cast(tf.strings.length(one), tf.int64), exclusive=True) for one in (parts.values, texts)
    )
    return begins - tf.gather(of_text, rows_of(parts.row_splits))


def replace_matches(
    texts: tf.Tensor, pattern: str, replaced: Replaced, *, with_offsets: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Replaces what a regular expression matches.

    Args:
        texts: string [batch], valid UTF-8.
        pattern: RE2's.
        replaced: what replaces each match.
        with_offsets: also return the origin of each byte.

    Returns:
        string [batch], offsets int64 [total] and row_splits int64 [batch + 1]: see `Normalizer.normalize`.
    """
    parts, found = split_around(texts, pattern)
    matches, index = tf.unique(tf.boolean_mask(parts.values, found))
    results, origins = replaced(matches)
    # Of each part, the number of its match, or any if it is none.
    number = tf.gather(tf.pad(index, [[1, 0]]), tf.cumsum(tf.cast(found, tf.int32)))
    new = tf.where(found, tf.gather(tf.concat([results, [""]], 0), number), parts.values)
    joined = tf.strings.unsorted_segment_join(new, rows_of(parts.row_splits), tf.size(texts))
    if not with_offsets:
        return joined, *no_offsets()
    inner = tf.ragged.range(tf.cast(tf.strings.length(new), tf.int64))  # [parts, None]
    part = inner.value_rowids()
    first = tf.gather(tf.concat([origins.row_splits, [0]], 0), tf.gather(tf.cast(number, tf.int64), part))
    moved = tf.gather(found, part)
    of_byte = tf.where(moved, first + inner.values, tf.size(origins.values, tf.int64))
    offsets = tf.where(moved, tf.gather(tf.concat([origins.values, [0]], 0), of_byte), inner.values)
    offsets += tf.gather(within_texts(parts, texts), part)
    of_row = parts.with_values(inner.with_values(offsets)).merge_dims(1, 2)
    complete = tf.concat([of_row, tf.cast(tf.strings.length(texts), tf.int64)[:, tf.newaxis]], 1)
    return joined, complete.values, complete.row_splits


def no_offsets() -> tuple[tf.Tensor, tf.Tensor]:
    """Offsets and row_splits where none are asked for."""
    return tf.zeros([0], tf.int64), tf.zeros([0], tf.int64)


def _sorted(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Of segments: which are special pieces, which are skipped, and all with these two kinds as empty ones."""
    kinds = tf.strings.substr(values, 0, 1)  # first bytes
    special, skipped = kinds == _SPECIAL, kinds == _SKIPPED
    return special, skipped, tf.where(special | skipped, b"", values)


def _rewrites(name: str, number: int, flags: Collection[str]) -> list[tuple[str, bytes]]:
    """Regular expressions, and what replaces their matches, that put a special piece between walls."""
    spaces, others = f"[{RE2_WHITE_SPACE}]", f"[^{RE2_WHITE_SPACE}{_WORD}]"
    # Groups: a character before the piece, which stays, and white space; the same after it.
    word = "single_word" in flags
    before = f"(?:(^|{others})|({spaces}+))" if word else f"()({spaces}*)" if "lstrip" in flags else "()()"
    after = f"(?:($|{others})|({spaces}+))" if word else f"()({spaces}*)" if "rstrip" in flags else "()()"
    first = rb"\1" + ((WALL + _SKIPPED) if "lstrip" in flags else b"") + rb"\2"
    last = ((_SKIPPED + rb"\4" + WALL) if "rstrip" in flags else rb"\4") + rb"\3"
    rewrite = before + quoted(name) + after, first + WALL + _marked(number) + WALL + last
    # Two words share the character between them, which belongs to the first match.
    return [rewrite] * (1 + word)


def _marked(number: int) -> bytes:
    return _SPECIAL + bytes([_DIGIT + number // _BASE, _DIGIT + number % _BASE])
