"""An independent tokenizer in plain Python, written from the algorithm of google-research/bert, tokenization.py.

Every character keeps the span of its source bytes, so that the offsets of each wordpiece are known.
"""

import unicodedata
from typing import NamedTuple

MAX_WORD_CHARS = 200


class Char(NamedTuple):
    text: str
    start: int
    end: int


def decode(source):
    """Characters of `source` (bytes) with their spans, without bytes that belong to no valid sequence."""
    chars, position = [], 0
    while position < len(source):
        # A character has the one length of 1 to 4 that can be decoded; at an invalid byte there is none.
        for length in (1, 2, 3, 4):
            try:
                text = source[position : position + length].decode("utf-8")
            except UnicodeDecodeError:
                continue
            chars.append(Char(text, position, position + length))
            break
        else:
            length = 1
        position += length
    return chars


def is_control(c):
    return c not in "\t\n\r" and unicodedata.category(c) in {"Cc", "Cf"}


def is_punctuation(c):
    return c in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~" or unicodedata.category(c)[0] == "P"


def is_ideograph(c):
    code = ord(c)
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B73F
        or 0x2B740 <= code <= 0x2B81F
        or 0x2B820 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


def split_spaces(chars):
    words, word = [], []
    for char in [*chars, Char(" ", 0, 0)]:
        if not char.text.isspace():
            word.append(char)
        elif word:
            words.append(word)
            word = []
    return words


def lower(word):
    text = "".join(char.text for char in word).lower()
    result, position = [], 0
    for char in word:
        length = len(char.text.lower())  # the context determines which sigma, never the number of characters
        result += [Char(c, char.start, char.end) for c in text[position : position + length]]
        position += length
    assert position == len(text)
    return result


def strip_accents(word):
    """NFD without Mn. Beyond decomposing each character, NFD sorts by combining class."""
    result = [Char(c, char.start, char.end) for char in word for c in unicodedata.normalize("NFD", char.text)]
    position = 0
    while position < len(result):
        end = position + 1
        if unicodedata.combining(result[position].text):
            while end < len(result) and unicodedata.combining(result[end].text):
                end += 1
            result[position:end] = sorted(result[position:end], key=lambda char: unicodedata.combining(char.text))
        position = end
    assert "".join(c.text for c in result) == unicodedata.normalize("NFD", "".join(c.text for c in word))
    return [char for char in result if unicodedata.category(char.text) != "Mn"]


def words(source, lower_case, accents_off, split_ideographs):
    """The words of `source` (bytes): lists of Char."""
    cleaned = []
    for char in decode(source):
        c = char.text
        if c in "\0\ufffd" or is_control(c):
            continue
        cleaned += [Char(" ", 0, 0), char, Char(" ", 0, 0)] if split_ideographs and is_ideograph(c) else [char]
    for word in split_spaces(cleaned):
        if lower_case:
            word = lower(word)
        if accents_off:
            word = strip_accents(word)
        spaced = []
        for char in word:
            spaced += [Char(" ", 0, 0), char, Char(" ", 0, 0)] if is_punctuation(char.text) else [char]
        yield from split_spaces(spaced)


def tokenize(source, vocab, lower_case=True, accents_off=True, split_ideographs=True):
    """Wordpieces of `source` (bytes): list of (id, start, end). `vocab` is a dict, wordpiece -> id."""
    result = []
    for word in words(source, lower_case, accents_off, split_ideographs):
        text = "".join(char.text for char in word)
        unknown = [(vocab["[UNK]"], word[0].start, word[-1].end)]
        if len(text) > MAX_WORD_CHARS:
            result += unknown
            continue
        pieces, start = [], 0
        while start < len(text):
            for end in range(len(text), start, -1):
                piece = text[start:end] if start == 0 else "##" + text[start:end]
                if piece in vocab:
                    pieces.append((vocab[piece], word[start].start, word[end - 1].end))
                    start = end
                    break
            else:
                pieces = unknown
                break
        result += pieces
    return result
