"""The memory of this process: how much is resident, the C library's heap, and memory for special uses."""

import ctypes
import mmap
import os
import resource
from contextlib import suppress

from pliant.system.linux.kernel_files import PROC, field_of, kernel_text

_PAGE = mmap.PAGESIZE
_PAGEMAP, _STATM, _STATUS = PROC / "pagemap", PROC / "statm", PROC / "status"
_ENTRY_BYTES = 8
_IS_PRESENT = bytes(byte >> 7 for byte in range(256))
"""By the last byte of an entry of pagemap: 1 for a page in memory, as bit 63 tells."""
_ARENA_MAX = -8  # <malloc.h>: M_ARENA_MAX
_MADV_WIPEONFORK = 18
"""<linux/mman.h>; the mmap module has no name for it."""


def resident_bytes(address: int, n_bytes: int) -> int:
    """How many of `n_bytes` from `address` on are in memory; all where the system does not report it."""
    if n_bytes == 0:
        return 0
    end = address + n_bytes
    first, last = address // _PAGE, (end - 1) // _PAGE
    n_pages = last - first + 1
    try:
        with _PAGEMAP.open("rb", buffering=0) as file:
            file.seek(first * _ENTRY_BYTES)
            entries = file.read(n_pages * _ENTRY_BYTES)
    except OSError:
        return n_bytes
    if len(entries) < n_pages * _ENTRY_BYTES:
        return n_bytes
    present = entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES].translate(_IS_PRESENT)
    outside = present[0] * (address - first * _PAGE) + present[-1] * ((last + 1) * _PAGE - end)
    return present.count(1) * _PAGE - outside


def rss_bytes() -> int:
    """Resident bytes of this process now; 0 where the system does not report them."""
    text = kernel_text(_STATM)
    return int(text.split()[1]) * _PAGE if text else 0


def peak_rss_bytes() -> int:
    """The largest resident set this process has had, in bytes."""
    words = field_of(kernel_text(_STATUS) or "", "VmHWM:").split()
    kB = int(words[0]) if words else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kB * 1024


def use_one_heap() -> None:
    """Have all threads allocate from one heap. Call before a process starts its first thread.

    glibc gives threads heaps of their own, up to eight for each core, and what one of them freed is of no use
    to the others. Where models are opened on one thread and closed on another, a process grows by tens of MB
    that nothing uses. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)


def trim_heap() -> None:
    """Return freed memory to the system; glibc keeps tens of MB after large temporaries."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not needed with other C libraries
    if trim is not None:
        trim(0)


def private_memory(n_bytes: int) -> memoryview:
    """`n_bytes` of zeroed private memory, aligned to a page; a forked child finds zeros in it.

    With pages shared by parent and child, a direct read in progress could write to the wrong process
    (open(2), NOTES, O_DIRECT).
    """
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # Linux before 4.14
        memory.madvise(_MADV_WIPEONFORK)
    return memoryview(memory)


def shared_memory(n_bytes: int) -> int:
    """A descriptor of `n_bytes` of zeroed memory, which children inherit; freed when no process holds it.

    Pages are allocated on first access. `map_shared` maps it.
    """
    fd = os.memfd_create("pliant")
    os.ftruncate(fd, n_bytes)
    os.set_inheritable(fd, True)
    return fd


def map_shared(fd: int, n_bytes: int) -> memoryview:
    """The writable bytes of a descriptor of `shared_memory`."""
    return memoryview(mmap.mmap(fd, n_bytes))
