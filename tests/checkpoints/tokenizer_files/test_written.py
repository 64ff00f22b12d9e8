"""Tokenizers as they are written beside models: Transformers gives what the model reads, and no id without a row."""

import os

import pytest

from bert_tf.checkpoints.tokenizer_files import other_settings, read_config, write_tokenizer
from bert_tf.config import BertConfig
from tests.learned import TOKENIZERS

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every file is local; a request would only wait
transformers = pytest.importorskip("transformers")

# As those of a directory before its vocabulary was trimmed and its positions were cut.
STALE = {
    "model_max_length": 10**30,
    "model_input_names": ["input_ids", "attention_mask", "pixels"],
    "added_tokens_decoder": {
        "3": {"content": "nosuch", "special": False, "lstrip": False, "normalized": False, "rstrip": False,
              "single_word": False},
    },
    "additional_special_tokens": ["[E1]", {"content": "[/E1]"}],
    "extra_special_tokens": {"image_token": "<image>"},
    "bos_token": "<nosuch>",
    "sp_model_kwargs": {},
}  # fmt: skip


@pytest.mark.parametrize("types", [0, 1, 2])
@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("stem", ["Bert", "DistilBert"])
def test_inputs_are_those_of_the_model_and_ids_have_rows(stem, kind, types, tmp_path):
    tokenizer = TOKENIZERS[kind]()
    model = BertConfig(vocab_size=tokenizer.vocab_size, type_vocab_size=types, max_position_embeddings=40)
    write_tokenizer(str(tmp_path), tokenizer, STALE, model, stem)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    found = theirs(["a b the Good"], ["한국어 c"], return_tensors="np")
    expected = {"input_ids", "attention_mask"} | ({"token_type_ids"} if types > 1 else set())
    assert found.keys() == expected
    assert found["input_ids"].max() < tokenizer.vocab_size
    assert "token_type_ids" not in found or found["token_type_ids"].max() < types
    assert len(theirs) == tokenizer.vocab_size
    assert theirs.model_max_length == 40
    assert set(theirs.all_special_tokens) <= set(tokenizer.vocab)


def test_added_tokens_keep_their_flags_at_their_new_ids(tmp_path):
    tokenizer = TOKENIZERS["wordpiece"]()
    piece = tokenizer.vocab[700]
    token = {"content": piece, "special": True, "lstrip": True, "normalized": False, "rstrip": False,
             "single_word": False}  # fmt: skip
    others = other_settings({"added_tokens_decoder": {"31999": token}, "additional_special_tokens": [piece]})
    write_tokenizer(str(tmp_path), tokenizer, others, BertConfig(vocab_size=tokenizer.vocab_size), "Bert")
    written = read_config(str(tmp_path))
    assert written["added_tokens_decoder"] == {"700": token}
    assert written["additional_special_tokens"] == [piece]
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).convert_tokens_to_ids(piece) == 700
