"""What XLA reads from the environment, and the folder in which it keeps compiled programs."""

import os
import subprocess
import sys
from collections import namedtuple

import pytest
import tensorflow as tf

from bert_tf import xla_settings

ROUNDINGS = "--xla_allow_excess_precision"
KEPT = "--tf_xla_persistent_cache_directory"


@pytest.mark.parametrize(
    "gpus, given, expected",
    [
        (["GPU"], "", f"{ROUNDINGS}=false"),
        (["GPU"], "--xla_dump_to=x", f"--xla_dump_to=x {ROUNDINGS}=false"),
        (["GPU"], f"{ROUNDINGS}=true", f"{ROUNDINGS}=true"),
        ([], "", ""),
    ],
)
def test_xla_keeps_roundings_on_gpus_unless_the_user_says_otherwise(monkeypatch, gpus, given, expected):
    monkeypatch.setenv("XLA_FLAGS", given)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    xla_settings.keep_roundings()
    assert os.environ["XLA_FLAGS"] == expected


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """The folder of a driver with a card."""
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    folder = tmp_path / "driver"
    (folder / "gpus" / "0").mkdir(parents=True)
    (folder / "version").write_text("NVRM version: 580.1\n")
    (folder / "gpus" / "0" / "information").write_text("Model: \t NVIDIA H100\nBus Location: \t 0000:01:00.0\n")
    return folder


def kept(tmp_path, driver, flags=""):
    """The folder that XLA is told to keep its programs in."""
    os.environ["XLA_FLAGS"], os.environ["TF_XLA_FLAGS"] = flags, ""
    assert xla_settings.keep_programs(["pretrain", f"--xla_cache={tmp_path}/kept"], str(driver)) == ""
    (folder,) = [flag.split("=")[1] for flag in os.environ["TF_XLA_FLAGS"].split() if flag.startswith(KEPT)]
    return folder


def test_programs_of_another_card_driver_or_setting_are_kept_apart(tmp_path, driver):
    first = kept(tmp_path, driver)
    assert os.path.isdir(os.path.join(first, "tuning")) and first.startswith(f"{tmp_path}/kept/")
    assert f"--xla_gpu_per_fusion_autotune_cache_dir={first}/tuning" in os.environ["XLA_FLAGS"].split()
    card = driver / "gpus" / "0" / "information"
    card.write_text("Model: \t NVIDIA H100\nBus Location: \t 0000:02:00.0\n")  # moved
    assert kept(tmp_path, driver) == first
    found = {first}
    for path, text in ((card, "Model: NVIDIA A100\n"), (driver / "version", "NVRM version: 575.2\n")):
        path.write_text(text)
        found.add(kept(tmp_path, driver))
    found.add(kept(tmp_path, driver, "--xla_gpu_deterministic_ops=true"))
    assert len(found) == 4


Entry = namedtuple("Entry", "name content complete")
WHOLE = b"\x0a\x02ab" + b"\x12\x81\x01" + 129 * b"h" + b"\x1a\x03exe"
ENTRIES = [
    Entry("whole", WHOLE, True),
    Entry("empty", b"", False),
    Entry("cut", WHOLE[:-1], False),
    Entry("cut in a length", WHOLE[:5], False),
    Entry("without its program", WHOLE[:-5], False),
    Entry("of something else", b"{}", False),
]


def test_files_that_are_incomplete_are_removed(tmp_path, driver):
    folder = kept(tmp_path, driver)
    for entry in ENTRIES:
        with open(os.path.join(folder, f"{entry.name}.pb"), "wb") as file:
            file.write(entry.content)
    assert kept(tmp_path, driver) == folder
    assert sorted(os.listdir(folder)) == ["tuning", "whole.pb"]


@pytest.mark.parametrize(
    "name, reason",
    [
        ("file", "/file/"),
        ("with space", "with space: XLA takes no path with spaces"),
        ("full", "only 1 MB are free"),
    ],
)
def test_a_folder_that_cannot_be_used_is_reported(tmp_path, driver, monkeypatch, name, reason):
    if name == "file":
        (tmp_path / "file").write_text("")
    if name == "full":
        monkeypatch.setattr(xla_settings.shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(2**20))
    assert reason in xla_settings.keep_programs(["p", "--xla_cache", str(tmp_path / name)], str(driver))
    assert not os.environ["TF_XLA_FLAGS"]


def test_a_folder_in_the_environment_is_kept_and_another_one_is_reported(tmp_path, driver):
    before = kept(tmp_path, driver), os.environ["TF_XLA_FLAGS"]
    assert xla_settings.keep_programs(["pretrain", f"--xla_cache={tmp_path}/kept"], str(driver)) == ""
    reason = xla_settings.keep_programs(["pretrain", f"--xla_cache={tmp_path}/other"], str(driver))
    assert reason == f"TF_XLA_FLAGS names another folder, {before[0]}" and not (tmp_path / "other").exists()
    assert os.environ["TF_XLA_FLAGS"] == before[1]


def test_without_a_gpu_or_the_flag_nothing_is_kept(tmp_path, driver):
    (driver / "gpus" / "0" / "information").unlink()
    assert xla_settings.keep_programs(["p", f"--xla_cache={tmp_path}/x"], str(driver)) == "there is no NVIDIA GPU"
    assert xla_settings.keep_programs(["p", "--", "--xla_cache=x"], str(driver)) == ""
    assert not os.environ["TF_XLA_FLAGS"] and not os.path.exists(tmp_path / "x")


@pytest.mark.slow  # starts TensorFlow twice
def test_tensorflow_reads_the_folder_when_it_looks_for_devices_and_its_files_are_complete(tmp_path):
    """As app.py and quiet.py import TensorFlow; a failure means that a new version reads the setting earlier."""
    code = f"""
import os, tensorflow as tf
os.environ["TF_XLA_FLAGS"] = "{KEPT}={tmp_path}"
tf.config.list_physical_devices()
print(float(tf.function(lambda x: tf.tanh(x) + 1, jit_compile=True)(tf.ones([]))))
"""
    outputs = []
    for _ in range(2):  # written, and read
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        outputs.append(done.stdout)
        (path,) = tmp_path.glob("*.pb")
        assert xla_settings._is_complete(path)
    assert outputs[0] == outputs[1]
