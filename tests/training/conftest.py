"""A file system that can be filled, functions without graphs, and runs that end before their first update."""

import contextlib
import shutil
import subprocess

import pytest


@pytest.fixture
def eager():
    from tests.training.small import eagerly  # not in the process that only starts those of the tests

    with eagerly():
        yield


@contextlib.contextmanager
def _unsampled():
    from bert_tf.inputs.corpus import dataset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "check_corpus", lambda corpus: (corpus.check(), []))
        yield


@pytest.fixture(scope="module")
def unsampled():
    """Texts are not read before the training, which takes a second for each: tests/inputs/corpus has those checks."""
    with _unsampled():
        yield


@pytest.fixture
def unsampled_here():
    """The same for one test of a module."""
    with _unsampled():
        yield


@pytest.fixture
def begun(monkeypatch):
    """A function that calls another one, which runs a training, up to its first update: the Trainer."""
    from bert_tf.training.loop import Loop
    from tests.training.small import Stop

    def begin(start, *arguments, **settings):
        def run(loop):
            trainers.append(loop.trainer)
            raise Stop

        trainers = []
        with monkeypatch.context() as patch, pytest.raises(Stop):
            patch.setattr(Loop, "run", run)
            start(*arguments, **settings)
        return trainers[0]

    return begin


@pytest.fixture
def small_disk(tmp_path):
    """A separate file system of 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    # Lazily, because the code under test may still have open files.
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def fill(small_disk):
    """A function that fills it up to this number of free bytes, in whole pages."""

    def leave(room):
        (small_disk / "other").write_bytes(b"x" * (shutil.disk_usage(small_disk).free - room))

    return leave
