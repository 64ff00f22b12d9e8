"""The share of unknown tokens in texts, and the line on them."""

import pytest
import tensorflow as tf

from bert_tf.text import Tokenizer
from bert_tf.text.unknown import UnknownTokens
from tests.learned import sentence_piece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def read(tokenizer, *texts):
    counted = UnknownTokens(tokenizer, "a.txt")
    for part in texts:
        counted.read([tf.constant(part)])
    return counted.share


def test_many_unknown_tokens_are_named_once_with_the_most_frequent_words(capsys):
    tokenizer = Tokenizer([*SPECIALS, "a", "film", "."])
    assert read(tokenizer, ["A fine film."] * 7, ["a film fine good"] * 5, ["bad"] * 100) == (7 + 10 + 100) / (
        28 + 20 + 100
    )
    # After the first seven texts, seven tokens are too few to say so.
    found = capsys.readouterr().err
    assert found.count("a.txt") == 1
    assert "a.txt: 35.4% of the tokens are [UNK], such as 'fine', 'good': the vocabulary lacks these words" in found


def test_the_cause_is_named_if_the_settings_are_it(capsys):
    assert read(Tokenizer([*SPECIALS, "정말", "The"], lower_case=True, strip_accents=True), ["정말 The"] * 10) == 1
    found = capsys.readouterr().err
    assert (
        "100.0% of the tokens are [UNK], such as '정말', 'The': 2 of 7 pieces cannot be reached with lower_case"
        in found
    )
    assert "strip_accents=False would reach them" in found


def test_few_unknown_tokens_and_long_texts_cost_and_say_nothing(capsys):
    tokenizer = Tokenizer([*SPECIALS, "a", "b"])
    assert read(tokenizer, ["a b x"] * 4, ["a " * 1000] * 10) == pytest.approx(4 / (12 + 10_000), rel=1e-3)
    counted = UnknownTokens(tokenizer)
    counted.read([tf.constant(["a " * 5000 + "x " * 5000] * 10)])  # counted up to 2000 bytes
    counted.read([tf.constant([["a", "a"]] * 1000), tf.constant(["x"] * 2000)])  # a tenth
    assert counted.share == pytest.approx(495 / (10_000 + 990), abs=0.01)
    counted.read([tf.constant(["x"] * 1000)])  # nothing more
    assert counted.share == pytest.approx(495 / (10_000 + 990), abs=0.01)


def test_unknown_characters_of_sentencepiece_are_named(capsys):
    assert read(sentence_piece(), ["\U00010380 a"] * 20) > 0.1
    assert "of the tokens are <unk>, such as '\U00010380'" in capsys.readouterr().err
