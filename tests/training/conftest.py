"""A file system that can be filled, and functions without graphs."""

import shutil
import subprocess

import pytest

from tests.training.small import eagerly


@pytest.fixture
def eager():
    with eagerly():
        yield


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
