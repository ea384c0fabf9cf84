"""Round rows of float32 to bfloat16, in the layout of the bfloat16 GEMM: pairs along K, rows separate.

Tiles are loaded fastest from 1024 consecutive bytes. So for CPUs with tiles, rows that fill pairs of tiles
can be stored as [rows / 16][depth / 32][16][32].
"""

import ctypes
from dataclasses import dataclass

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.product.bf16_pairs import require_bf16, round_one, round_row


class RoundBf16Args(ctypes.Structure):
    """Rows of float32 [n_rows, n_columns], stride lda, to bfloat16 `q` [n_rows, depth].

    Values after n_columns are 0. With `n_rows`, as many rows as fill pairs of tiles are stored in tiles; the
    depth must be a multiple of 32.
    """

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("lda", ctypes.c_int64),
        ("n_columns", ctypes.c_int64),
        ("q", ctypes.c_void_p),
        ("depth", ctypes.c_int64),
        ("n_rows", ctypes.c_int64),
    )


_TILED_ROWS, _HIGH, _WIDE = 32, 16, 32
"""Rows of a pair of tiles; rows of a tile, and numbers in them."""


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a row of bfloat16 is stored: side by side, or 32 numbers at a time, `step` numbers apart."""

    at: Value
    step: Value | None = None

    def column(self, f: Function, column: Value) -> Value:
        """The address of a number; those up to the next multiple of 32 follow."""
        if self.step is None:
            return f.at(self.at, column, "i16")
        return f.at(self.at, (column >> 5) * self.step + (column & (_WIDE - 1)), "i16")

    def is_row(self, f: Function) -> Value:
        """Whether all numbers are side by side (i1)."""
        return f.const(1, "i1") if self.step is None else self.step.compare("eq", _WIDE)

    def part(self, f: Function, offset: Value) -> "RowPlace":
        """The same row of the second part: `offset` numbers after the first, or in the next tile."""
        beside = f.select(self.is_row(f), offset, f.const(_HIGH * _WIDE))
        return RowPlace(f.at(self.at, beside, "i16"), self.step)


def row_place(f: Function, q: Value, row: Value, ldq: Value, n_rows: Value, parts: int = 1) -> RowPlace:
    """The place of a row of `q`, whose rows are `ldq` numbers, `parts` of each element; see RoundBf16Args."""
    if not f.isa.has_tiles:
        return RowPlace(f.at(q, row * ldq, "i16"))
    is_tiled = row < (n_rows & -_TILED_ROWS)
    in_tile = (row & -_HIGH) * ldq + (row & (_HIGH - 1)) * _WIDE
    at = f.at(q, f.select(is_tiled, in_tile, row * ldq), "i16")
    return RowPlace(at, f.select(is_tiled, f.const(parts * _HIGH * _WIDE), f.const(_WIDE)))


def row_grain_bf16(depth: int) -> int:
    """Rows that a thread rounds at a time."""
    return max(1, 8192 // max(depth, 1))


def round_bf16_ir(isa: Isa, name: str = "round_bf16") -> str:
    """The kernel with RoundBf16Args; a unit is a row."""
    require_bf16(isa)
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        names = ("a", "lda", "n_columns", "q", "depth", "n_rows")
        a, lda, n, q, depth, n_rows = f.fields(args, RoundBf16Args, *names)
        whole = n & -(2 * f.lanes)
        with f.each(lo, hi) as row:
            source, to = f.at(a, row * lda), row_place(f, q, row, depth, n_rows)
            with f.each(0, whole, 2 * f.lanes) as column:
                low, high = (f.load(f.at(source, column + i), f.vec) for i in (0, f.lanes))
                f.store(round_row(f, low, high), to.column(f, column), 2)
            with f.each(whole, n) as column:
                f.store(round_one(f, f.load(f.at(source, column))), to.column(f, column))
            with f.each(n, depth) as column:
                f.store(f.const(0, "i16"), to.column(f, column))
    return module.text()
