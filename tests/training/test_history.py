import json
import os
import re

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bert_tf.training.history import History


def filled(folder, steps=(10, 20, 30)):
    history = History(str(folder), 0)
    for step in steps:
        history.progress(5, {"loss": 1.0}, 8)
        history.progress(5, {"loss": 1.0}, 8)
        history.point(step, {"loss": 100.0 / step, "accuracy": step / 100}, 1e-3 / step)
        history.evaluation(step, {"loss": 200.0 / step}, say=lambda line: None)
    return history


def rows(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_points_and_evaluations_are_on_disk_as_soon_as_they_are_noted(tmp_path):
    filled(tmp_path, steps=[10])
    training, evaluation = rows(tmp_path)
    assert training["kind"] == "training" and training["step"] == 10 and training["loss"] == 10.0
    assert training["learning_rate"] == pytest.approx(1e-4)
    assert training["sequences_per_second"] == pytest.approx(8 * training["steps_per_second"])
    assert evaluation == {"kind": "evaluation", "step": 10, "loss": 20.0}


def test_tensorboard_shows_the_same_numbers(tmp_path):
    history = filled(tmp_path)
    for kind, expected in (("training", history.points), ("evaluation", history.evaluations)):
        events = EventAccumulator(str(tmp_path / "tensorboard" / kind), size_guidance={"tensors": 0})
        events.Reload()
        names = expected[-1].keys() - {"kind", "step"}
        assert set(events.Tags()["tensors"]) == names
        for name in names:
            shown = {event.step: float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors(name)}
            assert shown == pytest.approx({row["step"]: row[name] for row in expected if name in row}, rel=1e-6)


def test_what_came_after_the_checkpoint_is_forgotten(tmp_path):
    filled(tmp_path)
    resumed = History(str(tmp_path), 20)
    assert [row["step"] for row in resumed.points] == [10, 20]
    assert [row["step"] for row in resumed.evaluations] == [10, 20]
    assert [row["step"] for row in rows(tmp_path)] == [10, 10, 20, 20]


def shown_by_tensorboard(folder, name="loss"):
    """(step, value) of every point."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events.Tensors(name)]


def ended(history, folder, time):
    """Closes the files as the end of a process does; their names get another `time`, here seconds apart at least."""
    for kind, writer in history._writers.items():
        writer.close()
        path = max((folder / "tensorboard" / kind).iterdir(), key=os.path.getmtime)
        path.rename(path.with_name(re.sub(r"\d{10}", f"{time:010d}", path.name, count=1)))


def test_after_going_on_tensorboard_shows_each_point_once_and_the_new_ones(tmp_path):
    ended(filled(tmp_path), tmp_path, 1000)
    for kind in ("training", "evaluation"):
        (path,) = (tmp_path / "tensorboard" / kind).iterdir()
        path.write_bytes(path.read_bytes()[:-3])  # the process was killed while it wrote
    for last, value in ((20, 7.0), (10, 8.0)):  # goes on from 20, then falls back behind where that began, to 10
        resumed = History(str(tmp_path), last)
        resumed.point(last + 10, {"loss": value}, 0.0)
        resumed.evaluation(last + 10, {"loss": value}, say=lambda line: None)
        ended(resumed, tmp_path, 2000 - last)
    assert shown_by_tensorboard(tmp_path / "tensorboard/training") == [(10, 10.0), (20, 8.0)]
    assert shown_by_tensorboard(tmp_path / "tensorboard/evaluation") == [(10, 20.0), (20, 8.0)]


def test_half_a_line_of_a_full_disk_is_forgotten(tmp_path):
    filled(tmp_path, steps=[10])
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write('{"kind": "train')
    resumed = History(str(tmp_path), 10)
    resumed.point(20, {"loss": 1.0}, 0.0)
    assert [row["step"] for row in rows(tmp_path)] == [10, 10, 20]


def test_a_worker_that_is_not_the_chief_writes_nothing(tmp_path):
    history = History(str(tmp_path), 0, write=False)
    history.point(10, {"loss": 1.0}, 0.0)
    assert [row["step"] for row in history.points] == [10]
    assert not list(tmp_path.iterdir())


def test_the_speed_leaves_the_first_call_and_evaluations_out(tmp_path, monkeypatch):
    clock = iter([0.0, 2.0, 4.0, 100.0, 102.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    history = History(str(tmp_path), 0, write=False)
    for _ in range(3):  # the first ends at 0 s; then 10 updates in 4 s
        history.progress(5, {"loss": 1.0}, 8)
    history.point(15, {"loss": 1.0}, 0.0)
    assert history.points[0]["steps_per_second"] == pytest.approx(10 / 4)
    history.evaluation(15, {"loss": 1.0}, say=lambda line: None)  # takes until 100 s
    history.progress(5, {"loss": 1.0}, 8)
    assert "sequences/s" in history.progress(5, {"loss": 1.0}, 8)
    history.point(25, {"loss": 1.0}, 0.0)
    assert history.points[1]["steps_per_second"] == pytest.approx(5 / 2)
