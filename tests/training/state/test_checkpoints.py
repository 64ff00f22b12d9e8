import concurrent.futures
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import BertTfError
from bert_tf.training.state.checkpoints import Checkpoints
from tests.errors import raises


def variable(value=0.0):
    return tf.Variable(np.full([1000], value, "float32"))


def saved(folder, steps, keep=2):
    """Checkpoints of a single variable whose value is the step."""
    weight = variable()
    checkpoints = Checkpoints(str(folder), {"layer/kernel": weight}, keep)
    for step in steps:
        weight.assign(tf.fill([1000], float(step)))
        checkpoints.save(step)
    checkpoints.wait()
    return checkpoints


def restored(folder, keep=2):
    """(value, lines reported) when a new process restores from the directory."""
    weight, lines = variable(-1.0), []
    checkpoints = Checkpoints(str(folder), {"layer/kernel": weight}, keep)
    found = checkpoints.restore(lines.append, lambda: int(weight.numpy()[0]))
    return (weight.numpy()[0] if found else None), lines


def data_file(folder, step):
    (path,) = Path(folder).glob(f"step-{step}.data-*")
    return path


def test_the_last_n_checkpoints_are_kept(tmp_path):
    saved(tmp_path, [10, 20, 30, 40], keep=3)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["step-20.index", "step-30.index", "step-40.index"]


def test_the_newest_checkpoint_is_restored(tmp_path):
    saved(tmp_path, [10, 20])
    assert restored(tmp_path) == (20.0, [])


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_sums_of_another_number_of_metrics_start_anew_and_all_else_is_restored(tmp_path, rows):
    def variables(value, rows):
        return {"layer/kernel": variable(value), "totals": tf.Variable(tf.fill([rows, 2], value))}

    with Checkpoints(str(tmp_path), variables(7.0, 3), 2, sums=["totals"]) as checkpoints:
        checkpoints.save(7)
    others = variables(0.0, rows)
    found = Checkpoints(str(tmp_path), others, 2, sums=["totals"]).restore(
        pytest.fail, lambda: int(others["layer/kernel"].numpy()[0])
    )
    assert found and others["totals"].numpy().tolist() == [[7.0 if rows == 3 else 0.0] * 2] * rows


def test_an_empty_directory_restores_nothing(tmp_path):
    assert restored(tmp_path / "new") == (None, [])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


