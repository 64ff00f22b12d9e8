"""Contestants take turns in rotating order; medians, missing environments and failures are reported."""

import re
import sys

import pytest

from benchmarks import side_by_side
from benchmarks.side_by_side import Contestant, Python, compare

# A worker whose rates are the elements of `counts`, one a round, and which writes to `journal` when it works.
WORKER = """
import sys, time
sys.path.insert(0, {folder!r})
from worker import serve

def setup(settings):
    print("a library's greeting")  # must not reach the runner
    counts = iter(settings["counts"])
    def do_round():
        with open(settings["journal"], "a") as file:
            file.write(settings["name"] + " ")
        count = next(counts)
        if count is None:
            print("warning: about to fail", file=sys.stderr)
            raise RuntimeError("out of paper")
        return {{"seconds": 2.0, "count": count, "unit": "pages"}}
    return {{"dtype": "float32"}}, do_round

serve(setup)
"""


@pytest.fixture
def contestant(tmp_path):
    script = tmp_path / "worker_of_test.py"
    script.write_text(WORKER.format(folder=str(side_by_side.WORKERS)))

    def make(name, counts, python=None):
        python = python or Python(sys.executable)
        return Contestant(name, python, script, {"name": name, "counts": counts, "journal": str(tmp_path / "journal")})

    return make


def test_turns_rotate_and_medians_are_over_rounds(contestant, tmp_path):
    case = compare("writing", [contestant("a", [2, 4, 12]), contestant("b", [8, 1, 4])], rounds=3)
    assert (tmp_path / "journal").read_text().split() == ["a", "b", "b", "a", "a", "b"]
    a, b = case["rows"]
    assert (a["rate"], a["lowest"], a["highest"], a["unit"]) == (2.0, 1.0, 6.0, "pages")
    assert (b["rate"], b["lowest"], b["highest"]) == (2.0, 0.5, 4.0)
    # a / b in each round: 1/4, 4, 3
    assert b["times_reference"] == 3.0
    assert a["ready"] == {"dtype": "float32"}
    assert a["peak_megabytes"] > 1


def test_restarted_workers_do_one_round_each(contestant):
    # Counts start again in each new process.
    case = compare("writing", [contestant("a", [2, 4]), contestant("b", [6, 1])], rounds=3, restart=True)
    assert [each["count"] for each in case["rows"][0]["rounds"]] == [2, 2, 2]
    assert [each["count"] for each in case["rows"][1]["rounds"]] == [6, 6, 6]


def test_worker_that_dies_is_reported_and_the_others_go_on(contestant):
    case = compare("writing", [contestant("a", [2, 4, 6]), contestant("b", [1, None])], rounds=3)
    a, b = case["rows"]
    assert a["rate"] == 2.0
    assert b["error"] == "ended with status 1: RuntimeError: out of paper"
    assert "rate" not in b
    assert "RuntimeError: out of paper" in side_by_side.table([case])


def test_contestant_without_its_environment_is_left_out_with_the_remedy(contestant):
    nowhere = Python("/nowhere/python", target=".venv-a")
    bare = Python(sys.executable, ("json", "no_such_module"), "peers")
    case = compare(
        "writing", [contestant("a", [2]), contestant("b", [1], nowhere), contestant("c", [1], bare)], rounds=1
    )
    a, b, c = case["rows"]
    assert a["rate"] == 1.0
    assert b["left_out"] == "/nowhere/python does not exist; make .venv-a makes it"
    assert re.fullmatch(r"\S+ lacks no_such_module; make peers makes it", c["left_out"])


def test_silent_worker_is_given_up(contestant, tmp_path):
    silent = tmp_path / "silent.py"
    silent.write_text("import sys, time\nprint('still thinking', file=sys.stderr, flush=True)\ntime.sleep(600)\n")
    case = compare("writing", [Contestant("a", Python(sys.executable), silent)], rounds=1, patience=2)
    assert case["rows"][0]["error"] == "no answer in 2 seconds; last line of its output: still thinking"


# A round returns the states of the runner's other child processes.
WATCHER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from worker import serve

def setup(settings):
    def do_round():
        parent = os.getppid()
        children = Path(f"/proc/{{parent}}/task/{{parent}}/children").read_text().split()
        stats = [Path(f"/proc/{{child}}/stat").read_text() for child in children if int(child) != os.getpid()]
        states = [stat.rsplit(")", 1)[1].split()[0] for stat in stats]
        return {{"seconds": 1.0, "count": 1, "unit": "looks", "states": states}}
    return {{}}, do_round

serve(setup)
"""


def test_waiting_workers_are_stopped(tmp_path):
    script = tmp_path / "watcher.py"
    script.write_text(WATCHER.format(folder=str(side_by_side.WORKERS)))
    case = compare("looking", [Contestant(name, Python(sys.executable), script) for name in "abc"], rounds=2)
    for row in case["rows"]:
        for each in row["rounds"]:
            assert each["states"].count("T") >= 2


def test_table_shows_shares_of_the_ceiling(contestant):
    contestants = [contestant("ours", [6]), contestant("peer", [3]), contestant(side_by_side.CEILING, [8])]
    lines = side_by_side.table([compare("writing", contestants, rounds=1)]).splitlines()
    assert lines[2].startswith("| writing | ours | 3 pages/s | 3 to 3 | 75% | 1.00 |")
    assert lines[3].startswith("| writing | peer | 1.5 pages/s | 1.5 to 1.5 | 38% | 2.00 |")
    assert len(lines) == 5
