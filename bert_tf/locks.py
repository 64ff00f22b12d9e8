"""Locks of directories: one process at a time writes into them."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

import filelock

from bert_tf.errors import ConfigError
from bert_tf.types import StrPath

LOCK = ".lock"  # the file in a locked directory
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # of a file system


@contextlib.contextmanager
def locked(directory: StrPath, patience: float = 0) -> Iterator[None]:
    """Keeps other processes, on any machine, from entering such a block for the same directory, which is created.

    The system ends the lock of a process that was killed. Paths with a scheme, such as gs://, and file systems without
    locks are not protected.

    Args:
        directory: to lock.
        patience: seconds to wait for another process.

    Raises:
        ConfigError: another process is in such a block.
    """
    path = os.path.join(directory, LOCK)
    if "://" in path:
        yield
        return
    created = not os.path.isdir(directory)
    lock = filelock.FileLock(path, timeout=patience, fallback_to_soft=False)
    try:
        os.makedirs(directory, exist_ok=True)
        lock.acquire()
    # The last two: the process that created the directory is just removing it.
    except (filelock.Timeout, FileNotFoundError, FileExistsError) as error:
        with contextlib.suppress(FileNotFoundError):
            if isinstance(error, FileExistsError) and not stat.S_ISDIR(os.lstat(directory).st_mode):
                raise
        raise ConfigError(
            f"{os.fspath(directory)} is in use by {_holder(path)}; wait until it ends, or choose another directory"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:  # not on a full disk
            print(f"process {os.getpid()} on {os.uname().nodename}", file=file)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.remove(path)  # while it is locked: whoever waits for this file will see that it has gone
            if created:
                os.rmdir(directory)  # only if it is empty
        lock.release()


def abandoned(directory: StrPath) -> bool | None:
    """Whether the process that was in `locked(directory)` was killed; None if no lock shows it."""
    path = os.path.join(directory, LOCK)
    if not os.path.exists(path):
        return None
    lock = filelock.FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        return False
    except OSError:
        return None
    lock.release()
    return True


def _holder(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.readline().strip() or "another process"
    return "another process"
