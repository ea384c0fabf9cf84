"""The table of instruction sets."""

import platform

import pytest

from pliant.errors import KernelError
from pliant.kernels.emit import isa as table
from pliant.kernels.emit.isa import AVX2, AVX512, ISAS, X86_64, host_isa, portable, runnable


def test_the_host_runs_the_best_row_that_it_supports() -> None:
    """Rows stand best first; the first runnable one is the host's."""
    runnable_rows = [row for row in ISAS if runnable(row)]
    assert host_isa() == runnable_rows[0]
    assert runnable(X86_64)


def test_a_portable_row_keeps_its_vectors_and_runs_here() -> None:
    """Generators for AVX-512 are tested on CPUs that lack it: 16 lanes, lowered."""
    row = portable(AVX512)
    assert runnable(row)
    assert (row.name, row.lanes, row.registers) == ("avx512", 16, 32)
    assert row.is_portable != runnable(AVX512)


def test_a_row_that_runs_here_is_its_own_portable_form() -> None:
    """Natively wherever possible."""
    assert portable(host_isa()) == host_isa()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("sse sse2", X86_64),
        ("avx2 fma f16c bmi1 bmi2 movbe", X86_64),
        ("avx2 fma f16c bmi1 bmi2 movbe abm", AVX2),
        ("avx2 fma f16c bmi1 bmi2 movbe abm avx512f", AVX2),
        ("avx2 fma f16c bmi1 bmi2 movbe abm avx512f avx512bw avx512cd avx512dq avx512vl", AVX512),
        (
            "avx2 fma f16c bmi1 bmi2 movbe abm avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni",
            table.AVX512_VNNI,
        ),
        (
            "avx2 fma f16c bmi1 bmi2 movbe abm avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni "
            "avx512vbmi",
            table.AVX512_VBMI,
        ),
    ],
)
def test_a_row_needs_every_one_of_its_features(
    flags: str, expected: table.Isa, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """A CPU that has AVX2 but not FMA would die of an illegal instruction."""

    class Cpuinfo:
        @staticmethod
        def read_text() -> str:
            return f"processor: 0\nflags\t\t: {flags}\n"

    monkeypatch.setattr(table, "CPUINFO", Cpuinfo)
    table.host_flags.cache_clear()
    try:
        assert host_isa() == expected
    finally:
        monkeypatch.undo()
        table.host_flags.cache_clear()


def test_llvm_and_the_kernel_agree_on_this_cpu() -> None:
    """Where /proc/cpuinfo is missing LLVM answers; the two must choose the same row."""
    needed = table.needed_flags(table.AVX512_VBMI)
    assert table.flags_by_llvm() & needed == table.host_flags() & needed


def test_another_architecture_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """On ARM the first use must say what is missing, not crash in LLVM."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(KernelError, match="aarch64"):
        host_isa()
