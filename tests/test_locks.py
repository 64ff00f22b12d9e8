import os
import signal
import subprocess
import sys

import pytest

from bert_tf.errors import ConfigError
from bert_tf.locks import LOCK, locked
from tests.errors import raises

HOLDER = """
import os, sys, time
from bert_tf.locks import locked
with locked(sys.argv[1]):
    if os.fork() == 0:  # such as a worker that loads data
        print(os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
"""


def test_a_directory_is_locked_once_and_left_as_it_was(tmp_path):
    folder = tmp_path / "run"
    with locked(folder):
        with (
            raises(ConfigError, os.getpid(), os.uname().nodename),
            locked(folder),
        ):
            pytest.fail("two at once")
        assert [path.name for path in folder.iterdir()] == [LOCK]
    assert not folder.exists()
    folder.mkdir()
    with locked(folder):
        (folder / "model").touch()
    with pytest.raises(ZeroDivisionError), locked(folder):
        raise ZeroDivisionError
    assert [path.name for path in folder.iterdir()] == ["model"]


def test_the_lock_of_a_killed_process_ends_even_if_its_forked_workers_live_on(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    try:
        with raises(ConfigError, process.pid), locked(tmp_path):
            pytest.fail("two at once")
        process.kill()
        process.wait()
        with locked(tmp_path):
            os.kill(worker, 0)  # it is still there
            assert (tmp_path / LOCK).read_text().startswith(f"process {os.getpid()} ")
    finally:
        process.kill()
        os.kill(worker, signal.SIGKILL)


def test_two_that_wait_for_the_same_directory_never_get_in_together(tmp_path):
    program = """
import os, sys, time
from bert_tf.errors import ConfigError
from bert_tf.locks import locked
end = time.monotonic() + 1
while time.monotonic() < end:
    try:
        with locked(sys.argv[1]):
            open(sys.argv[1] + ".inside", "x").close()  # fails if another process is inside
            os.remove(sys.argv[1] + ".inside")
    except ConfigError:
        pass
"""
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors


def test_a_directory_is_locked_under_all_its_names(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    with locked(tmp_path / "run"), raises(ConfigError, "link"), locked(tmp_path / "link"):
        pytest.fail("two at once")


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_what_is_no_directory_cannot_be_locked(tmp_path, kind):
    path = tmp_path / "run"
    path.touch() if kind == "file" else path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match="run"), locked(path):
        pytest.fail("locked")


def test_a_path_with_a_scheme_is_not_locked():
    with locked("gs://bucket/run"), locked("gs://bucket/run"):
        pass
