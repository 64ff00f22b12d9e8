import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import BertTfError, ConfigError
from bert_tf.training.checkpoints import Checkpoints, claim


def variable(value=0.0):
    return tf.Variable(np.full([1000], value, "float32"))


def saved(folder, steps, keep=2):
    """Checkpoints of one variable whose value is the step."""
    weight = variable()
    checkpoints = Checkpoints(str(folder), {"layer/kernel": weight}, keep)
    for step in steps:
        weight.assign(tf.fill([1000], float(step)))
        checkpoints.save(step)
    return checkpoints


def restored(folder, keep=2):
    """(value found, lines reported) of a new process's look at the directory."""
    weight, lines = variable(-1.0), []
    found = Checkpoints(str(folder), {"layer/kernel": weight}, keep).restore(lines.append)
    return (weight.numpy()[0] if found else None), lines


def data_file(folder, step):
    (path,) = Path(folder).glob(f"step-{step}.data-*")
    return path


def test_the_last_n_are_kept(tmp_path):
    saved(tmp_path, [10, 20, 30, 40], keep=3)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["step-20.index", "step-30.index", "step-40.index"]


def test_the_newest_is_restored(tmp_path):
    saved(tmp_path, [10, 20])
    assert restored(tmp_path) == (20.0, [])


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
def test_a_damaged_checkpoint_is_reported_and_the_one_before_taken(tmp_path, damage):
    saved(tmp_path, [10, 20])
    DAMAGES[damage](data_file(tmp_path, 20))
    value, lines = restored(tmp_path)
    assert value == 10.0
    (line,) = lines
    assert "step-20 can not be read" in line and "\n" not in line


def test_a_damaged_index_is_reported_and_the_one_before_taken(tmp_path):
    saved(tmp_path, [10, 20])
    os.truncate(tmp_path / "step-20.index", 10)
    value, lines = restored(tmp_path)
    assert value == 10.0 and len(lines) == 1


def test_when_none_can_be_read_the_error_says_what_to_do(tmp_path):
    saved(tmp_path, [10, 20])
    for step in (10, 20):
        os.truncate(data_file(tmp_path, step), 3)
    with pytest.raises(BertTfError, match=r"no checkpoint can be read; remove the directory") as caught:
        restored(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_another_shape_is_not_taken(tmp_path):
    saved(tmp_path, [10])
    with pytest.raises(BertTfError, match="no checkpoint can be read"):
        Checkpoints(str(tmp_path), {"layer/kernel": tf.Variable(tf.zeros([3]))}, 2).restore(print)


def test_a_checkpoint_that_lacks_a_variable_is_not_taken(tmp_path):
    saved(tmp_path, [10])
    more = {"layer/kernel": variable(), "layer/bias": variable()}
    with pytest.raises(BertTfError, match="no checkpoint can be read"):
        Checkpoints(str(tmp_path), more, 2).restore(print)


def test_saving_goes_on_after_a_damaged_checkpoint(tmp_path):
    saved(tmp_path, [10, 20])
    flip(data_file(tmp_path, 20))
    weight = variable()
    checkpoints = Checkpoints(str(tmp_path), {"layer/kernel": weight}, 2)
    assert checkpoints.restore(lambda line: None)
    weight.assign(tf.fill([1000], 20.5))
    checkpoints.save(20)
    assert restored(tmp_path) == (20.5, [])


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        not shutil.which("mount")
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], capture_output=True
        ).returncode
    ):
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_checkpoint_before_in_force(small_disk):
    checkpoints = saved(small_disk, [10])
    (small_disk / "other").write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 4096))
    with pytest.raises(BertTfError, match=r"step 20 could not be written: .*; last good one: .*step-10") as caught:
        checkpoints.save(20)
    assert "\n" not in str(caught.value)
    assert restored(small_disk) == (10.0, [])
    os.remove(small_disk / "other")
    checkpoints.save(20)
    assert restored(small_disk)[0] == 0.0 + 10.0 and len(list(small_disk.glob("*.index"))) == 2


def test_a_directory_that_cannot_be_written_keeps_what_it_had(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, [10])

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints._manager, "save", full)
    with pytest.raises(BertTfError, match="No space left on device"):
        checkpoints.save(20)
    assert restored(tmp_path) == (10.0, [])


RUN = {"program": "pretrain", "config": {"train": {"batch_size": 8, "seed": 0}, "input": "a.txt"}}


def other(**train):
    return RUN | {"config": RUN["config"] | {"train": RUN["config"]["train"] | train}}


def claimed(folder):
    claim(str(folder), RUN)
    (folder / "checkpoints").mkdir()
    return folder


def test_a_new_directory_is_claimed_and_says_whose_it_is(tmp_path):
    claim(str(tmp_path / "a/b"), RUN)
    assert json.loads((tmp_path / "a/b/run.json").read_text()) == RUN


def test_the_same_run_may_come_back(tmp_path):
    claim(str(claimed(tmp_path / "run")), RUN)


def test_another_runs_directory_is_refused_with_what_differs(tmp_path):
    folder = claimed(tmp_path / "run")
    with pytest.raises(ConfigError) as caught:
        claim(str(folder), other(batch_size=16))
    message = str(caught.value)
    assert "belongs to another run" in message and "config.train.batch_size: 8 there, 16 now" in message
    assert "seed" not in message
    assert json.loads((folder / "run.json").read_text()) == RUN


def test_a_field_that_is_new_differs_too(tmp_path):
    folder = claimed(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"config.train.extra: None there, 1 now"):
        claim(str(folder), other(extra=1))


def test_a_run_that_failed_before_its_first_checkpoint_can_be_mended(tmp_path):
    claim(str(tmp_path / "run"), RUN)
    claim(str(tmp_path / "run"), other(batch_size=4))
    assert json.loads((tmp_path / "run/run.json").read_text()) == other(batch_size=4)


def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"not empty \(it holds 'thesis.tex'\)"):
        claim(str(tmp_path), RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
