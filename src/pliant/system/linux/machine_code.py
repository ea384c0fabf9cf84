"""Memory for machine code, and the functions of the C library that the code calls."""

import ctypes
import mmap

from pliant.errors import KernelError
from pliant.system.linux.processor import machine


def reserve_code(n_bytes: int) -> int:
    """The address of `n_bytes` of private memory that can be written, for machine code.

    Raises KernelError where there is none.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = libc.mmap(None, n_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if base is None or base == ctypes.c_void_p(-1).value:
        raise KernelError(f"no memory for {n_bytes} bytes of code (errno {ctypes.get_errno()}).")
    return int(base)


def install_code(base: int, code: bytes) -> None:
    """Write `code` to the memory that `reserve_code` gave, and make it executable and no longer writable.

    Raises KernelError where the system forbids that.
    """
    ctypes.memmove(base, code, len(code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if libc.mprotect(base, len(code), mmap.PROT_READ | mmap.PROT_EXEC):
        raise KernelError(
            f"this system forbids executable memory (errno {ctypes.get_errno()}); "
            "its security policy (SELinux execmem, or similar) must allow it for pliant to run."
        )
    if machine() == "aarch64":
        _clear_instruction_cache(base, len(code))


def c_function(name: str) -> int:
    """The address of a function of the C library. Raises KernelError if it has none of this name."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        raise KernelError(f"a compiled kernel calls {name!r}, which this system's C library lacks.") from None
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _clear_instruction_cache(base: int, n_bytes: int) -> None:
    """Have Arm's instruction fetch see what was stored, which x86 does by itself.

    libgcc has the loop of `dc cvau` and `ic ivau`. Without it Linux's own cleaning stands, which it does when
    a page becomes executable for the first time (arch/arm64/mm/flush.c); this memory never was before.
    """
    try:
        clear = getattr(ctypes.CDLL("libgcc_s.so.1"), "__clear_cache")
    except (OSError, AttributeError):
        return
    clear.restype, clear.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p)
    clear(base, base + n_bytes)
