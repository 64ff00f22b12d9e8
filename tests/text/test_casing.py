"""Settings recognised from the vocabularies of known tokenizers, and pieces that no text reaches."""

import itertools
import unicodedata

import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from bert_tf.config.data import TokenizerSettings
from bert_tf.text import Tokenizer, open_tokenizer, vocabulary
from bert_tf.text.vocabulary import guess_tokenizer, hidden_pieces, read_vocabulary, unreachable
from tests import packages
from tests.learned import albert_model

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


def test_a_vocabulary_decides_the_settings_that_are_not_given(korean_vocabulary):
    cased = [*SPECIALS, "The", "Cat", "London"]
    assert Tokenizer(cased).get_config() == {"lower_case": False, "strip_accents": False, "split_cjk": True}
    assert Tokenizer(cased, lower_case=True).lower_case
    assert Tokenizer([*SPECIALS, "東京", "京"]).tokenize(["東京"]).to_list() == [[5]]
    korean = Tokenizer(korean_vocabulary)
    assert korean.unk_id not in korean.tokenize("정말 재미있는 영화였어요").to_list()[0]
    assert Tokenizer(korean_vocabulary, lower_case=True).get_config()["strip_accents"] is False


WORDS = ["the", "##ly", "The", "##B", "é", "café", "가", "##나", "서울", "東京", "東", "##東", "σ", "don't", "!", "##!"]
WORDS += ["a\u200bb", "É", "हु", "ß", "ø", "\u1100\u1161"]


@pytest.mark.parametrize("settings", itertools.product([True, False], repeat=3))
def test_hidden_pieces_are_those_that_texts_do_not_reach(settings):
    pieces = [*SPECIALS, *WORDS]
    names = dict(zip(("lower_case", "strip_accents", "split_cjk"), settings, strict=True))
    hidden = hidden_pieces(tuple(pieces))
    expected = set().union(hidden[""], *(hidden[name] for name, value in names.items() if value))
    tokenizer = Tokenizer(pieces, **names)
    # A piece that continues a word is reached after a letter that is one.
    words = [piece for piece in WORDS if not piece.startswith("##")]
    reached = {word for word, ids in zip(words, tokenizer.tokenize(words).to_list(), strict=True) if len(ids) == 1}
    known = {word for word in reached if tokenizer.vocab[tokenizer.tokenize(word).to_list()[0][0]] == word}
    assert {*words} - known == expected.intersection(words)


def test_pieces_out_of_reach_are_counted_and_named_once_with_the_settings_that_reach_them(
    korean_vocabulary, caplog, monkeypatch
):
    monkeypatch.setattr(vocabulary, "_WARNED", set())  # of tests before
    for _ in range(2):
        tokenizer = Tokenizer(korean_vocabulary, True, True, True)
    line = (
        "31,050 of 32,200 pieces cannot be reached with lower_case=True and strip_accents=True, such as 'LG' and "
        "'있다'; lower_case=False and strip_accents=False would reach them"
    )
    assert [record.getMessage() for record in caplog.records] == [f"vocabulary: {line}"]
    assert unreachable(tokenizer.vocab, tokenizer.get_config()) == tokenizer.unreachable() == line
    caplog.clear()
    part = tokenizer.subset(range(2000))  # which was not opened
    assert part.unreachable() and not caplog.records
    Tokenizer(packages.minilm() / "vocab.txt", lower_case=True)
    Tokenizer([*SPECIALS, "good", "##ly"], True, True, True)
    assert not caplog.records
    Tokenizer([*SPECIALS, "don't"])
    assert '1 of 6 pieces cannot be reached, such as "don\'t": words are split at punctuation' in caplog.text


@pytest.mark.parametrize("name", ["vocab.txt", "spiece.model"])
def test_programs_say_what_the_vocabulary_decided(name, tmp_path, capsys, caplog):
    path = tmp_path / name
    if name == "vocab.txt":
        path.write_text("\n".join([*SPECIALS, "Good", "가"]))
    else:
        proto = ModelProto.FromString(albert_model())
        for number, piece in enumerate(("Good", "Bad", "café", "né"), 1000):
            proto.pieces[number].piece = piece
        path.write_bytes(proto.SerializeToString())
    open_tokenizer(path, TokenizerSettings())
    found = capsys.readouterr().err
    assert f"{path}: lower_case=False and strip_accents=False, as the vocabulary has pieces such as" in found
    open_tokenizer(path, TokenizerSettings(lower_case=False))
    assert not capsys.readouterr().err and not caplog.records
    open_tokenizer(path, TokenizerSettings(True, True))
    assert "pieces cannot be reached with lower_case=True and strip_accents=True" in caplog.text
