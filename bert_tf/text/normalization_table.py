"""BERT's text normalization and lower-casing as a table over code points: BasicTokenizer of google-research/bert.

TF Text's own table follows other rules (NFKC case folding, control characters become spaces). But its op accepts any
table, so this one is computed with the functions that the reference calls: Python's `unicodedata` and `str.lower`.

The table also prepares the text for TF Text's WordPiece op, which splits at white space, at punctuation as
defined by its copy of ICU, and at every CJK ideograph. So punctuation outside ASCII, where the reference splits, gets
a space on either side here, and ideographs that should not be split are replaced by stand-ins: unassigned code points.
"""

import dataclasses
import functools
import unicodedata
from collections.abc import Mapping

import numpy as np

from bert_tf.text.codepoints import CJK_RANGES, character_class, characters, is_punctuation
from bert_tf.types import Array

# Of an ideograph that should not be split: planes 4 and 5 are unassigned.
_CJK_STAND_IN = 0x40000


@dataclasses.dataclass(frozen=True, eq=False)  # equal only to itself, so that it can be the key of a cache
class Table:
    """What `operations.Replacer` replaces.

    Attributes:
        replacements: by character, or by two characters; those of all pairs are the same single character.
    """

    replacements: Mapping[str, str]


@functools.cache
def _cjk_stand_ins() -> dict[int, int]:
    cjk = [code for first, last in CJK_RANGES for code in range(first, last + 1)]
    return {code: _CJK_STAND_IN + i for i, code in enumerate(cjk)}


@functools.cache
def stand_ins(split_cjk: bool) -> dict[int, int]:
    """Code points that the normalizer replaces; the WordPiece op's vocabulary needs the same replacements.

    Returns:
        A table for `str.translate`. It is one to one, except for text that already contains the stand-ins of
        ideographs, the unassigned code points U+40000-U+53FFF.
    """
    return {} if split_cjk else _cjk_stand_ins()


def cleaned(char: str, lower_case: bool, strip_accents: bool) -> str:
    """What the reference makes of a character before it splits the text at spaces and ideographs."""
    category = unicodedata.category(char)
    if char in "\t\n\r":
        return " "
    if category in ("Cc", "Cf") or char == "\ufffd":
        return ""
    if category == "Zs" or char.isspace():  # str.split, which the reference uses, also splits at U+2028 and U+2029
        return " "
    text = char.lower() if lower_case else char
    if strip_accents:
        text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    return text


def _normalize_character(
    char: str, lower_case: bool, strip_accents: bool, split_cjk: bool, stand_in: Mapping[int, int]
) -> str:
    text = cleaned(char, lower_case, strip_accents)
    if split_cjk and text != char and ord(char) in _cjk_stand_ins():
        text = f" {text} "  # the reference splits before it decomposes
    if not text.isascii():
        text = "".join(f" {c} " if is_punctuation(c) and not c.isascii() else c for c in text)
    return text.translate(stand_in)


@functools.cache
def space_codes() -> Array:
    """All code points that the normalizer turns into a space: int32, ascending."""
    spaces = (char for char in characters() if _normalize_character(char, False, False, False, {}) == " ")
    return np.array([ord(char) for char in spaces], np.int32)


def character_table(lower_case: bool, strip_accents: bool, split_cjk: bool) -> dict[str, str]:
    """Maps every character that normalization changes to its replacement."""
    stand_in = stand_ins(split_cjk)
    table = {}
    for char in characters():
        # Nine in ten are ideographs, syllables or unassigned: letters without case never change except by these two.
        uncased = unicodedata.category(char) in ("Lo", "Cn", "Co")
        if uncased and unicodedata.is_normalized("NFD", char) and ord(char) not in stand_in:
            continue
        text = _normalize_character(char, lower_case, strip_accents, split_cjk, stand_in)
        if text != char:
            table[char] = text
    return table


@functools.cache
def normalizer_table(lower_case: bool, strip_accents: bool, split_cjk: bool) -> Table:
    """BERT's normalization; computed once per process and combination.

    Args:
        lower_case: apply `str.lower` (final capital sigma is handled by `final_sigma_pattern`).
        strip_accents: decompose canonically (NFD) and drop nonspacing marks.
        split_cjk: False replaces CJK ideographs by `stand_ins`, so that they are not split.
    """
    return Table({"\0": "", **character_table(lower_case, strip_accents, split_cjk)})


def _albert_cleaned(char: str, lower_case: bool, strip_accents: bool) -> str:
    text = " " if char.isspace() else char
    if strip_accents:
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return text.lower() if lower_case else text


def albert_cleaned(char: str, lower_case: bool, strip_accents: bool) -> str:
    """What ALBERT makes of a character, with SentencePiece's normalization (NFKC): see `albert_table`."""
    return unicodedata.normalize("NFKC", _albert_cleaned(char, lower_case, strip_accents))


@functools.cache
def albert_table(lower_case: bool, strip_accents: bool, double_quotes: bool) -> Table:
    """ALBERT's normalization before SentencePiece (preprocess_text of google-research/albert, tokenization.py).

    Unlike there, a final capital sigma becomes σ.

    Args:
        lower_case: apply `str.lower`.
        strip_accents: decompose by compatibility (NFKD), which also makes jamo of Hangul syllables, and drop combining
            characters. SentencePiece's own normalization joins jamo again.
        double_quotes: make one double quotation mark of two backticks, and of two apostrophes.
    """
    table = dict.fromkeys(("``", "''"), '"') if double_quotes else {}
    for char in characters():
        text = _albert_cleaned(char, lower_case, strip_accents)
        if text != char:
            table[char] = text
    return Table(table)


@functools.cache
def final_sigma_pattern() -> str:
    r"""RE2 pattern of capital sigmas that `str.lower` makes final, its only rule that depends on the context.

    The rule (Unicode, SpecialCasing.txt: Final_Sigma) is that a cased letter precedes the sigma and none follows it;
    case-ignorable characters are skipped. `str.lower` itself determines which characters are cased and ignorable.

    Returns:
        A pattern to replace by r"\1ς\2", which keeps the number of bytes.
    """
    cased_chars, ignorable_chars = [], ["\0"]
    for char in characters():
        category = unicodedata.category(char)
        if char == "\ufffd" or (category in ("Cc", "Cf") and char not in "\t\n\r"):
            ignorable_chars.append(char)  # deleted before the reference lower-cases
        elif f"{char}Σ".lower().endswith("ς"):
            cased_chars.append(char)
        elif f"a{char}Σ".lower().endswith("ς"):
            ignorable_chars.append(char)
    cased, ignorable = character_class(cased_chars), character_class(ignorable_chars)
    return f"([{cased}][{ignorable}]*)Σ([{ignorable}]*(?:\\z|[^{cased}{ignorable}]))"
