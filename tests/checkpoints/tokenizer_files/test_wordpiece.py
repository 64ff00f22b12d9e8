"""BERT's, DistilBERT's and ELECTRA's files against Transformers' own tokenizers."""

import json

import pytest

from bert_tf.errors import DataError
from bert_tf.text import Tokenizer
from tests.checkpoints.tokenizer_files.directories import (
    TEXTS,
    assert_same_ids,
    directory,
    edit,
    kinds,
    read,
    rewritten,
    write,
)
from tests.errors import raises
from tests.learned import learned

transformers = pytest.importorskip("transformers", reason="needs pip install 'bert_tf[peers]'")

FAMILIES = {"bert": "Bert", "distilbert": "DistilBert", "electra": "Electra"}


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("ending", ["", "Fast"])
def test_files_are_read_as_by_transformers_and_written_with_the_class_of_the_family(model_type, ending, tmp_path):
    pieces, name = learned("wordpiece").tokenizer.vocab, f"{FAMILIES[model_type]}Tokenizer"
    settings = {"tokenizer_class": name + ending, "do_lower_case": False, "strip_accents": True}
    config = {"tokenizer_config.json": settings, "config.json": {"model_type": model_type}}
    files = directory(tmp_path / "files", config | {"vocab.txt": "".join(f"{piece}\n" for piece in pieces)})
    theirs = transformers.AutoTokenizer.from_pretrained(files)
    tokenizer, warnings = read(files, len(pieces))
    assert not warnings
    assert_same_ids(tokenizer, theirs)

    again = rewritten(tokenizer, tmp_path / "again", model_type, FAMILIES[model_type])
    assert_same_ids(tokenizer, again)
    found, warnings = read(tmp_path / "again", len(pieces))
    assert not warnings and found.description == tokenizer.description
    assert f'"{name}"' in (tmp_path / "again" / "tokenizer_config.json").read_text(encoding="utf-8")

    theirs.save_pretrained(tmp_path / "library")
    write(tmp_path / "library", "config.json", {"model_type": model_type})
    assert read(tmp_path / "library", len(pieces))[0].tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS).to_list()


PIECES = learned("wordpiece").tokenizer.vocab
LENGTHS = [1, 49, 50, 51, 99, 100, 101, 150, 199, 200, 201, 299, 300, 301]
# ASCII, three bytes a character, and some of each: the op counts bytes.
LONG = [one * (length // len(one)) + one[: length % len(one)] for length in LENGTHS for one in ("a", "가", "a가")]


@pytest.mark.parametrize("limit", [None, 50, 300])
def test_words_are_as_long_as_in_transformers(tmp_path, limit):
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "strip_accents": False}
    path = directory(tmp_path / "files", {"tokenizer_config.json": config, "config.json": {"model_type": "bert"}})
    Tokenizer(PIECES).save(path)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    if limit:
        theirs.save_pretrained(path)
        edit(path, "tokenizer.json", "model", "max_input_chars_per_word", value=limit)
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    tokenizer, warnings = read(path, len(PIECES))
    assert not warnings
    unknown = [ids == [tokenizer.unk_id] for ids in tokenizer.tokenize(LONG).to_list()]
    assert unknown == [len(text) > (limit or 100) for text in LONG]
    assert_same_ids(tokenizer, theirs, [*LONG, *(f"{text} film" for text in LONG)])
    (tmp_path / "own").mkdir()
    assert Tokenizer(PIECES, **tokenizer.get_config()).tokenize(LONG).to_list() == tokenizer.tokenize(LONG).to_list()


@pytest.mark.parametrize("limit", [0, -1, "100", 1.5, None, 10**9])
def test_a_limit_of_words_that_is_none_is_one_line(tmp_path, limit):
    path = directory(tmp_path / "files", {})
    Tokenizer(PIECES).save(path)
    transformers.BertTokenizer.from_pretrained(path).save_pretrained(path)
    edit(path, "tokenizer.json", "model", "max_input_chars_per_word", value=limit)
    with raises(DataError, "tokenizer.json", "max_input_chars_per_word"):
        read(path, len(PIECES))


def test_the_form_of_a_vocabulary_that_was_trained_from_scratch_is_read(tmp_path):
    """As in the documentation of `tokenizers`: NFD, Lowercase and StripAccents, then Whitespace."""
    library = learned("wordpiece").reference.to_str()
    path = directory(tmp_path / "files", {"tokenizer.json": library})
    write(path, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    steps = [{"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}]
    edit(path, "tokenizer.json", "normalizer", value={"type": "Sequence", "normalizers": steps})
    edit(path, "tokenizer.json", "pre_tokenizer", value={"type": "Whitespace"})
    tokenizer, [warning] = read(path, len(PIECES))
    assert tokenizer.lower_case and tokenizer.strip_accents and not tokenizer.split_cjk
    assert "punctuation" in kinds([warning]) and "words in Latin" not in kinds([warning])
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    words = [word for text in TEXTS for word in text.split() if word.isalpha()]
    assert tokenizer.tokenize(words).to_list() == theirs(words, add_special_tokens=False)["input_ids"]


def test_padded_word_embeddings_are_read_where_tokenizer_json_numbers_the_pieces(tmp_path):
    path = directory(tmp_path / "files", {})
    Tokenizer(PIECES).save(path)
    rows = len(PIECES) + 36
    with raises(DataError, "vocab.txt", len(PIECES), rows):  # the number of a line may be wrong
        read(path, rows)
    transformers.BertTokenizer.from_pretrained(path).save_pretrained(path)
    assert json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    tokenizer, [warning] = read(path, rows)
    assert tokenizer.vocab_size == rows and "36 of the" in warning


@pytest.mark.parametrize("pieces", [["the</w>", "th", "e</w>", "film</w>"], ["th@@", "e", "fi@@", "lm"]])
def test_a_vocabulary_of_another_bpe_is_refused(pieces):
    with raises(DataError, "</w> or @@", "##"):
        Tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces])
