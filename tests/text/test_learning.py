"""Learned vocabularies: repeatable, split like the tokenizer, with BERT's ids for the special tokens."""

import gzip
import os
import subprocess
import sys

import pytest

from bert_tf.errors import ConfigError, DataError
from bert_tf.text import Tokenizer, learn_vocabulary, read_vocabulary
from tests.errors import raises

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SYLLABLES = ["la", "mo", "ti", "ne", "Ru", "É", "가", "나다", "中国", "-", "’", "."]


def corpus(lines=400):
    """Words of pseudo-random syllables: many merges have the same frequency, so ties have to be broken."""
    state, text = 1, []
    for _ in range(lines):
        words = []
        for _ in range(8):
            state = state * 1103515245 + 12345 & 0x7FFFFFFF
            shifts = (8, 13, 18)[: state % 3 + 1]
            words.append("".join(SYLLABLES[(state >> shift) % len(SYLLABLES)] for shift in shifts))
        text.append(" ".join(words))
    return text


def test_special_tokens_come_first_and_the_size_is_as_requested():
    pieces = learn_vocabulary(corpus(), 120)
    assert pieces[:5] == SPECIALS and len(pieces) == len(set(pieces)) == 120


def test_the_training_text_is_tokenized_without_unknowns():
    for options in ({}, {"lower_case": False}, {"strip_accents": False}, {"split_cjk": False}):
        tokenizer = Tokenizer(learn_vocabulary(corpus(), 200, **options), **options)
        ids = tokenizer.tokenize(corpus())
        assert tokenizer.unk_id not in ids.flat_values.numpy()


def test_wordpieces_are_normalized_and_never_cross_a_split_of_the_tokenizer():
    pieces = learn_vocabulary(["É中国-x’y."] * 50, 100)
    assert {"e", "中", "国", "-", "’", "x", "y"} <= set(pieces)
    assert not any(len(piece) > 1 for piece in pieces[5:])
    assert {"É", "##y", "##中"}.isdisjoint(pieces)
    whole = learn_vocabulary(["É中国"] * 50, 100, strip_accents=False, split_cjk=False)
    assert "é中国" in whole


def test_rare_characters_are_excluded_together_with_their_words():
    rare = [f"a{chr(0x4E00 + i)}" for i in range(200)]
    pieces = learn_vocabulary(["abab ab"] * 50 + rare, 100, split_cjk=False)
    assert sum(len(piece.removeprefix("##")) == 1 for piece in pieces) <= 50 and "abab" in pieces
    assert all(set(piece.removeprefix("##")) <= set(pieces) for piece in pieces[5:])


def test_words_over_the_tokenizers_limit_are_ignored():
    pieces = learn_vocabulary(["ab" * 101, "ab" * 101, "cd cd"], 100)
    assert "##ab" not in pieces and "ab" not in pieces and "cd" in pieces


def test_lines_may_be_bytes_and_invalid_utf8():
    assert learn_vocabulary([b"the\xff cat\r\n", "the cat"], 100) == learn_vocabulary(["the cat", "the cat"], 100)


def test_the_program_writes_in_another_process_what_is_learnt_here(tmp_path):
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write("\n".join(corpus()[200:]).encode())
    (tmp_path / "a.txt").write_text("\n".join(corpus()[:200]) + "\n", encoding="utf-8")
    output = tmp_path / "vocab.txt"
    # Hashes, and so the order of sets, are different from those of this process.
    environment = os.environ | {"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1"}
    arguments = [f"--input={tmp_path}/*.txt,{tmp_path}/*.gz", f"--output={output}", "--vocab_size=150"]
    done = subprocess.run(
        [sys.executable, "-m", "bert_tf.learn_vocab", *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "150 wordpieces" in done.stdout
    assert read_vocabulary(output) == learn_vocabulary(corpus(), 150)


def test_an_empty_text_and_a_too_small_size_are_refused(tmp_path):
    with raises(DataError, "no words"):
        learn_vocabulary(["", " \t"], 100)
    with raises(ConfigError, "20", "100", "10,000,000"):
        learn_vocabulary(["the cat"], 20)


@pytest.mark.parametrize("name, content, message", [
    ("cut.gz", gzip.compress(b"the cat\n" * 1000, mtime=0)[:-10], "the gzip data are cut off at byte"),
    ("a.txt", "the cat\n".encode("utf-16"), "byte 0: UTF-16 text"),
    ("ls", b"\x7fELF\2\1\1" + bytes(9) + b"the cat\n", "byte 7: 0x00, so binary data"),
], ids=["cut gzip", "UTF-16", "binary"])  # fmt: skip
def test_the_program_refuses_files_that_are_no_text(programs, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    done = programs("learn_vocab", f"--input={tmp_path / name}", f"--output={tmp_path}/vocab.txt")
    assert done.status == 1 and f"{name}: {message}" in done.error_line
    assert not (tmp_path / "vocab.txt").exists()
