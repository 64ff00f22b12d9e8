"""BERT's text normalization as a table over code points (BasicTokenizer of google-research/bert, tokenization.py).

TF Text's own table follows other rules (NFKC case folding, control characters turned into spaces). Its op takes any
table, though, so this one is made of what the reference calls: Python's `unicodedata` and `str.lower`.

The table also prepares what the WordPiece op does after it: that op splits at white space, at punctuation as its copy
of ICU knows it, and at every CJK ideograph. So punctuation outside ASCII gets a space on either side here, where the
reference splits, and ideographs that are not to be split travel as stand-ins: unassigned code points.
"""

import functools
import unicodedata

import flatbuffers
import numpy as np

from bert_tf.text.trie import build_trie

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# A special piece that a caller wants recognised enters the normalizer as a byte that no UTF-8 text contains, and leaves
# it as a code point that Unicode has promised never to assign. So no text can be mistaken for one.
SPECIAL_BYTES = tuple(bytes([0xF8 + i]) for i in range(len(SPECIAL_PIECES)))
SPECIAL_STAND_INS = tuple(chr(0xFDD0 + i) for i in range(len(SPECIAL_PIECES)))
_NOT_A_SPECIAL = chr(0xFDEF)  # what those code points become when they do stand in a text

# Deleted by the table and one byte long: it can take the place of an invalid byte without moving the others.
FILLER = "\x01"

# The blocks that the reference splits, in `_is_chinese_char`; later extensions of Unicode are not among them.
CJK_RANGES = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_CJK_STAND_IN = 0x40000  # planes 4 and 5 are unassigned

# Nothing but private use (left as it is) is assigned elsewhere.
_ASSIGNED = (range(0x01, 0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))


def is_punctuation(char):
    """True for the reference's punctuation: category P, and all ASCII symbols such as "$" and "^"."""
    if char.isascii():
        return "!" <= char <= "~" and not char.isalnum()
    return unicodedata.category(char).startswith("P")


@functools.cache
def punctuation_codes():
    """All code points that `is_punctuation` is true for: int32, ascending."""
    return np.array([code for codes in _ASSIGNED for code in codes if is_punctuation(chr(code))], np.int32)


@functools.cache
def accent_codes():
    """All code points that `strip_accents` deletes, which are nonspacing marks: int32, ascending."""
    chars = (chr(code) for codes in _ASSIGNED for code in codes)
    return np.array([ord(char) for char in chars if unicodedata.category(char) == "Mn"], np.int32)


@functools.cache
def _cjk_stand_ins():
    cjk = [code for first, last in CJK_RANGES for code in range(first, last + 1)]
    return {code: _CJK_STAND_IN + i for i, code in enumerate(cjk)}


@functools.cache
def stand_ins(split_cjk):
    """What the normalizer writes, and the WordPiece op's vocabulary has to hold, in place of some code points.

    Returns:
        A table for `str.translate`. One to one, but for text that already holds the stand-ins of ideographs, which are
        the unassigned code points U+40000-U+53FFF.
    """
    table = {ord(char): ord(_NOT_A_SPECIAL) for char in SPECIAL_STAND_INS}
    return table if split_cjk else table | _cjk_stand_ins()


def _normalize_character(char, lower_case, strip_accents, split_cjk, stand_in):
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
    if split_cjk and text != char and ord(char) in _cjk_stand_ins():
        text = f" {text} "  # the reference splits before it decomposes
    if not text.isascii():
        text = "".join(f" {c} " if is_punctuation(c) and not c.isascii() else c for c in text)
    return text.translate(stand_in)


@functools.cache
def space_codes():
    """All code points that the normalizer makes a space of: int32, ascending."""
    chars = (chr(code) for codes in _ASSIGNED for code in codes)
    return np.array(
        [ord(char) for char in chars if _normalize_character(char, False, False, False, {}) == " "], np.int32
    )


def character_table(lower_case, strip_accents, split_cjk):
    """What every code point that does not stay as it is turns into: dict, str (one character) -> str."""
    stand_in = stand_ins(split_cjk)
    table = {}
    for code in (code for codes in _ASSIGNED for code in codes):
        char = chr(code)
        text = _normalize_character(char, lower_case, strip_accents, split_cjk, stand_in)
        if text != char:
            table[char] = text
    return table


@functools.cache
def normalizer_model(lower_case, strip_accents, split_cjk):
    """The table as TF Text's op `FastBertNormalize` takes it; made once a process for each choice.

    Args:
        lower_case: bool, `str.lower` (final capital sigma is `final_sigma_pattern`'s).
        strip_accents: bool, decompose canonically (NFD) and drop nonspacing marks.
        split_cjk: bool, False to hide CJK ideographs from the WordPiece op behind `stand_ins`.

    Returns:
        uint8 [bytes], the flatbuffer of TF Text's fast_bert_normalizer_model.fbs.
    """
    entries = {char.encode(): text for char, text in character_table(lower_case, strip_accents, split_cjk).items()}
    entries |= {byte: f" {char} " for byte, char in zip(SPECIAL_BYTES, SPECIAL_STAND_INS, strict=True)}
    pool, offsets = bytearray(), {}
    values = {}
    for key, text in entries.items():
        data = text.encode()
        if data not in offsets:
            offsets[data] = len(pool)
            pool += data
        values[key] = 1 << 30 | offsets[data] << 6 | len(data)  # bit 30: "differs from the character itself"

    builder = flatbuffers.Builder()
    trie = builder.CreateNumpyVector(build_trie(values))
    strings = builder.CreateNumpyVector(np.frombuffer(bytes(pool), np.uint8))
    builder.StartObject(4)  # field 0, a bool that says which rules the table follows, is not read by the op
    builder.PrependUOffsetTRelativeSlot(1, trie, 0)
    builder.PrependInt32Slot(2, 1 << 30, 0)  # U+0000, which the trie cannot hold: deleted
    builder.PrependUOffsetTRelativeSlot(3, strings, 0)
    builder.Finish(builder.EndObject())
    return np.frombuffer(bytes(builder.Output()), np.uint8)


def _character_class(chars):
    """The inside of an RE2 character class that matches `chars`."""
    codes = sorted(map(ord, chars))
    ranges = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges)


@functools.cache
def final_sigma_pattern():
    r"""RE2 for a capital sigma that `str.lower` makes final, the one rule of it that looks at the neighbours.

    The rule (Unicode, SpecialCasing.txt: Final_Sigma) is that a cased letter comes before it and none after it, where
    case-ignorable characters do not count. Which are cased and which ignorable is asked of `str.lower` itself.

    Returns:
        A pattern to be replaced by r"\1ς\2", as many bytes as before.
    """
    cased, ignorable = [], []
    for char in (chr(code) for codes in _ASSIGNED for code in codes):
        category = unicodedata.category(char)
        if char == "\ufffd" or (category in ("Cc", "Cf") and char not in "\t\n\r"):
            ignorable.append(char)  # deleted before the reference lower-cases
        elif f"{char}Σ".lower().endswith("ς"):
            cased.append(char)
        elif f"a{char}Σ".lower().endswith("ς"):
            ignorable.append(char)
    cased, ignorable = _character_class(cased), _character_class(["\0", *ignorable])
    return f"([{cased}][{ignorable}]*)Σ([{ignorable}]*(?:\\z|[^{cased}{ignorable}]))"
