"""Locks that threads and processes share, also those of other containers, through a common file system."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold the lock of the file `path`, which is created for it and removed afterwards.

    Waits for other holders, threads of this process too. A file system without locks is used without them.
    Raises OSError where the file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        lock(fd)
        if is_at(fd, path):
            break
        os.close(fd)  # its last holder removed it
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def lock(fd: int) -> None:
    """Wait for the lock of an open file or directory, and take it until `fd` is closed, if it has one."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX)


def try_lock(fd: int) -> bool:
    """Whether the lock was free, and is now taken. False where the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_at(fd: int, path: Path) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
