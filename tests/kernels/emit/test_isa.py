"""The table of instruction sets."""

import platform
from collections.abc import Iterator

import pytest

from pliant import system
from pliant.errors import KernelError
from pliant.kernels.emit import isa as table
from pliant.kernels.emit.isa import (
    AVX2,
    AVX512,
    AVX512_BF16,
    AVX512_VBMI,
    AVX512_VNNI,
    ISAS,
    NEON,
    NEON_DOT,
    NEON_I8MM,
    X86_64,
    Isa,
    host_isa,
    portable,
    runnable,
)


@pytest.fixture
def forgotten() -> Iterator[None]:
    """The CPU's flags are asked for anew, in the test and after it."""
    table.host_flags.cache_clear()
    yield
    table.host_flags.cache_clear()


def test_the_host_runs_the_best_row_that_it_supports() -> None:
    """Rows stand best first; the first runnable one is the host's."""
    runnable_rows = [row for row in ISAS if runnable(row)]
    assert host_isa() == runnable_rows[0]
    assert runnable({"x86_64": X86_64, "aarch64": NEON}[system.machine()])


def test_a_portable_row_keeps_its_vectors_and_runs_here() -> None:
    """Generators for AVX-512 are tested on CPUs that lack it: 16 lanes, lowered."""
    row = portable(AVX512)
    assert runnable(row)
    assert (row.name, row.lanes, row.registers) == ("avx512", 16, 32)
    assert row.is_portable != runnable(AVX512)


def test_a_row_that_runs_here_is_its_own_portable_form() -> None:
    """Natively wherever possible."""
    assert portable(host_isa()) == host_isa()


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
        (f"{_V3} {_V4} avx512_vnni avx512vbmi", AVX512_VBMI),
        (f"{_V3} {_V4} avx512_vnni avx512_bf16", AVX512_VNNI),
        (f"{_V3} {_V4} avx512_vnni avx512vbmi avx512_bf16", AVX512_BF16),
    ],
)
def test_a_row_needs_every_one_of_its_features(
    flags: str, expected: Isa, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU that has AVX2 but not FMA would die of an illegal instruction."""

    class Cpuinfo:
        @staticmethod
        def read_text() -> str:
            return f"processor: 0\nflags\t\t: {flags}\n"

    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(system, "CPUINFO", Cpuinfo)
    assert host_isa() == expected


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["asimd"], NEON),
        (["asimd", "i8mm"], NEON),
        (["asimd", "asimddp"], NEON_DOT),
        (["asimd", "asimddp", "i8mm", "bf16"], NEON_I8MM),
    ],
)
def test_arm_has_rows_of_its_own(flags: list[str], expected: Isa, monkeypatch: pytest.MonkeyPatch) -> None:
    """An x86-64 row stands before them in the table, and runs on no Arm whatever its flags."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(system, "cpu_flags", lambda: frozenset(flags))
    assert host_isa() == expected
    assert portable(X86_64).triple == expected.triple


def test_llvm_and_the_kernel_agree_on_this_cpu() -> None:
    """Where /proc/cpuinfo is missing LLVM answers; the two must choose the same row."""
    if system.machine() != "x86_64":
        pytest.skip("on Arm nobody asks LLVM, which knows nothing of an emulated CPU")
    needed = table.needed_flags(AVX512_BF16)
    assert table.flags_by_llvm() & needed == table.host_flags() & needed


def test_another_architecture_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use must say what is missing, not crash in LLVM."""
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(KernelError, match="riscv64"):
        host_isa()
