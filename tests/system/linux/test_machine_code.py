"""Memory that machine code is written to and run from."""

import ctypes
from pathlib import Path

from pliant import system

_RETURN_7 = {
    "x86_64": b"\xb8\x07\x00\x00\x00\xc3",  # mov eax, 7; ret
    "aarch64": b"\xe0\x00\x80\x52\xc0\x03\x5f\xd6",  # mov w0, 7; ret
}


def test_code_that_is_installed_runs_and_cannot_be_written() -> None:
    """Memory is either writable or executable, never both."""
    code = _RETURN_7[system.machine()]
    base = system.reserve_code(4096)
    system.install_code(base, code)
    assert ctypes.CFUNCTYPE(ctypes.c_int)(base)() == 7
    (found,) = (line for line in Path("/proc/self/maps").read_text().splitlines() if _holds(line, base))
    assert found.split()[1] == "r-xp"


def _holds(line: str, address: int) -> bool:
    low, high = (int(x, 16) for x in line.split()[0].split("-"))
    return low <= address < high
