"""Vocabularies and texts for the tests of bert_tf.text."""

import random
import unicodedata

import pytest

from tests.packages import SHARED, shared

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="session")
def assigned():
    """Every assigned code point, and some others: private use, noncharacters, unassigned."""
    codes = [code for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")]
    return tuple(chr(code) for code in [*codes, *range(0xFDD0, 0xFDF0), 0x378, 0xE000, 0xF0000, 0x10FFFF])


@pytest.fixture(scope="session")
def many_characters(assigned):
    """A vocabulary of single characters that would not be learned: spaces, controls, marks, punctuation after ##."""
    choice = random.Random(0)
    chars = [char for char in assigned if char not in "\0\r\n" and not 0xFDD0 <= ord(char) < 0xFDF0]
    pieces = [
        *SPECIALS, "##", *map(chr, range(33, 700)), *choice.sample(chars, 12000),
        *(f"##{char}" for char in ["x", "y", "able", "σ", "ς", "-", "中", "\u0307", *choice.sample(chars, 12000)]),
        "xy", "中国", "a-b", "-a", "σ", "ς", "가", "각", "\u1100", "##\u1161", "##\u11a8", "[5]", "[MASK", "a b",
    ]  # fmt: skip
    return list(dict.fromkeys(pieces))


@pytest.fixture(scope="session")
def korean_vocabulary():
    return shared("korean/wordpiece_vocab_32200.txt")


@pytest.fixture(scope="session")
def korean_lines():
    """The lines of all Korean files, as bytes."""
    files = sorted(path for path in (SHARED / "korean").glob("*/*") if path.suffix in (".tsv", ".conllu", ".json"))
    if not files:
        pytest.skip(f"{SHARED}/korean is not there")
    return [line for path in files for line in path.read_bytes().split(b"\n")]
