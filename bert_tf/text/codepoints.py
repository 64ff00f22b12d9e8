"""Sets of code points: white space, punctuation, ideographs, accents; and regular expressions of them."""

import functools
import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np

from bert_tf.types import Array

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# One byte long and deleted by the table: it can replace an invalid byte without moving the others.
FILLER = "\x01"

# The blocks in the reference's `_is_chinese_char`; it does not split later extensions of Unicode.
CJK_RANGES = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip

# Elsewhere only private use, which is left unchanged, is assigned.
_ASSIGNED = (range(0x01, 0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))


# Unicode's White_Space, ascending. (Python's `str.isspace` adds U+001C to U+001F.)
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
# The inside of a character class; RE2's own class of white space is ASCII.
RE2_WHITE_SPACE = "".join(rf"\x{{{ord(char):x}}}" for char in WHITE_SPACE)


# The insides of character classes.
ASCII_PUNCTUATION = r"!-/:-@\[-`{-~"
IDEOGRAPHS = "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in CJK_RANGES)


def quoted(text: str) -> str:
    """A regular expression that matches a text."""
    return "".join(rf"\x{{{ord(char):x}}}" for char in text)


def is_punctuation(char: str) -> bool:
    """Whether the reference treats it as punctuation: category P, and all ASCII symbols such as "$" and "^"."""
    if char.isascii():
        return "!" <= char <= "~" and not char.isalnum()
    return unicodedata.category(char).startswith("P")


def characters() -> Iterator[str]:
    """All characters that a table may change: the assigned ones, and their neighbours."""
    return (chr(code) for codes in _ASSIGNED for code in codes)


@functools.cache
def punctuation_codes() -> Array:
    """All code points that are punctuation (`is_punctuation`): int32, ascending."""
    return np.array([ord(char) for char in characters() if is_punctuation(char)], np.int32)


@functools.cache
def accent_codes() -> Array:
    """All code points that `strip_accents` deletes, the nonspacing marks: int32, ascending."""
    return np.array([ord(char) for char in characters() if unicodedata.category(char) == "Mn"], np.int32)


@functools.cache
def white_space_codes() -> Array:
    """The code points of `WHITE_SPACE`: int32, ascending."""
    return np.array([ord(char) for char in WHITE_SPACE], np.int32)


def character_class(chars: Iterable[str]) -> str:
    """The inside of an RE2 character class that matches `chars`."""
    ranges: list[list[int]] = []
    for code in sorted(map(ord, chars)):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges)
