"""The table of instruction sets."""

import errno
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pliant import system
from pliant.errors import KernelError
from pliant.kernels.emit import isa as table
from pliant.kernels.emit.isa import (
    AVX2,
    AVX512,
    AVX512_AMX,
    AVX512_BF16,
    AVX512_VBMI,
    AVX512_VNNI,
    ISAS,
    NEON,
    NEON_BF16,
    NEON_DOT,
    NEON_I8MM,
    X86_64,
    Isa,
    host_isa,
    is_runnable,
    to_portable,
)


@pytest.fixture
def forgotten() -> Iterator[None]:
    """The CPU's flags are asked for anew, in the test and after it."""
    for known in (table.host_flags, table.can_use_tiles):
        known.cache_clear()
    yield
    for known in (table.host_flags, table.can_use_tiles):
        known.cache_clear()


def test_the_host_runs_the_best_row_that_it_supports() -> None:
    """Rows stand best first; the first runnable one is the host's."""
    runnable_rows = [row for row in ISAS if is_runnable(row)]
    assert host_isa() == runnable_rows[0]
    assert is_runnable({"x86_64": X86_64, "aarch64": NEON}[system.machine()])


def test_a_portable_row_keeps_its_vectors_and_runs_here() -> None:
    """Generators for AVX-512 are tested on CPUs that lack it: 16 lanes, lowered."""
    row = to_portable(AVX512)
    assert is_runnable(row)
    assert (row.name, row.lanes, row.registers) == ("avx512", 16, 32)
    assert row.is_portable != is_runnable(AVX512)


def test_a_row_that_runs_here_is_its_own_portable_form() -> None:
    """Natively wherever possible."""
    assert to_portable(host_isa()) == host_isa()


_V3, _V4 = "avx2 fma f16c bmi1 bmi2 movbe abm", "avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("sse sse2", X86_64),
        ("avx2 fma f16c bmi1 bmi2 movbe", X86_64),
        (_V3, AVX2),
        (f"{_V3} avx512f", AVX2),
        (f"{_V3} {_V4}", AVX512),
        (f"{_V3} {_V4} avx512_vnni", AVX512_VNNI),
        (f"{_V3} {_V4} avx512_vnni avx512vbmi avx512_bf16", AVX512_BF16),
        (f"{_V3} {_V4} avx512_vnni avx512vbmi", AVX512_VBMI),
        (f"{_V3} {_V4} avx512_vnni avx512_bf16", AVX512_VNNI),
    ],
)
def test_a_row_needs_every_one_of_its_features(
    flags: str, expected: Isa, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A CPU that has AVX2 but not FMA would die of an illegal instruction."""
    (tmp_path / "cpuinfo").write_text(f"processor: 0\nflags\t\t: {flags}\n")
    cpu_flags = system.cpu_flags
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(system, "cpu_flags", lambda: cpu_flags(tmp_path / "cpuinfo"))
    assert host_isa() == expected


_SAPPHIRE_RAPIDS = frozenset(
    f"{_V3} {_V4} lzcnt avx512_vnni avx512vbmi avx512_bf16 amx_tile amx_int8 amx_bf16".split()
)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("error", "expected"), [(0, AVX512_AMX), (errno.EPERM, AVX512_BF16), (errno.ENOSPC, AVX512_BF16)]
)
def test_amx_runs_where_the_system_lends_its_registers(
    error: int, expected: Isa, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked once; where it refuses, one line says so and the next best row runs."""
    asked: list[None] = []
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(system, "cpu_flags", lambda: _SAPPHIRE_RAPIDS)
    monkeypatch.setattr(system, "request_tiles", lambda: asked.append(None) or error)
    monkeypatch.setenv("PLIANT_AMX", "1")
    assert host_isa() == host_isa() == expected
    assert len(asked) == 1
    assert [os.strerror(error) in line for line in caplog.messages] == ([True] if error else [])


@pytest.mark.usefixtures("forgotten")
def test_amx_is_not_asked_for_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next best row runs, as where the system refuses."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(system, "cpu_flags", lambda: _SAPPHIRE_RAPIDS)
    monkeypatch.setattr(system, "request_tiles", lambda: pytest.fail("asked"))
    monkeypatch.delenv("PLIANT_AMX", raising=False)
    assert host_isa() == AVX512_BF16


@pytest.mark.usefixtures("forgotten")
def test_nobody_asks_for_amx_on_a_cpu_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux answers EOPNOTSUPP, which would be logged as a refusal."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(system, "cpu_flags", lambda: _SAPPHIRE_RAPIDS - {"amx_int8"})
    monkeypatch.setattr(system, "request_tiles", lambda: pytest.fail("asked"))
    monkeypatch.setenv("PLIANT_AMX", "1")
    assert host_isa() == AVX512_BF16


_REFUSE = """
import ctypes, errno, struct, sys
from pliant import system

# struct sock_filter: load the call's number and first argument; EPERM for arch_prctl(0x1023), else allow
program = [(0x20, 0, 0, 0), (0x15, 0, 3, 158), (0x20, 0, 0, 16), (0x15, 0, 1, 0x1023)]
program += [(0x06, 0, 0, 0x00050000 | errno.EPERM), (0x06, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("HBBI", *line) for line in program)
buffer = ctypes.create_string_buffer(code)
filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter_, 0, 0):
    sys.exit("no filter")
print(errno.errorcode[system.request_tiles()])
"""


@pytest.mark.skipif(system.machine() != "x86_64", reason="AMX is x86-64's")
def test_a_seccomp_filter_may_refuse_amx() -> None:
    """As containers do: the call fails, and its error number is told."""
    child = subprocess.run([sys.executable, "-c", _REFUSE], capture_output=True, text=True, check=False)
    if "no filter" in child.stderr:
        pytest.skip("this system allows no seccomp filters")
    assert child.stdout.strip() == "EPERM", child.stderr


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["asimd"], NEON),
        (["asimd", "i8mm"], NEON),
        (["asimd", "asimddp"], NEON_DOT),
        (["asimd", "asimddp", "i8mm"], NEON_I8MM),
        (["asimd", "asimddp", "i8mm", "bf16"], NEON_BF16),
        (["asimd", "asimddp", "bf16"], NEON_DOT),
    ],
)
def test_arm_has_rows_of_its_own(flags: list[str], expected: Isa, monkeypatch: pytest.MonkeyPatch) -> None:
    """An x86-64 row stands before them in the table, and runs on no Arm whatever its flags."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(system, "cpu_flags", lambda: frozenset(flags))
    assert host_isa() == expected
    assert to_portable(X86_64).triple == expected.triple


def test_llvm_and_the_kernel_agree_on_this_cpu() -> None:
    """Where /proc/cpuinfo is missing LLVM answers; the two must choose the same row."""
    if system.machine() != "x86_64":
        pytest.skip("on Arm nobody asks LLVM, which knows nothing of an emulated CPU")
    needed = table.needed_flags(AVX512_AMX)
    assert table.llvm_flags() & needed == table.host_flags() & needed


def test_another_architecture_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use must say what is missing, not crash in LLVM."""
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(KernelError, match="riscv64"):
        host_isa()
