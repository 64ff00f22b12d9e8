"""The benchmark of tokenization, with small vocabularies of each kind: what is compared gives the same ids."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.side_by_side import ROOT
from bert_tf.text import learn_byte_pairs, learn_unigram, learn_vocabulary, write_vocabulary
from bert_tf.text.byte_pair import BytePairTokenizer

TEXTS = [f"text {number}, with the words of text {number // 2}" for number in range(50)]


@pytest.mark.slow
def test_all_kinds_of_vocabularies_are_compared_with_their_references(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    write_vocabulary(tmp_path / "vocab.txt", learn_vocabulary(TEXTS, 100))
    BytePairTokenizer(*learn_byte_pairs(TEXTS, 300)).save(tmp_path)
    (tmp_path / "en.model").write_bytes(learn_unigram(TEXTS, 100))
    output = tmp_path / "tokenization.json"
    flags = [
        "--texts", f"{tmp_path}/texts.txt", "--batch", "20", "--long", "0.01", "--rounds=1", "--seconds=0.1",
        "--only=Hugging|sentencepiece", f"--output={output}",
        "--vocabulary", *(f"{tmp_path}/{name}" for name in ("vocab.txt", "vocab.json", "en.model")),
    ]  # fmt: skip
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "tokenization.py"), *flags],
        check=True, timeout=900, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    cases = json.loads(output.read_text())["cases"]
    rows = [row for case in cases for row in case["rows"]]
    assert len(cases) == 6 and [len(case["rows"]) for case in cases] == [2, 1, 2, 1, 3, 1]
    assert all(row["rate"] > 0 and row["ready"]["tokens"] > 0 for row in rows)
    assert not any(row["ready"].get("texts_that_differ") for row in rows)
    assert all("texts_that_differ" in row["ready"] for case in cases[::2] for row in case["rows"])
