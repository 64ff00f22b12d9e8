"""Tokenizers of every kind written to files and opened again."""

import pickle

import pytest
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from bert_tf.config.data import TokenizerSettings
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.identity import tokenizer_identity
from bert_tf.text import Tokenizer, open_tokenizer, saved_tokenizer
from bert_tf.text.vocabulary import read_vocabulary
from tests.errors import raises
from tests.learned import TOKENIZERS, albert_model

TEXTS = ["A fine film, isn't it?", "Ünbekannt 한국어 😀", "", " <mask>  x"]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_saved_tokenizer_is_opened_again(kind, tmp_path):
    tokenizer, folder = TOKENIZERS[kind](), tmp_path / "new"
    tokenizer.save(folder)
    assert sorted(file.name for file in folder.iterdir()) == sorted(tokenizer.FILES)
    again = saved_tokenizer(str(folder), tokenizer.description, tokenizer.checksums, "config.json")
    settings = {name: value for name, value in tokenizer.get_config().items() if name != "double_quotes"}
    by_name = open_tokenizer(folder / tokenizer.FILES[0], TokenizerSettings(**settings))
    for other in (again, by_name, pickle.loads(pickle.dumps(tokenizer))):
        assert type(other) is type(tokenizer)
        assert (other.vocab, other.description) == (tokenizer.vocab, tokenizer.description)
        assert other.tokenize(TEXTS, special_tokens=True).to_list() == (
            tokenizer.tokenize(TEXTS, special_tokens=True).to_list()
        )
        assert tokenizer_identity(other) == tokenizer_identity(tokenizer)


@pytest.mark.parametrize("other", ["[PAD]", "<mask>"])
def test_only_a_model_with_all_of_alberts_special_tokens_is_opened_as_alberts(other, tmp_path):
    proto = ModelProto.FromString(albert_model())
    proto.pieces[0 if other == "[PAD]" else 4].piece = other
    path = tmp_path / "spiece.model"
    path.write_bytes(proto.SerializeToString())
    tokenizer = open_tokenizer(path, TokenizerSettings())
    assert tokenizer.get_config() == {} and other in tokenizer.special_names
    assert tokenizer.tokenize(TEXTS).to_list() == SentencePieceProcessor(model_file=str(path)).encode(TEXTS)


def test_settings_and_vocabulary_change_the_fingerprint():
    prints = [tokenizer_identity(make())["fingerprint"] for make in TOKENIZERS.values()]
    prints.append(tokenizer_identity(Tokenizer(TOKENIZERS["wordpiece"]().vocab, lower_case=True))["fingerprint"])
    assert len(set(prints)) == len(prints)


def test_the_identity_of_wordpiece_is_that_of_earlier_runs():
    identity = tokenizer_identity(Tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    assert identity["fingerprint"] == "6a8444aca837d8c9"


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram"])
def test_other_vocabularies_are_not_taken_for_wordpiece(kind, tmp_path):
    tokenizer = TOKENIZERS[kind]()
    tokenizer.save(tmp_path)
    with raises(DataError, tokenizer.FILES[0], "expected the vocab.txt of WordPiece", type(tokenizer).__name__):
        read_vocabulary(tmp_path / tokenizer.FILES[0])
    pieces = [*tokenizer.vocab, "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join(piece for piece in pieces if piece.isprintable()), encoding="utf-8")
    with raises(DataError, "vocab.txt", "none with ##; expected WordPiece"):
        read_vocabulary(tmp_path / "vocab.txt")


def test_an_unknown_kind_and_a_missing_file_are_named(tmp_path):
    with raises(ConfigError, "tokenizer.kind is", "wordpiece, byte_bpe, sentencepiece"):
        saved_tokenizer(str(tmp_path), {"kind": "characters"}, {}, "config.json")
    (tmp_path / "vocab.json").write_text("{}")
    with raises(DataError, str(tmp_path / "merges.txt")):
        open_tokenizer(tmp_path / "vocab.json", TokenizerSettings())
