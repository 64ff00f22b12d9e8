"""Settings recognised from the vocabularies of known tokenizers."""

import unicodedata

import pytest

from bert_tf.text.vocabulary import guess_tokenizer, read_vocabulary
from tests import packages

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def settings(pieces):
    found, _ = guess_tokenizer([*SPECIALS, *pieces])
    assert found["split_cjk"]
    return found["lower_case"], found["strip_accents"]


def test_googles_uncased_vocabulary_is_uncased():
    pieces = read_vocabulary(packages.minilm() / "vocab.txt")
    found, note = guess_tokenizer(pieces)
    assert (found["lower_case"], found["strip_accents"]) == (True, True)
    assert "lower-cases and strips accents" in note


def test_a_cased_korean_vocabulary_is_cased(korean_vocabulary):
    found, note = guess_tokenizer(read_vocabulary(korean_vocabulary))
    assert (found["lower_case"], found["strip_accents"]) == (False, False)
    assert "keeps case and keeps accents" in note and "'A'" in note


@pytest.mark.parametrize(
    "pieces, expected",
    [
        (["good", "##ly", "."], (True, True)),
        (["Good", "good"], (False, False)),
        (["café", "cafe"], (True, False)),
        (["가", "##나"], (True, False)),
        ([unicodedata.normalize("NFD", "가"), "ø", "ß", "中"], (True, True)),  # NFD does not change these
        (["[unused1]", "[E1]"], (True, True)),
    ],
)
def test_one_wordpiece_is_enough_in_a_small_vocabulary(pieces, expected):
    assert settings(pieces) == expected


def test_a_few_added_wordpieces_do_not_make_a_large_vocabulary_cased():
    many = [f"piece{index}" for index in range(20_000)]
    assert settings([*many, "COVID", "é"]) == (True, True)
    assert settings([*many, *(f"Name{index}" for index in range(200))]) == (False, False)
