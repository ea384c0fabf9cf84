"""The instruction sets that kernels are tested for: those of this machine's architecture.

What this CPU lacks runs through its portable lowering. Other architectures' rows are tested under emulation
(`scripts/arm`) and in tests/compiler/test_neon.py.
"""

from pliant import system
from pliant.kernels.emit.isa import (
    AVX2,
    AVX512,
    AVX512_VNNI,
    NEON,
    NEON_DOT,
    NEON_I8MM,
    X86_64,
    Isa,
    portable,
)


def _here(*rows: Isa) -> list[Isa]:
    return [portable(row) for row in rows if row.architecture == system.machine()]


ROWS = _here(AVX512, AVX2, X86_64, NEON)
INTEGER_ROWS = _here(AVX512_VNNI, AVX512, AVX2, X86_64, NEON_I8MM, NEON_DOT, NEON)
"""Also those whose integer products differ."""


def integer_name(isa: Isa) -> str:
    """A row's name where its integer products matter."""
    return f"{isa.name}{isa.features}"
