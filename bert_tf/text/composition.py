"""Canonical composition (Unicode's NFC) in the TensorFlow graph: e and a combining acute accent become é.

Only sequences that the form may change are looked at: characters that it replaces, and combining ones with the
character before them. Each is composed on its own, as Unicode defines it (UAX #15): decomposed, its marks sorted by
their classes, and the marks joined with the character before them where a composed one exists.
"""

import functools
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.text.base import rows_of
from bert_tf.text.codepoints import character_class, characters
from bert_tf.text.normalization_table import Table
from bert_tf.text.operations import Replacer
from bert_tf.text.segments import no_offsets, replace_matches
from bert_tf.types import Array

_CLASSES = 256  # of combining characters, 0 for others
_FACTOR = 1 << 21  # more than a code point
_LONGEST = 1 << 32  # more bytes than a string has


class _Tables(NamedTuple):
    """Attributes:
    changing: characters that composition replaces.
    classes: the class of each character that may be joined with those before it or sorted among them.
    decomposed: replaces characters by their decompositions.
    composed: character by the two that it is made of.
    depth: most characters that are joined with one.
    """

    changing: Sequence[str]
    classes: Mapping[str, int]
    decomposed: Table
    composed: Mapping[str, str]
    depth: int


@functools.cache
def _tables() -> _Tables:
    """The tables of `tokenizers`, whose version of Unicode is older than Python's: 9 in 0.23."""
    from tokenizers import normalizers

    compose, decompose = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    candidates = (char for char in characters() if not unicodedata.is_normalized("NFD", char))
    decomposed = {char: text for char in candidates if (text := decompose(char)) != char}
    changing = [char for char in decomposed if compose(char) != char]
    made = {char: decomposed[char] for char in decomposed.keys() - changing}
    composed = {compose(text[:-1]) + text[-1]: char for char, text in sorted(made.items())}
    known = {char: unicodedata.combining(char) for char in characters() if _sorts(char, compose)}
    seconds = {pair[1] for pair in composed}
    first = {char: text[0] for char, text in decomposed.items() if text[0] in known or text[0] in seconds}
    classes = dict.fromkeys(seconds | first.keys(), 0) | known
    depth = max(map(len, made.values())) - 1
    return _Tables(changing, dict(sorted(classes.items())), Table(decomposed), composed, depth)


def _sorts(char: str, compose: Callable[[str], str]) -> bool:
    """Whether a character is sorted among others."""
    number = unicodedata.combining(char)
    other = "\u0301" if number == 1 else "\u0334"  # of the classes 230 and 1
    return number > 0 and compose(char + other) == compose(other + char)


