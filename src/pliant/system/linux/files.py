"""Files: reads past the page cache, mapped files, locks, and the disk that a folder is on."""

import errno
import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path

from pliant.system.linux.kernel_files import PROC, kernel_text

_SYS = Path("/sys")
_IN_MEMORY = ("tmpfs", "ramfs", "rootfs")


def has_direct_reads(path: Path, proc: Path = PROC) -> bool:
    """Whether the file system under `path` may read past the page cache, which those in memory do not."""
    name = _device_number(path)
    for line in (kernel_text(proc / "mountinfo") or "").splitlines():
        fields = line.split()
        if fields[2] == name:
            return fields[fields.index("-") + 1] not in _IN_MEMORY
    return True


def open_direct(path: Path) -> int | None:
    """A descriptor whose reads bypass the page cache; None where the file system refuses that.

    Offset, size and memory of each read must be aligned to 4096 bytes. Raises OSError.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None


def drop_cached(fd: int, offset: int, n_bytes: int) -> None:
    """Remove a part of a file from the page cache, as far as the file system allows. Raises OSError."""
    os.posix_fadvise(fd, offset, n_bytes, os.POSIX_FADV_DONTNEED)


def read_into(fd: int, target: memoryview, offset: int) -> int:
    """Read from `offset` of a file into `target`: the bytes read, 0 at the end. Raises OSError.

    Releases the GIL. Threads may read from one descriptor at once.
    """
    return os.preadv(fd, [target], offset)


def map_file(fd: int) -> memoryview:
    """All bytes of a file, mapped read-only, also after `fd` is closed.

    Raises OSError, or ValueError for an empty file.
    """
    return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))


def is_file_map(memory: object) -> bool:
    """Whether `memory` is what a `memoryview` of a mapped file has as its `obj`."""
    return isinstance(memory, mmap.mmap)


def drop_pages(mapped: memoryview) -> None:
    """Let the system reclaim the pages of `map_file`; they are read again when needed."""
    if isinstance(mapped.obj, mmap.mmap):
        mapped.obj.madvise(mmap.MADV_DONTNEED)


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


def disk_name(folder: Path, sys: Path = _SYS) -> str:
    """Return a name of the disk of `folder` that stays when the machine starts again; "" if it is unknown.

    It is the disk's model, or the name of its mapping, else that of its device. A file system in memory, of
    the network or of several disks has none.
    """
    device = (sys / "dev" / "block" / _device_number(folder)).resolve()
    if not device.is_dir():
        return ""
    disk = device.parent if (device / "partition").exists() else device
    names = (kernel_text(disk / file) for file in ("device/model", "dm/name"))
    return next((name for name in names if name is not None), disk.name)


def _device_number(path: Path) -> str:
    """The number of the device of a file system, as the kernel writes it."""
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"
