"""Call a kernel on the test's own thread, without a pool."""

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np

from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.jit import Library

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@cache
def address(library: Library, name: str, generate: Callable[..., str], *variant: object) -> int:
    """Where the kernel `name` of `generate(isa, *variant)` is; generated once in a session."""
    return library.load_function(name, lambda: generate(library.isa, *variant))


def call(kernel: int, args: ctypes.Structure, stop: int, scratch_bytes: int = 64, *, first: int = 0) -> None:
    """Run units first..stop-1 of the kernel at an address."""
    scratch = aligned_bytes(scratch_bytes)
    scratch[:] = 0xFF  # NaN: a kernel that reads what it did not write shows it
    KERNEL(kernel)(ctypes.addressof(args), first, stop, scratch.ctypes.data)


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normal float32 numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def guarded(rows: int, columns: int, ld: int) -> np.ndarray:
    """float32 [rows, ld] of sevens, whose columns past `columns` must stay sevens."""
    assert ld >= columns
    return np.full((rows, ld), 7.0, np.float32)
