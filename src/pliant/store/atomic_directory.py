"""Write a directory beside its place, and rename it when it is complete."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from pliant.store.file_lock import is_at
from pliant.system import lock, try_lock


@contextmanager
def atomic_directory(out: Path) -> Iterator[Path]:
    """A directory beside `out` that becomes `out` when the block ends well and vanishes when it does not.

    The old `out` is kept until then. Several threads and processes may write the same `out`: each writes its
    own directory, the last one wins. Raises OSError when it cannot be written.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    staging, fd = _locked_directory(out)
    try:
        yield staging
        sync_directory(staging)
        _swap(staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(fd)


def sync_directory(directory: Path) -> None:
    """Flush the entries of `directory` to disk, so that they survive a power failure."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _locked_directory(out: Path) -> tuple[Path, int]:
    """A new directory for `out`, and its descriptor, which holds a lock that shows that its writer lives.

    A process number would not do: a thread has that of the others, and a process in another container may
    have it too.
    """
    while True:
        staging = _beside(out, "building", uuid4().hex)
        staging.mkdir()
        with suppress(FileNotFoundError):  # `clear_leftovers` removed it before it was locked
            fd = os.open(staging, os.O_RDONLY)
            lock(fd)
            if is_at(fd, staging):
                return staging, fd
            os.close(fd)


def _beside(out: Path, state: str, writer: str) -> Path:
    return out.parent / f".{out.name}.{state}-{writer}"


def _swap(staging: Path, out: Path) -> None:
    """Rename `staging` to `out`; the old `out` is moved aside until the new one has its name."""
    old = _beside(out, "replaced", staging.name.rpartition("-")[2])
    while not _renamed(staging, out, old):
        pass  # another writer has written its own meanwhile
    sync_directory(out.parent)
    shutil.rmtree(old, ignore_errors=True)


def _renamed(staging: Path, out: Path, old: Path) -> bool:
    """Whether `staging` was renamed to `out`; False if `out` was created after the old one was moved
    aside.
    """
    shutil.rmtree(old, ignore_errors=True)
    with suppress(FileNotFoundError):
        out.rename(old)
    try:
        staging.rename(out)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        if old.exists():
            old.rename(out)
        raise
    return True


def clear_leftovers(out: Path) -> None:
    """Remove leftovers of dead writers of `out`, and restore directories that they had moved aside."""
    pattern = re.compile(re.escape(f".{out.name}.") + r"(building|replaced)-([0-9a-f]+)")
    found = [pattern.fullmatch(path.name) for path in out.parent.iterdir()] if out.parent.is_dir() else []
    leftovers = sorted((match[1], match[2]) for match in found if match is not None)
    for state, writer in leftovers:  # what is being built, then what was moved aside for it
        path = _beside(out, state, writer)
        if state == "building":
            _remove_dead(path)
        elif not _beside(out, "building", writer).exists():
            if out.exists():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(FileNotFoundError):  # its writer removed it meanwhile
                    path.rename(out)


def _remove_dead(staging: Path) -> None:
    """Remove `staging` unless its writer holds the lock of it."""
    with suppress(FileNotFoundError):
        fd = os.open(staging, os.O_RDONLY)
        try:
            if try_lock(fd):
                shutil.rmtree(staging, ignore_errors=True)
        finally:
            os.close(fd)
