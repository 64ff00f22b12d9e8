"""The benchmark of pre-training, with its own contestants: the step of this project and the ceiling."""

import json
import math
import os
import subprocess
import sys

import pytest

from benchmarks.side_by_side import ROOT

pytestmark = pytest.mark.slow  # three processes; test_pipeline.py has a quick benchmark


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    output = tmp_path_factory.mktemp("benchmark") / "pretraining.json"
    flags = ["--work=tiny:2x16", "--dtypes=float32", "--rounds=1", "--seconds=0.1", "--only=updates a call"]
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "pretraining.py"), *flags, f"--output={output}"],
        check=True, timeout=300, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    (case,) = json.loads(output.read_text())["cases"]
    return {row["name"]: row for row in case["rows"]}


def test_it_trains_the_model_of_the_paper(rows):
    ready = rows["bert_tf"]["ready"]
    # Embeddings, two layers, pooler; transform and bias of the masked-LM head; next-sentence head.
    embeddings = (30522 + 512 + 2 + 2) * 128
    layer = 4 * (128 * 128 + 128) + 2 * 2 * 128 + 128 * 512 + 512 + 512 * 128 + 128
    heads = (128 * 128 + 128) + (128 * 128 + 3 * 128 + 30522) + (2 * 128 + 2)
    assert ready["parameters"] == embeddings + 2 * layer + heads
    # Before it has learned anything, all words are equally likely. Random weights give logits a deviation of 0.23, so
    # the mean of four positions has one of 0.11.
    assert ready["mlm_losses"][0] == pytest.approx(math.log(30522), abs=0.6)


def test_several_updates_of_a_call_are_all_counted(rows):
    several = rows["bert_tf, 10 updates a call"]
    (only,) = several["rounds"]
    assert only["count"] % (2 * 10) == 0
    assert several["ready"]["updates_per_call"] == 10


def test_ceiling_has_the_unit_of_the_contestants(rows):
    ceiling = rows["ceiling"]
    assert ceiling["unit"] == rows["bert_tf"]["unit"] == "sequences"
    # Three products of the forward one's size for each of a layer and the head, at the rate of the products alone.
    tokens, masked = 2 * 16, 2 * 2
    dense = 2 * 2 * tokens * 12 * 128 * 128 + 2 * masked * (128 * 128 + 128 * 30522) + 2 * 2 * 128 * (128 + 2)
    attention = 2 * 2 * 2 * tokens * 16 * 128
    (only,) = ceiling["rounds"]
    assert only["seconds"] == pytest.approx(3 * (dense + attention) / 2 / (only["gflops"] * 1e9))
