"""ModernBERT's tokenizer.json: read as by Transformers, and written back."""

import json

import pytest

from bert_tf.checkpoints.tokenizer_files.files import FLAGS
from bert_tf.text.base import BERT
from bert_tf.text.kinds import saved_tokenizer
from tests.checkpoints.tokenizer_files.directories import TEXTS, assert_same_ids, directory, edit, read, rewritten
from tests.learned import modern
from tests.text.modern import SIZE, real
from tests.text.test_modern import CODE

transformers = pytest.importorskip("transformers", reason="needs pip install 'bert_tf[peers]'")

MORE = [*TEXTS, *CODE, "e\u0301 \u1100\u1161", "a|||IP_ADDRESS|||b [unused0]", "<|padding|>"]


def files_of(library):
    """A directory's files, as of the Hub."""
    content = json.loads(library.to_str())
    decoder = {
        str(token["id"]): {flag: token[flag] for flag in ("content", *FLAGS)} for token in content["added_tokens"]
    }
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), BERT, strict=True))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": True,
        "model_max_length": 8192,
        "added_tokens_decoder": decoder,
    }
    return {
        "tokenizer.json": library.to_str(),
        "tokenizer_config.json": config | names,
        "config.json": {"model_type": "modernbert"},
    }


@pytest.mark.parametrize("which", ["learned", pytest.param("real", marks=pytest.mark.slow)])
def test_it_is_read_as_by_transformers_and_written_back(which, tmp_path):
    library = modern().reference if which == "learned" else real()
    path = directory(tmp_path / "model", files_of(library))
    size = library.get_vocab_size()
    assert which == "learned" or size == SIZE
    tokenizer, warnings = read(path, size)
    assert not warnings and tokenizer.nfc and tokenizer.special_names == BERT
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(path)
    assert_same_ids(tokenizer, theirs, MORE)
    masked = ["a [MASK]b", "[CLS]  [MASK] x[SEP]"]
    expected = theirs(masked, add_special_tokens=False)["input_ids"]
    assert tokenizer.tokenize(masked, special_tokens=True).to_list() == expected

    again = rewritten(tokenizer, tmp_path / "again")
    assert_same_ids(tokenizer, again, MORE)
    assert again(masked, add_special_tokens=False)["input_ids"] == expected
    back, warnings = read(tmp_path / "again", size)
    assert not warnings and (back.vocab, back.description) == (tokenizer.vocab, tokenizer.description)

    tokenizer.save(tmp_path / "own")
    own = saved_tokenizer(str(tmp_path / "own"), tokenizer.description, tokenizer.checksums, "config.json")
    assert own.description == tokenizer.description
    assert own.tokenize(MORE).to_list() == tokenizer.tokenize(MORE).to_list()


def test_types_in_the_template_count_only_for_models_that_have_them(tmp_path):
    path = directory(tmp_path / "model", files_of(modern().reference))
    size = modern().tokenizer.vocab_size
    assert read(path, size)[1] == []  # a template of one type
    edit(path, "tokenizer_config.json", "model_input_names", value=["input_ids", "token_type_ids", "attention_mask"])
    [warning] = read(path, size)[1]
    assert "post_processor" in warning