DAMAGES = {
    "a flipped byte": flip,
    "half a file": lambda path: os.truncate(path, path.stat().st_size // 2),
    "an empty file": lambda path: os.truncate(path, 0),
    "no file": os.remove,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_restored(tmp_path, damage):
    saved(tmp_path, [10, 20])
    DAMAGES[damage](data_file(tmp_path, 20))
    value, lines = restored(tmp_path)
    assert value == 10.0
    (line,) = lines
    assert "step-20 cannot be read" in line and "\n" not in line


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_reported_and_the_previous_checkpoint_restored(tmp_path, damage):
    saved(tmp_path, [10, 20])
    DAMAGES[damage](tmp_path / "step-20.index")
    value, lines = restored(tmp_path)
    # Without an index, the checkpoint is not complete, and so none.
    assert value == 10.0 and len(lines) == (damage != "no file") and "\n" not in "".join(lines)


@pytest.mark.parametrize("copied", [("data-00000-of-00001", "index"), ("data-00000-of-00001",)])
def test_an_older_checkpoint_copied_over_the_newest_is_reported_and_not_restored(tmp_path, copied):
    saved(tmp_path, [10, 20, 30], keep=3)
    for extension in copied:
        shutil.copy(tmp_path / f"step-10.{extension}", tmp_path / f"step-30.{extension}")
    value, (line,) = restored(tmp_path)
    assert value == 20.0
    assert "step-30 cannot be read" in line and ("it holds step 10" in line) == (len(copied) == 2)


def test_checkpoints_are_found_without_their_list_which_is_written_for_other_programs(tmp_path):
    saved(tmp_path, [5, 10, 20], keep=3)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert state.model_checkpoint_path == str(tmp_path / "step-20")
    assert list(state.all_model_checkpoint_paths) == [str(tmp_path / f"step-{step}") for step in (5, 10, 20)]
    (tmp_path / "checkpoint").write_text("x{{")
    assert restored(tmp_path, keep=3) == (20.0, [])
    saved(tmp_path, [30], keep=3)
    assert {path.stem for path in tmp_path.glob("*.index")} == {"step-10", "step-20", "step-30"}
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "step-30")


def test_checkpoints_that_could_not_be_restored_are_removed_by_the_next_save(tmp_path):
    saved(tmp_path, [10, 20, 30], keep=3)
    for step in (20, 30):
        flip(data_file(tmp_path, step))
    checkpoints = Checkpoints(str(tmp_path), {"layer/kernel": variable()}, 2)
    assert checkpoints.restore(lambda line: None, lambda: 10)
    checkpoints.save(40)
    checkpoints.wait()
    assert {path.stem for path in tmp_path.glob("*.index")} == {"step-10", "step-40"}


def test_the_error_for_no_readable_checkpoint_says_what_to_do(tmp_path):
    saved(tmp_path, [10, 20])
    for step in (10, 20):
        os.truncate(data_file(tmp_path, step), 3)
    with raises(BertTfError, "no checkpoint"):
        restored(tmp_path)


def test_a_checkpoint_of_another_shape_is_refused(tmp_path):
    saved(tmp_path, [10])
    with raises(BertTfError, "no checkpoint"):
        Checkpoints(str(tmp_path), {"layer/kernel": tf.Variable(tf.zeros([3]))}, 2).restore(print, lambda: 10)


def test_a_checkpoint_that_lacks_a_variable_is_refused(tmp_path):
    saved(tmp_path, [10])
    more = {"layer/kernel": variable(), "layer/bias": variable()}
    with raises(BertTfError, "no checkpoint"):
        Checkpoints(str(tmp_path), more, 2).restore(print, lambda: 10)


def test_saving_continues_after_a_damaged_checkpoint(tmp_path):
    saved(tmp_path, [10, 20])
    flip(data_file(tmp_path, 20))
    weight = variable()
    checkpoints = Checkpoints(str(tmp_path), {"layer/kernel": weight}, 2)
    assert checkpoints.restore(lambda line: None, lambda: 10)
    weight.assign(tf.fill([1000], 20.5))
    checkpoints.save(20)
    checkpoints.wait()
    assert restored(tmp_path) == (20.5, [])


def test_saved_values_do_not_change_while_training_continues(tmp_path):
    # Every way in which the loop and the optimizers change a variable, before the thread has written it.
    weight, other, count = variable(1.0), variable(2.0), tf.Variable(7, dtype=tf.int64)
    moments = variable(3.0), variable(4.0)
    variables = {"a": weight, "b": other, "count": count, "m": moments[0], "v": moments[1]}
    with Checkpoints(str(tmp_path), variables, 2) as checkpoints:
        checkpoints._writer.submit(time.sleep, 0.3)  # blocks the write
        checkpoints.save(1)
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle, m=moments[0].handle, v=moments[1].handle, beta1_power=0.0, beta2_power=0.0,
            lr=0.1, beta1=0.9, beta2=0.999, epsilon=1e-6, grad=tf.ones([1000]),
        )  # fmt: skip
        tf.raw_ops.AssignSubVariableOp(resource=other.handle, value=tf.ones([1000]))
        tf.raw_ops.AssignAddVariableOp(resource=count.handle, value=tf.constant(1, tf.int64))
        assert weight.numpy()[0] != 1.0 and other.numpy()[0] != 2.0
    found = Checkpoints(str(tmp_path), variables, 2)
    assert found.restore(print, lambda: 1)
    values = [variable.numpy().flat[0] for variable in variables.values()]
    assert values == [1.0, 2.0, 7, 3.0, 4.0]


def test_a_save_waits_only_for_the_previous_write(tmp_path):
    checkpoints = saved(tmp_path, [10])
    gate = threading.Event()
    checkpoints._writer.submit(gate.wait, 60)
    checkpoints.save(20)
    assert checkpoints.newest.endswith("step-10") and restored(tmp_path) == (10.0, [])
    threading.Timer(0.2, gate.set).start()
    checkpoints.save(30)
    assert gate.is_set() and (tmp_path / "step-20.index").exists()
    checkpoints.wait()
    assert checkpoints.newest.endswith("step-30")


