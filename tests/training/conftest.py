"""A disk that can be filled."""

import shutil
import subprocess

import pytest


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    # Lazily: who was tested may still have files open.
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def fill(small_disk):
    """A function that leaves so many bytes of it, in whole pages."""

    def leave(room):
        (small_disk / "other").write_bytes(b"x" * (shutil.disk_usage(small_disk).free - room))

    return leave
