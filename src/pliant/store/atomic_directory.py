"""Write a directory beside its place, and rename it when it is complete."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_directory(out: Path) -> Iterator[Path]:
    """A directory beside `out` that becomes `out` when the block ends well and vanishes when it does not.

    The old `out` is kept until then. Several processes may write the same `out`: each writes its own
    directory, the last one wins. Raises OSError when it cannot be written.
    """
    staging = out.parent / f".{out.name}.building-{os.getpid()}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir()
        yield staging
        sync_directory(staging)
        _swap(staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def sync_directory(directory: Path) -> None:
    """Flush the entries of `directory` to disk, so that they survive a power failure."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _swap(staging: Path, out: Path) -> None:
    """Rename `staging` to `out`; the old `out` is moved aside until the new one has its name."""
    old = out.parent / f".{out.name}.replaced-{os.getpid()}"
    while not _renamed(staging, out, old):
        pass  # another process has written its own meanwhile
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
    pattern = re.compile(re.escape(f".{out.name}.") + r"(building|replaced)-(\d+)")
    for path in sorted(out.parent.iterdir()) if out.parent.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match is None or _is_running(int(match[2])):
            continue
        if match[1] == "replaced" and not out.exists():
            path.rename(out)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
