"""What is asked of Linux: features, and memory that machine code is written to and run from."""

import ctypes
import platform
import subprocess
import sys
from pathlib import Path

import pytest

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


_ALLOCATE_ON_THREADS = """
import ctypes, sys, threading
from pliant import system
if "one" in sys.argv:
    system.use_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
barrier = threading.Barrier(4)
def allocate():
    barrier.wait()
    for _ in range(100):
        libc.malloc(5000)
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.malloc_stats()
"""


def test_threads_allocate_from_one_heap() -> None:
    """What one thread freed would be of no use to another; glibc counts its heaps as arenas."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("other C libraries have heaps of their own kind")
    found = []
    for word in ("several", "one"):
        command = [sys.executable, "-c", _ALLOCATE_ON_THREADS, word]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(sum(line.startswith("Arena") for line in run.stderr.splitlines()))
    assert found[0] > 1
    assert found[1] == 1


def _holds(line: str, address: int) -> bool:
    low, high = (int(x, 16) for x in line.split()[0].split("-"))
    return low <= address < high


@pytest.mark.parametrize(
    ("word", "expected"),
    [("x86_64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64"), ("riscv64", "riscv64")],
)
def test_one_architecture_has_one_name(monkeypatch: pytest.MonkeyPatch, word: str, expected: str) -> None:
    """Systems spell it in their own ways; rows, objects and triples are compared by it."""
    monkeypatch.setattr(platform, "machine", lambda: word)
    assert system.machine() == expected


def test_flags_are_read_from_cpuinfo_on_x86(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the file is missing nothing is known, which is not the same as no features."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(system, "CPUINFO", tmp_path / "cpuinfo")
    assert system.cpu_flags() is None
    (tmp_path / "cpuinfo").write_text("processor: 0\nflags\t\t: fma abm\n")
    assert system.cpu_flags() == {"fma", "abm", "lzcnt"}


def test_flags_are_asked_of_the_auxiliary_vector_on_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """ASIMDDP is bit 20 of the first word, I8MM bit 13 and BF16 bit 14 of the second."""
    words = {16: 1 << 1 | 1 << 20, 26: 1 << 13}

    class Libc:
        class getauxval:  # noqa: N801 - a function of libc
            def __new__(cls, vector: int) -> int:  # type: ignore[misc]
                return words[vector]

    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Libc)
    assert system.cpu_flags() == {"asimd", "asimddp", "i8mm"}


def test_waiting_for_a_core_is_counted() -> None:
    """Two that want the one core that they may use: each waits for about as long as the other runs."""
    spin = (
        "import os, time; from pliant import system; "
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "other = os.fork(); end = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass\n"
        "other and (os.wait(), print(max(system.waited_s().values(), default=0.0)))"
    )
    told = subprocess.run([sys.executable, "-c", spin], capture_output=True, text=True, check=True)
    if Path("/proc/self/schedstat").exists():
        assert float(told.stdout) > 0.05
    else:
        assert float(told.stdout) == 0.0


def test_pressure_is_a_share_or_unknown() -> None:
    """Machines without pressure stall information have none."""
    found = system.cpu_pressure()
    assert found is None or 0.0 <= found <= 1.0