class Composition(tf.Module):
    """Composes characters canonically, as `tokenizers` does (NFC)."""

    def __init__(self) -> None:
        super().__init__(name="composition")
        tables = _tables()
        joining, changing = map(character_class, (tables.classes, tables.changing))
        replaced = tables.decomposed.replacements
        bases = character_class({*replaced, *(pair[0] for pair in tables.composed)} - tables.classes.keys())
        self._sequence = f"[{bases}]?[{joining}]+|[{changing}]"
        self._composed = f"[^{character_class({*tables.classes, *tables.changing})}]*"
        self._depth = tables.depth
        self._decomposition = Replacer(tables.decomposed)
        pairs = sorted(tables.composed)
        with tf.init_scope():  # constants, even if a tokenizer is created inside a graph
            self._marks = tf.constant(_codes([*tables.classes]))  # ascending
            self._classes = tf.constant([*tables.classes.values()], tf.int32)
            self._pairs = tf.constant(_pair(*_codes("".join(pairs)).astype(np.int64).reshape(-1, 2).T))  # ascending
            self._results = tf.constant(_codes([tables.composed[pair] for pair in pairs]))

    def normalize(self, texts: tf.Tensor, with_offsets: bool = False) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Composes string [batch], valid UTF-8.

        Args:
            texts: string [batch], valid UTF-8.
            with_offsets: also return the origin of each byte.

        Returns:
            composed string [batch], and offsets and row_splits as `Normalizer.normalize` does. The offsets of marks
            that changed places ascend, too.
        """

        def unchanged() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            if not with_offsets:
                return texts, *no_offsets()
            offsets = tf.ragged.range(tf.cast(tf.strings.length(texts), tf.int64) + 1)
            return texts, offsets.values, offsets.row_splits

        ordinary = tf.reduce_all(tf.strings.regex_full_match(texts, self._composed))
        return tf.cond(
            ordinary,
            unchanged,
            lambda: replace_matches(texts, self._sequence, self._compose, with_offsets=with_offsets),
        )

    def _compose(self, sequences: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor]:
        """Composes string [sequences].

        Returns:
            string [sequences], and int64 [sequences, None]: for each byte of a result, where its character began.
        """
        decomposed, offsets, splits = self._decomposition.replace(sequences, with_offsets=True)
        ragged, starts = tf.strings.unicode_decode_with_offsets(decomposed, "UTF-8")
        codes, rows = ragged.values, rows_of(ragged.row_splits)
        origins = tf.gather(offsets, tf.gather(splits, rows) + starts.values)
        at = tf.minimum(tf.searchsorted(self._marks, codes), tf.size(self._marks) - 1)
        classes = tf.where(tf.gather(self._marks, at) == codes, tf.gather(self._classes, at), 0)
        # Marks are sorted by their classes, up to the next character without one, or the next sequence.
        runs = tf.cumsum(tf.cast(classes == 0, tf.int64)) + rows
        order = tf.argsort(runs * _CLASSES + tf.cast(classes, tf.int64), stable=True)
        codes, classes, origins = tf.gather(codes, order), tf.gather(classes, order), tf.gather(origins, order)
        for _ in range(self._depth):
            codes, classes, rows, origins = self._join(codes, classes, rows, origins)
        origins = tf.sort(rows * _LONGEST + origins) % _LONGEST  # marks that changed places change these back
        counts = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, tf.size(sequences))
        result = tf.strings.unicode_encode(tf.RaggedTensor.from_row_lengths(codes, counts, validate=False), "UTF-8")
        sizes = 1 + tf.reduce_sum(tf.cast(codes[:, tf.newaxis] >= [0x80, 0x800, 0x10000], tf.int64), 1)  # in bytes
        of_bytes = tf.gather(origins, rows_of(tf.concat([[0], tf.cumsum(sizes)], 0)))
        lengths = tf.cast(tf.strings.length(result), tf.int64)
        return result, tf.RaggedTensor.from_row_lengths(of_bytes, lengths, validate=False)

    def _join(self, codes: tf.Tensor, classes: tf.Tensor, rows: tf.Tensor, origins: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Joins each character of the class 0 with the first one after it that it can be joined with.

        Args:
            codes, classes: int32 [characters].
            rows: int64 [characters], the sequence of each.
            origins: int64 [characters].

        Returns:
            The same without the characters that were joined.
        """
        count = tf.size(codes, tf.int64)
        indices = tf.range(count)
        # The last character of the class 0 before each one, if there is one in its sequence.
        bases = tf.concat([[0], tf.where(classes == 0)[:, 0]], 0)
        base = tf.gather(bases, tf.cumsum(tf.cast(classes == 0, tf.int32), exclusive=True))
        free = (tf.gather(rows, base) == rows) & (tf.gather(classes, base) == 0) & (base < indices)
        before = tf.concat([[0], classes[:-1]], 0)  # class of the character before each one
        free &= (before == 0) | (before < classes)
        pairs = _pair(tf.cast(tf.gather(codes, base), tf.int64), tf.cast(codes, tf.int64))
        at = tf.minimum(tf.searchsorted(self._pairs, pairs), tf.size(self._pairs) - 1)
        fits = free & (tf.gather(self._pairs, at) == pairs)
        first = tf.math.unsorted_segment_min(tf.where(fits, indices, count), base, count)  # by base
        joins = first < count
        codes = tf.where(joins, tf.gather(self._results, tf.gather(at, tf.where(joins, first, 0))), codes)
        kept = ~(fits & (tf.gather(first, base) == indices))
        return tuple(tf.boolean_mask(one, kept) for one in (codes, classes, rows, origins))


def _codes(chars: Sequence[str]) -> Array:
    return np.array([ord(char) for char in chars], np.int32)


def _pair(first: Any, second: Any) -> Any:
    """A number for two code points."""
    return first * _FACTOR + second
