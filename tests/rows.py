"""The instruction sets that kernels are tested for: those of this machine's architecture.

What this CPU lacks runs through its portable lowering. Other architectures' rows are tested under emulation
(`scripts/arm`) and in tests/compiler/test_neon.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pliant import system
from pliant.kernels.emit.isa import (
    AVX2,
    AVX2_VNNI,
    AVX512,
    AVX512_AMX,
    AVX512_BF16,
    AVX512_VBMI,
    AVX512_VNNI,
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
from pliant.kernels.runtime.jit import Library
from pliant.models.encoder.encoder_graph import ComputeDtype
from tests.kernels.tiles.amx_trap import missing


def _here(*rows: Isa) -> list[Isa]:
    return [to_portable(row) for row in rows if row.architecture == system.machine()]


ROWS = _here(AVX512, AVX2, X86_64, NEON)
TILE_ROWS = list(dict.fromkeys([*([AVX512_AMX] if missing() is None else []), *_here(AVX512_AMX)]))
"""AMX natively, or else by a handler of its instructions where that works, and through portable lowering."""
_EMULATED = replace(AVX512_VBMI, is_portable=True)
INTEGER_ROWS = [
    *([_EMULATED] if is_runnable(AVX512_VBMI) else []),
    *TILE_ROWS,
    *_here(AVX512_VBMI, AVX512_VNNI, AVX512, AVX2_VNNI, AVX2, X86_64, NEON_I8MM, NEON_DOT, NEON),
]
"""Also those whose integer products differ, and what a CPU without VBMI tests in its place."""
CODED_ROWS = [
    *([replace(AVX512_BF16, is_portable=True)] if is_runnable(AVX512_BF16) else []),
    *_here(AVX512_BF16, AVX512_VBMI, AVX512, AVX2, X86_64, NEON),
]
"""Those that decode weights to floats in their own ways."""

BF16_ROWS = [
    *([replace(AVX512_BF16, is_portable=True)] if is_runnable(AVX512_BF16) else []),
    *_here(AVX512_BF16, NEON_BF16),
    *TILE_ROWS,
]
"""Rows that multiply bfloat16, lowered portably and, where this CPU can, as they are."""

BYTE_ROWS = [AVX2, X86_64, *(to_portable(isa) for isa in (AVX512, AVX512_VNNI, AVX2_VNNI)), *TILE_ROWS]
"""One row for each way to multiply bytes, for tests of operators."""

FORMS: tuple[ComputeDtype, ...] = ("fp32", *(("bf16",) if host_isa().has_bf16 else ()), "int8")
"""What this CPU's own row computes products in."""


def integer_name(isa: Isa) -> str:
    """A row's name where its integer products matter."""
    how = " emulated" if isa.is_portable else ""
    return f"{isa.name}{isa.features}{' tiles' if isa.has_tiles else ''}{how}"


def byte_row_name(isa: Isa) -> str:
    """A row's name by how it multiplies bytes."""
    more = "-amx" if isa.has_tiles else "-vnni" if isa.has_dot else ""
    return f"{isa.name}{more}{'-emulated' if isa.is_portable else ''}"


def isa_fixtures(rows: Sequence[Isa], ids: Callable[[Isa], str] = integer_name) -> tuple[object, object]:
    """The fixtures `isa` and `library` of a module whose tests run on each of `rows`.

    The module needs both: pytest would give a `library` of tests/kernels/conftest.py that another module's
    rows left.
    """

    @pytest.fixture(scope="session", params=rows, ids=ids)
    def isa(request: pytest.FixtureRequest) -> Isa:
        found: Isa = request.param
        return found

    @pytest.fixture(scope="session")
    def library(isa: Isa, library_of: Callable[[Isa], Library]) -> Library:
        return library_of(isa)

    return isa, library
