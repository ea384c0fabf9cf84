"""Locks that threads and processes share, also those of other containers, through a common file system."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pliant.system import lock


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


def is_at(fd: int, path: Path) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
