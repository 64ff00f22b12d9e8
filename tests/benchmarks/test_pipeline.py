"""The benchmarks of the input pipeline and of start-up, with small inputs."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from benchmarks.side_by_side import ROOT, WORKERS, Contestant, Python, compare

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.slow
def test_growth_is_measured_on_all_of_the_text(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *"abcdefgh"]) + "\n")
    output = tmp_path / "pipeline.json"
    flags = [f"--vocab={tmp_path}/vocab.txt", "--megabytes=0", "--grow=0.02", "--rounds=1", f"--output={output}"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "pipeline.py"), *flags],
        check=True, timeout=300, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    (case,) = json.loads(output.read_text())["cases"]
    (row,) = case["rows"]
    words = gzip.decompress((ROOT / "data/sotu/train.txt.gz").read_bytes()).decode().split()
    in_text = 20_000 / len(" ".join(words)) * len(words)
    (only,) = row["rounds"]
    assert only["count"] > in_text and only["seconds"] > 2
    assert "0.02 MB" in done.stdout


def command(code, until=""):
    settings = {"command": [sys.executable, "-c", code, "{output}"], "until": until}
    return compare("a command", [Contestant("it", Python(sys.executable), WORKERS / "command.py", settings)], rounds=1)


def test_a_command_is_timed_to_its_exit_or_to_its_file():
    sleep = "import sys, time; time.sleep(0.3); open(sys.argv[1], 'w').write('done'); time.sleep({})"
    (whole,) = command(sleep.format(0.5))["rows"]
    (part,) = command(sleep.format(600), "{output}")["rows"]
    assert whole["rounds"][0]["seconds"] > 0.8
    assert 0.3 < part["rounds"][0]["seconds"] < 300


def test_a_command_that_fails_is_no_time():
    (row,) = command("raise SystemExit(3)")["rows"]
    assert "exit status 3" in row["error"] and "rate" not in row
