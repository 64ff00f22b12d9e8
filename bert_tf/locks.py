"""Locks of directories: one process at a time writes into them."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import IO

from bert_tf.errors import ConfigError
from bert_tf.types import StrPath

LOCK = ".lock"  # the file in a locked directory
_held: set[IO[str]] = set()
# A forked process shares the locks, and would keep them if this one were killed.
os.register_at_fork(after_in_child=lambda: [file.close() for file in _held])


@contextlib.contextmanager
def locked(directory: StrPath) -> Iterator[None]:
    """Keeps other processes, on any machine, from entering such a block for the same directory, which is created.

    The system ends the lock of a process that was killed. Paths with a scheme, such as gs://, and file systems without
    locks are not protected.

    Raises:
        ConfigError: another process is in such a block.
    """
    path = os.path.join(directory, LOCK)
    if "://" in path:
        yield
        return
    created = not os.path.isdir(directory)
    while True:
        try:
            os.makedirs(directory, exist_ok=True)
        except FileExistsError:
            # It may have existed at first and been removed by the process that had created it.
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.lstat(directory).st_mode):
                    raise
            continue
        try:
            file = open(path, "a+", encoding="utf-8")  # noqa: SIM115
        except FileNotFoundError:  # the process that created the directory has removed it
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            with file:
                holder = file.read().strip() or "another process"
            raise ConfigError(
                f"{os.fspath(directory)} is in use by {holder}; wait until it ends, or choose another directory"
            ) from None
        except OSError:  # no locks on this file system
            break
        # The process that had the lock may have removed the file between the two calls.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
        file.close()
    _held.add(file)
    try:
        with contextlib.suppress(OSError):  # on a full disk
            file.truncate(0)
            print(f"process {os.getpid()} on {os.uname().nodename}", file=file, flush=True)
        yield
    finally:
        _held.remove(file)
        with contextlib.suppress(OSError):
            os.remove(path)
            if created:
                os.rmdir(directory)  # only if it is empty
        with contextlib.suppress(OSError):
            file.close()