def test_no_copy_is_kept_between_saves(tmp_path):
    checkpoints = saved(tmp_path, [10])
    assert [tf.size(copy).numpy() for copy in checkpoints._copies.values()] == [0]


def break_writing(monkeypatch):
    """Lets the next write fail."""

    def full(path):
        monkeypatch.undo()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bert_tf.training.state.checkpoints.replacing", full)


def test_the_end_of_the_block_waits_for_the_write_and_raises_its_error(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, [10])
    break_writing(monkeypatch)
    with raises(BertTfError, "No space left on device"), checkpoints:
        checkpoints.save(20)
    assert restored(tmp_path) == (10.0, [])


def test_an_error_in_the_block_is_raised_and_that_of_the_write_reported(tmp_path, monkeypatch, capsys):
    checkpoints = saved(tmp_path, [10])
    break_writing(monkeypatch)
    with pytest.raises(ZeroDivisionError), checkpoints:
        checkpoints.save(20)
        raise ZeroDivisionError
    assert "bert_tf: checkpoint of step 20 could not be written" in capsys.readouterr().err


@pytest.mark.parametrize("told", ["check", "save", "wait"])
def test_an_error_of_a_write_is_raised_once_by_the_next_call(tmp_path, monkeypatch, told):
    checkpoints = saved(tmp_path, [10])
    break_writing(monkeypatch)
    checkpoints.save(20)
    concurrent.futures.wait([checkpoints._writing])
    with raises(BertTfError, "step 20", "No space left on device"):
        checkpoints.save(30) if told == "save" else getattr(checkpoints, told)()
    checkpoints.wait()
    checkpoints.save(40)
    checkpoints.wait()
    assert restored(tmp_path)[0] == 10.0 and checkpoints.newest.endswith("step-40")


def test_leftovers_of_a_killed_write_are_removed_by_the_next_process_that_saves(tmp_path):
    saved(tmp_path, [10, 20])
    half = tmp_path / "step-30.data-00000-of-00001"
    half.write_bytes(b"half")
    (tmp_path / "step-25.data-00000-of-00001").write_bytes(b"no index yet")
    (tmp_path / "input-0-20.index").write_bytes(b"of somebody else")
    assert restored(tmp_path) == (20.0, [])
    assert half.exists()  # a process that only reads does not remove them
    saved(tmp_path, [40], keep=3)
    names = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    assert names == {"checkpoint", "step-10", "step-20", "step-40", "input-0-20"}


def test_files_and_directories_of_other_names_stay(tmp_path):
    saved(tmp_path, [10])
    (tmp_path / "step-99").mkdir()
    others = ["step-5", "step-10-copy.index", "step-best.index", "step-5.txt"]
    for name in others:
        (tmp_path / name).write_text(name)
    saved(tmp_path, [20], keep=1)
    assert {path.name for path in tmp_path.iterdir()} == {
        "checkpoint", "step-20.index", "step-20.data-00000-of-00001", "step-99", *others
    }  # fmt: skip


def test_a_directory_with_the_name_of_a_checkpoint_is_an_error_at_the_start(tmp_path):
    saved(tmp_path, [10])
    (tmp_path / "step-99.index").mkdir()
    with raises(BertTfError, "step-99.index"):
        restored(tmp_path)


@pytest.mark.parametrize("room", [0, 4096, 8192])  # none; for a part of the data; for the data but not for all files
def test_on_a_full_disk_the_previous_checkpoint_is_kept_and_nothing_of_the_next(small_disk, fill, room):
    weight = variable(10.0)
    with Checkpoints(str(small_disk), {"layer/kernel": weight}, 2) as checkpoints:
        checkpoints.save(10)
        checkpoints.wait()
        fill(room)
        free = shutil.disk_usage(small_disk).free
        checkpoints.save(20)
        with raises(BertTfError, "step 20", "step-10") as caught:
            checkpoints.wait()
        assert "\n" not in str(caught.value) and shutil.disk_usage(small_disk).free == free
        assert restored(small_disk) == (10.0, [])
        os.remove(small_disk / "other")
        weight.assign(tf.fill([1000], 20.0))
        checkpoints.save(20)
    assert restored(small_disk) == (20.0, []) and len(list(small_disk.glob("*.index"))) == 2
