"""The tables of students and of small models, from the results of runs."""

import json
import sys

import pytest

from benchmarks import small, students


def write(path, values):
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(values))


def run(value):
    return {"final": {"accuracy": value}}


def test_students_are_listed_with_the_mean_of_their_seeds_when_all_four_are_there(tmp_path):
    write(tmp_path / "SST-2/teacher/results.json", run(0.9))
    for student, values in {
        "3 layers, 0.9": (0.8, 0.9),
        "3 layers, 0.001": (0.5, 0.6),
        "2 x 128, 0.9": (0.7, 0.7),
    }.items():
        write(tmp_path / "SST-2" / student / "results.json", {"trials": [run(value) for value in values]})
    head, _, *lines = students.table(tmp_path).splitlines()
    assert "with it" in head
    assert lines == ["| SST-2, accuracy | 3 layers | 0.900 | 0.850 (0.800, 0.900) | 0.550 (0.500, 0.600) |"]


ROW = {"value": 0.875, "interval": None, "megabytes": 20.84, "ms_1_thread": 4.7, "ms_2_threads": 5.6}


@pytest.fixture
def results(tmp_path):
    """Two files of `compress`, of two tasks."""
    paths = []
    for name, metric in {"one": "accuracy", "other": "slot_f1"}.items():
        write(
            tmp_path / name / "results.json",
            {"metric": metric, "rows": [{"name": name, "texts_per_second": 1234.5} | ROW]},
        )
        paths.append(str(tmp_path / name / "results.json"))
    return paths


def test_steps_are_listed_and_drawn(results, tmp_path, monkeypatch, capsys):
    picture = tmp_path / "small.png"
    monkeypatch.setattr(sys, "argv", ["small.py", f"--results={results[0]}", f"--picture={picture}"])
    small.main()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| one"))
    assert [cell.strip() for cell in line.split("|")[1:-1]] == ["one", "0.8750", "", "20.8", "4.70", "5.60", "1,234"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_results_of_two_tasks_are_not_mixed(results, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["small.py", f"--results={','.join(results)}"])
    with pytest.raises(SystemExit):
        small.main()
    assert "accuracy, slot_f1; expected one task" in capsys.readouterr().err
