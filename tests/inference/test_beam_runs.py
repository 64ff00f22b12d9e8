"""`predict --runner` as a program: the answers of every task, interruption, and constant memory."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bert_tf.files import bundled
from bert_tf.inputs.datasets.tables import read_table
from tests.inference.exports import TASKS, check_same, of_kind, write_rows
from tests.programs import peak_memory

pytest.importorskip("apache_beam", reason="needs pip install 'bert_tf[beam]'")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", TASKS)
def test_the_answers_of_every_task_equal_those_of_predict(programs, tmp_path, kind):
    served = of_kind(kind)
    folder = os.path.dirname(served.path)
    data = tmp_path / "rows.jsonl"
    write_rows(data, kind)
    ways = {
        "plain": [f"--model_dir={os.path.dirname(folder)}/model", f"--data_dir={data}"],
        "sharded": [f"--export_dir={folder}", "--runner=DirectRunner", f"--data_dir={data}"],
    }
    for name, arguments in ways.items():
        programs.succeed("predict", *arguments, f"--output={tmp_path}/{name}.jsonl")
    expected, found = (
        [json.loads(line) for line in (tmp_path / name).read_text().strip().split("\n")]
        for name in ("plain.jsonl", "sharded-00000-of-00001.jsonl")
    )
    assert len(expected) == 307
    check_same(found, expected)
    answers = [json.dumps({name: value for name, value in one.items() if name != "id"}) for one in expected]
    assert len(set(answers)) > 200  # the model's answers depend on the text
    for ending in set(served.task.writers()) - {
        ".jsonl",
        ".tsv",
        ".zip",
    }:  # a table of numbers differs in its last digit
        for name, arguments in ways.items():
            programs.succeed("predict", *arguments, f"--output={tmp_path}/{name}{ending}")
        whole = (tmp_path / f"plain{ending}").read_text()
        assert (tmp_path / f"sharded-00000-of-00001{ending}").read_text() == whole
        if kind == "questions":
            scores = (json.loads((tmp_path / name).read_text()) for name in (
                "sharded-00000-of-00001.null_odds.json", "plain.null_odds.json"))  # fmt: skip
            check_same(*scores)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Function from a number of rows to the command that predicts them, and its output folder."""
    folder = tmp_path_factory.mktemp("many")
    served = os.path.dirname(of_kind().path)
    texts = read_table(bundled("data/reviews/train.tsv"), ["sentence"])["sentence"]

    def command(rows):
        data = folder / f"{rows}.tsv"
        with open(data, "w") as file:
            file.write("sentence\n")
            file.writelines(f"{texts[row % len(texts)]} {row}\n" for row in range(rows))
        (folder / str(rows)).mkdir()
        arguments = [f"--export_dir={served}", f"--data_dir={data}", "--runner=DirectRunner"]
        arguments.append(f"--output={folder}/{rows}/labels.jsonl")
        return [sys.executable, "-m", "bert_tf.predict", *arguments], folder / str(rows)

    return command


def test_a_killed_run_resumes_with_the_missing_shards(many):
    command, folder = many(25_000)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(folder.glob("labels-*.jsonl")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    there = {path.name: path.stat().st_mtime_ns for path in folder.glob("labels-*.jsonl")}
    assert 1 <= len(there) < 3  # each was written as soon as its rows were predicted
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"25,000 rows in 3 shards, {len(there)} of them from an earlier run\n")
    assert {name: (folder / name).stat().st_mtime_ns for name in there} == there
    ids = [
        json.loads(line)["id"]
        for path in sorted(folder.glob("labels-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert ids == [str(row) for row in range(25_000)]
    assert sorted(os.listdir(folder / "labels.jsonl.shards")) == ["00000.json", "00001.json", "00002.json"]


def test_memory_does_not_grow_with_the_rows(many):
    """Peak resident memory of the single process with 200,000 rows as with 20,000, but for noise."""
    peaks = {}
    for rows in (20_000, 200_000):
        command, folder = many(rows)
        began = time.time()
        peaks[rows] = peak_memory(*command) / 2**20
        print(f"{rows:,} rows: {peaks[rows]:,.0f} MB at most, {rows / (time.time() - began):,.0f} rows/s")
        assert sum(path.read_text().count("\n") for path in folder.glob("labels-*.jsonl")) == rows
    assert peaks[200_000] < peaks[20_000] + 100
