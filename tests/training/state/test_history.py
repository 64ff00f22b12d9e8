import functools
import json
import math
import os
import re
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bert_tf.errors import BertTfError
from bert_tf.report.file_reporter import FileReporter
from bert_tf.training.state.history import History, by_phase
from tests.errors import raises


def filled(folder, steps=(10, 20, 30)):
    history = History(str(folder), 0)
    for step in steps:
        speed = {"sequences_per_second": 1.0 * step, "training_seconds": 2.0}
        counts = {"lengths": np.arange(100) == step}
        history.point(step, step // 20, {"loss": 100.0 / step, "accuracy": step / 100}, 1e-3 / step, speed, counts)
        history.evaluation(step, {"loss": 200.0 / step}, print_line=lambda line: None)
    return history


def rows(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_points_and_evaluations_are_on_disk_as_soon_as_they_are_recorded(tmp_path):
    filled(tmp_path, steps=[10])
    training, evaluation = rows(tmp_path)
    assert training["kind"] == "training" and training["step"] == 10 and training["loss"] == 10.0
    assert training["learning_rate"] == pytest.approx(1e-4)
    assert training["phase"] == 0 and training["sequences_per_second"] == 10.0
    assert evaluation == {"kind": "evaluation", "step": 10, "loss": 20.0}


def test_tensorboard_shows_the_same_numbers(tmp_path):
    history = filled(tmp_path)
    for kind, expected in (("training", history.points), ("evaluation", history.evaluations)):
        events = EventAccumulator(str(tmp_path / "tensorboard" / kind), size_guidance={"tensors": 0})
        events.Reload()
        names = expected[-1].keys() - {"kind", "step"}
        assert set(events.Tags()["tensors"]) - {"lengths"} == names
        for name in names:
            shown = {event.step: float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors(name)}
            assert shown == pytest.approx({row["step"]: row[name] for row in expected if name in row}, rel=1e-6)


def test_entries_after_the_checkpoint_are_removed(tmp_path):
    filled(tmp_path)
    resumed = History(str(tmp_path), 20)
    resumed.resume(20)
    assert [row["step"] for row in resumed.points] == [10, 20]
    assert [row["step"] for row in resumed.evaluations] == [10, 20]
    assert [(row["kind"], row["step"]) for row in rows(tmp_path)][-2:] == [("evaluation", 20), ("resume", 20)]


def shown_by_tensorboard(folder, name="loss"):
    """(step, value) of every point."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events.Tensors(name)]


def ended(history, folder, time):
    """Closes the files like the end of a process; their names get another `time`, here at least seconds apart."""
    for kind, writer in history._writers.items():
        writer.close()
        path = max((folder / "tensorboard" / kind).iterdir(), key=os.path.getmtime)
        path.rename(path.with_name(re.sub(r"\d{10}", f"{time:010d}", path.name, count=1)))


def test_after_resuming_tensorboard_shows_each_point_once_and_the_new_ones(tmp_path):
    ended(filled(tmp_path), tmp_path, 1000)
    for kind in ("training", "evaluation"):
        (path,) = (tmp_path / "tensorboard" / kind).iterdir()
        path.write_bytes(path.read_bytes()[:-3])  # the process was killed while writing
    for last, value in ((20, 7.0), (10, 8.0)):  # resumes from 20, then falls back to 10, before the start of that
        resumed = History(str(tmp_path), last)
        resumed.point(last + 10, 0, {"loss": value}, 0.0, {})
        resumed.evaluation(last + 10, {"loss": value}, print_line=lambda line: None)
        ended(resumed, tmp_path, 2000 - last)
    assert shown_by_tensorboard(tmp_path / "tensorboard/training") == [(10, 10.0), (20, 8.0)]
    assert shown_by_tensorboard(tmp_path / "tensorboard/evaluation") == [(10, 20.0), (20, 8.0)]


DAMAGE = {
    b'{"kind": "train\n': "3: not JSON (Unterminated string starting at column 10); left out of the curves: 1 line",
    b"\xff\xfe\n3\n{}\nnull\n": " byte 0xff at offset 0 is not UTF-8; expected JSON; left out of the curves: 4 lines",
    b'{"kind": "resume", "step": "x"}\n': '3: step is "x"; expected a whole number; left out of the curves: 1 line',
    b'{"kind": "training", "step": 1}\n': "3: no 'phase'; left out of the curves: 1 line",
    b'{"kind": "x", "step": 1, "f": []}\n': "3: f is []; expected a number or null; left out of the curves: 1 line",
    b'{"a":' * 100_000 + b"\n": "3: JSON with lists or objects nested too deeply, or a number with thousands of "
    "digits; correct it; left out of the curves: 1 line",
}


@pytest.mark.parametrize("case", range(len(DAMAGE)))
def test_invalid_lines_are_removed(tmp_path, case, capfd):
    damage, message = list(DAMAGE.items())[case]
    filled(tmp_path, steps=[10])
    with open(tmp_path / "history.jsonl", "ab") as file:
        file.write(damage)
    resumed = History(str(tmp_path), 10)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("bert_tf: ")]
    assert lines == [f"bert_tf: {tmp_path}/history.jsonl:{message}"]
    resumed.point(20, 0, {"loss": 1.0}, 0.0, {})
    assert [row["step"] for row in rows(tmp_path)] == [10, 10, 20]


def test_nan_is_null_in_the_file_and_nan_again_in_a_resumed_run(tmp_path):
    history = History(str(tmp_path), 0)
    history.point(10, 0, {"loss": math.nan, "accuracy": 0.5}, 0.0, {"padding_share": math.nan})
    history.evaluation(10, {"loss": math.nan}, print_line=lambda line: None)
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    training, evaluation = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert (training["loss"], training["accuracy"], evaluation["loss"]) == (None, 0.5, None)
    for resumed in (History(str(tmp_path), 10), History(str(tmp_path), 10)):  # the first one rewrites the file
        assert repr(resumed.points + resumed.evaluations) == repr(history.points + history.evaluations)


def test_a_run_that_a_full_disk_ended_resumes_with_whole_lines(small_disk, fill, capfd):
    draw = functools.partial(FileReporter().curves, str(small_disk), "a run", "loss")
    history = History(str(small_disk), 0, draw=draw)
    history.point(10, 0, {"loss": 1.0}, 0.0, {})
    fill(0)
    with raises(BertTfError, "curves.png", "No space left on device"):
        history.draw()
    with raises(BertTfError, "No space left on device"):
        for step in range(20, 520, 50):  # more than the rest of the file's last page
            history.point(step, 0, {f"measure {number}": 1.0 for number in range(20)}, 0.0, {})
    (small_disk / "other").unlink()
    time.sleep(1.1)  # TensorBoard orders files of the same second by a counter as text: 10 before 9
    resumed = History(str(small_disk), 10, draw=draw)
    resumed.point(20, 0, {"loss": 2.0}, 0.0, {})
    assert "bert_tf: " not in capfd.readouterr().err and [row["step"] for row in rows(small_disk)] == [10, 20]
    assert shown_by_tensorboard(small_disk / "tensorboard/training") == [(10, 1.0), (20, 2.0)]


def test_a_run_that_ends_before_its_first_point_draws_nothing(tmp_path):
    path = tmp_path / "curves"
    path.mkdir()
    history = History(str(path), 0, draw=functools.partial(FileReporter().curves, str(path), "a run", "loss"))
    history.resume(0)
    history.draw()
    assert not (path / "curves.png").exists()
    history.point(1, 0, {"loss": 1.0}, 0.0, {})
    history.draw()
    assert (path / "curves.png").exists()


def test_a_worker_that_is_not_the_chief_writes_nothing(tmp_path):
    history = History(str(tmp_path), 0, write=False)
    history.point(10, 0, {"loss": 1.0}, 0.0, {})
    assert [row["step"] for row in history.points] == [10]
    assert not list(tmp_path.iterdir())


def test_tensorboard_shows_the_frequency_of_each_length(tmp_path):
    filled(tmp_path, steps=[10, 37])
    events = EventAccumulator(str(tmp_path / "tensorboard" / "training"), size_guidance={"tensors": 0})
    events.Reload()
    assert events.SummaryMetadata("lengths").plugin_data.plugin_name == "histograms"
    for event in events.Tensors("lengths"):
        buckets = tf.make_ndarray(event.tensor_proto)  # [buckets, 3]: left, right, count
        assert (buckets[1:, 0] == buckets[:-1, 1]).all()
        ((left, right, count),) = buckets[buckets[:, 2] > 0]
        assert count == 1 and left < event.step < right


def test_achieved_speed_is_averaged_over_the_time_of_each_phase():
    points = [
        {"phase": 0, "sequences_per_second": 10.0, "training_seconds": 1.0, "start_seconds": 5.0, "padding_share": 0.1},
        {
            "phase": 0,
            "sequences_per_second": 40.0,
            "training_seconds": 2.0,
            "saving_seconds": 1.0,
            "padding_share": 0.3,
        },
        {"phase": 0, "padding_share": float("nan")},  # of skipped updates
        {"phase": 1, "start_seconds": 3.0, "padding_share": 0.5},
    ]
    first, second = by_phase(points, pending={"saving_seconds": 2.0, "evaluation_seconds": 4.0})
    seconds = {"training": 3.0, "evaluation": 0.0, "saving": 1.0, "start": 5.0}
    assert first == {"phase": 0, "sequences_per_second": 30.0, "padding_share": pytest.approx(0.2), "seconds": seconds}
    seconds = {"training": 0.0, "evaluation": 4.0, "saving": 2.0, "start": 3.0}
    assert second == {"phase": 1, "padding_share": 0.5, "seconds": seconds}
