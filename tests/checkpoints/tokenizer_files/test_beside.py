"""Vocabularies beside a tokenizer.json that is not supported: they are read instead, as Transformers reads them."""

import shutil

import pytest

from bert_tf.errors import DataError
from bert_tf.text import Tokenizer
from tests.checkpoints.tokenizer_files.directories import UNSEEN, assert_same_ids, directory, edit, read, write
from tests.errors import raises
from tests.learned import TOKENIZERS, sentence_piece_model

transformers = pytest.importorskip("transformers", reason="needs pip install 'bert_tf[peers]'")

# Kind -> class of Transformers, and the files of the vocabulary.
KINDS = {
    "wordpiece": ("BertTokenizer", ["vocab.txt"]),
    "byte_bpe": ("RobertaTokenizer", ["vocab.json", "merges.txt"]),
    "unigram": ("XLMRobertaTokenizer", ["sentencepiece.bpe.model"]),
}
NOSUCH = {"type": "Nosuch"}
# What is changed in tokenizer.json -> its new value, and what the reason names.
ODD = {
    "version": ("2.0", "version '2.0'"),
    "model.type": ("WordLevel", "holds 'WordLevel'"),
    "model": (NOSUCH, "holds 'Nosuch'"),
    "normalizer": (NOSUCH, "does not read"),  # not even by the library
    "pre_tokenizer": (None, "splits "),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Kind -> a directory with the vocabulary and tokenizer.json, Transformers' tokenizer of it, and its size."""
    found = {}
    for kind, (name, files) in KINDS.items():
        folder, tokenizer = tmp_path_factory.mktemp(kind), TOKENIZERS[kind]()
        if kind == "unigram":
            write(folder, files[0], sentence_piece_model())  # as it is, without fairseq's ids
        else:
            tokenizer.save(folder)
        settings = {"do_lower_case": False, "strip_accents": False} if kind == "wordpiece" else {}
        theirs = getattr(transformers, name).from_pretrained(folder, **settings)
        theirs.save_pretrained(folder)
        assert all((folder / file).exists() for file in [*files, "tokenizer.json"])
        found[kind] = folder, theirs, tokenizer.vocab_size
    return found


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_beside_an_unsupported_tokenizer_json_is_used_and_one_warning_says_so(
    saved, tmp_path, kind, what
):
    source, theirs, size = saved[kind]
    value, named = ODD[what]
    folder = shutil.copytree(source, tmp_path / "files")
    edit(folder, "tokenizer.json", *what.split("."), value=value)
    tokenizer, [warning] = read(folder, size)
    names = " and ".join(KINDS[kind][1])
    assert f"{names} is used, as" in warning and named in warning
    assert_same_ids(tokenizer, theirs)


def test_added_tokens_of_an_unsupported_tokenizer_json_keep_their_ids(tmp_path):
    plain = TOKENIZERS["wordpiece"]()
    folder = directory(tmp_path / "files", {})
    Tokenizer(plain.vocab).save(folder)
    theirs = transformers.BertTokenizer.from_pretrained(folder, do_lower_case=False)
    theirs.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    theirs.save_pretrained(folder)
    edit(folder, "tokenizer_config.json", "added_tokens_decoder", value=None)  # older files do not have it
    edit(folder, "tokenizer.json", "version", value="2.0")
    tokenizer, [warning] = read(folder, plain.vocab_size + 1)
    assert "vocab.txt is used" in warning and tokenizer.vocab[-1] == "[E1]"
    assert_same_ids(tokenizer, theirs, ["a [E1]film", "[E1]"])


def test_a_vocabulary_of_another_model_beside_it_is_one_line(saved, tmp_path):
    folder = shutil.copytree(saved["wordpiece"][0], tmp_path / "files")
    edit(folder, "tokenizer.json", "version", value="2.0")
    with raises(DataError, "vocab.txt", saved["wordpiece"][2], saved["wordpiece"][2] + 7):
        read(folder, saved["wordpiece"][2] + 7)


def test_a_class_that_only_tokenizer_json_describes_is_read_without_a_tokenizer(saved, tmp_path):
    folder = shutil.copytree(saved["wordpiece"][0], tmp_path / "files")
    edit(folder, "tokenizer.json", "version", value="2.0")
    edit(folder, "tokenizer_config.json", "tokenizer_class", value="PreTrainedTokenizerFast")
    tokenizer, [warning] = read(folder, saved["wordpiece"][2])
    assert tokenizer is None and warning.startswith(UNSEEN) and "vocab.txt, with a tokenizer_class" in warning
