"""Directories as Transformers writes them, without weights, and comparisons of tokenizers with Transformers'."""

import json
import os
import re

import pytest

from bert_tf.bundled import bundled
from bert_tf.checkpoints import tokenizer_files
from bert_tf.config import BertConfig

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every file is local; a request would only wait
transformers = pytest.importorskip("transformers")

with open(bundled("data/reviews/heldout.tsv"), encoding="utf-8") as lines:
    TEXTS = [line.split("\t")[0] for line in lines][:200]
TEXTS += [
    "",
    " ",
    "  two  spaces ",
    "a tab\tand\u3000others\n",
    "é ﬁ ½ 😀",
    "한국어 문장입니다.",
    "Hello world!",
    "it's 1,000",
]
UNSEEN = "tokenizer: none, as "


def write(path, file, content):
    """Writes JSON, text or bytes."""
    if isinstance(content, bytes):
        (path / file).write_bytes(content)
    else:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        (path / file).write_text(text, encoding="utf-8")


def directory(path, files):
    """A new directory with files {name: content}."""
    path.mkdir()
    for file, content in files.items():
        write(path, file, content)
    return path


def edit(path, file, *keys, value):
    """Sets one value, or removes it if None, in a JSON file."""
    content = json.loads((path / file).read_text(encoding="utf-8"))
    part = content
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    write(path, file, content)


_DIFFERS = re.compile(r"some texts otherwise than tokenizer\.json: (.*)")
# Whose normalization maps a grapheme of up to 5 bytes as a whole, and decomposed syllables have 6 and more.
HANGUL = {"words in Hangul", "decomposed Hangul"}


def read(path, vocab_size, default_class=None):
    """The tokenizer of a directory of a BERT, and warnings but that on Hangul, which Transformers leaves in parts."""
    config = tokenizer_files.read_config(str(path))
    tokenizer, warnings = tokenizer_files.read_tokenizer(
        str(path), config, vocab_size, default_class=default_class, required=True
    )
    return tokenizer, [one for one in warnings if not kinds([one]) or kinds([one]) - HANGUL]


def kinds(warnings):
    """The kinds of texts of which warnings say that they are segmented otherwise than by tokenizer.json."""
    found = (_DIFFERS.search(warning) for warning in warnings)
    return {kind for match in found if match for kind in match[1].split(", ")}


def rewritten(tokenizer, path, model_type="bert", stem="Bert"):
    """Writes a tokenizer into a new directory; returns Transformers' of it."""
    path.mkdir()
    model = BertConfig(vocab_size=tokenizer.vocab_size, num_layers=1, hidden_size=16, num_heads=2, intermediate_size=16)
    tokenizer_files.write_tokenizer(str(path), tokenizer, {}, model, stem)
    write(path, "config.json", {"model_type": model_type})
    return transformers.AutoTokenizer.from_pretrained(path)


def assert_same_ids(tokenizer, theirs, texts=TEXTS):
    """Texts have the same ids, and pairs of texts the same ids and types."""
    ours = tokenizer.tokenize(texts).to_list()
    for text, ids, right in zip(texts, ours, theirs(texts, add_special_tokens=False)["input_ids"], strict=True):
        assert ids == right, text
    pairs = texts[:50], texts[-50:]
    features = {name: value.numpy() for name, value in tokenizer.encode(*pairs).items()}
    expected = theirs(*pairs)
    for row, right in enumerate(expected["input_ids"]):
        tokens = features["input_mask"][row] == 1
        assert features["input_word_ids"][row][tokens].tolist() == right
        if "token_type_ids" in expected:
            assert features["input_type_ids"][row][tokens].tolist() == expected["token_type_ids"][row]
