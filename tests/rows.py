"""The instruction sets that kernels are tested for: those of this machine's architecture.

What this CPU lacks runs through its portable lowering. Other architectures' rows are tested under emulation
(`scripts/arm`) and in tests/compiler/test_neon.py.
"""

from dataclasses import replace

from pliant import system
from pliant.kernels.emit.isa import (
    AVX2,
    AVX2_VNNI,
    AVX512,
    AVX512_BF16,
    AVX512_VBMI,
    AVX512_VNNI,
    NEON,
    NEON_DOT,
    NEON_I8MM,
    X86_64,
    Isa,
    portable,
    runnable,
)


def _here(*rows: Isa) -> list[Isa]:
    return [portable(row) for row in rows if row.architecture == system.machine()]


ROWS = _here(AVX512, AVX2, X86_64, NEON)
_EMULATED = replace(AVX512_VBMI, is_portable=True)
INTEGER_ROWS = [
    *([_EMULATED] if runnable(AVX512_VBMI) else []),
    *_here(AVX512_VBMI, AVX512_VNNI, AVX512, AVX2_VNNI, AVX2, X86_64, NEON_I8MM, NEON_DOT, NEON),
]
"""Also those whose integer products differ, and what a CPU without VBMI tests in its place."""
CODED_ROWS = [
    *([replace(AVX512_BF16, is_portable=True)] if runnable(AVX512_BF16) else []),
    *_here(AVX512_BF16, AVX512_VBMI, AVX512, AVX2, X86_64, NEON),
]
"""Those that decode weights to floats in their own ways."""


def integer_name(isa: Isa) -> str:
    """A row's name where its integer products matter."""
    return f"{isa.name}{isa.features}{' emulated' if isa.is_portable else ''}"
