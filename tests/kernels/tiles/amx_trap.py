"""AMX where the CPU lacks it, by the handler in amx_trap.c: what AMX would run runs, slowly.

Everything else of that code needs AVX-512 with VBMI and BF16. Where those or a C compiler are missing,
`missing` gives the reason, and only the portable lowering is tested.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from pliant import system
from pliant.kernels.emit import isa as table
from pliant.kernels.emit.isa import AVX512_AMX, AVX512_BF16, Isa, is_runnable
from pliant.kernels.runtime.jit import Library
from pliant.settings import cache_folder

SOURCE = Path(__file__).with_name("amx_trap.c")
_FLAGS = frozenset(["amx_tile", "amx_int8", "amx_bf16"])


class Executed(IntEnum):
    """Instructions that are counted, in the order of amx_trap.c."""

    CONFIGURED, RELEASED, ZEROED, LOADED, STORED, BYTES, BFLOATS = range(7)


def missing() -> str | None:
    """Why AMX cannot be had here at all, not even by a handler."""
    if is_runnable(AVX512_AMX):
        return None
    if table.host_flags() >= _FLAGS:
        return "this CPU has AMX, which PLIANT_AMX=1 has pliant use"
    if not is_runnable(AVX512_BF16):
        return "needs AVX-512 with VNNI, VBMI and BF16"
    return None if shutil.which("cc") else "needs a C compiler"


class Trap:
    """The handler, installed; `count` says how often an instruction was executed by it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "amx_trap.so"
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(path), str(SOURCE), "-lm"]
            subprocess.run(command, check=True, capture_output=True)
        self._library = ctypes.CDLL(str(path))
        self._library.amx_count.restype = ctypes.c_uint64
        if self._library.amx_install():
            raise OSError("the handler of SIGILL was not installed")

    def count(self, which: Executed) -> int:
        return int(self._library.amx_count(int(which)))

    @property
    def is_configured(self) -> bool:
        """Whether this thread's tiles are in use still."""
        return bool(self._library.amx_is_configured())


def library_of(isa: Isa, cache: Path | None) -> Library:
    """A row's library; AMX runs by the handler where the CPU lacks it, for the rest of the process."""
    if not isa.has_tiles or is_runnable(isa):
        return Library(isa, cache)
    Trap(cache or cache_folder())
    with claimed():
        return Library(isa, cache)


@contextmanager
def claimed() -> Iterator[None]:
    """In the block this CPU says that it has AMX, and the system lends it."""
    flags, request, wanted = system.cpu_flags, system.request_tiles, os.environ.get("PLIANT_AMX")
    _forget()
    os.environ["PLIANT_AMX"] = "1"
    system.cpu_flags = lambda: (flags() or frozenset()) | _FLAGS
    system.request_tiles = lambda: 0
    try:
        yield
    finally:
        system.cpu_flags, system.request_tiles = flags, request
        os.environ.pop("PLIANT_AMX")
        os.environ.update({} if wanted is None else {"PLIANT_AMX": wanted})
        _forget()


def _forget() -> None:
    table.host_flags.cache_clear()
    table.can_use_tiles.cache_clear()
