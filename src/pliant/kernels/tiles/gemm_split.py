"""Float32 products in tiles: each number as the sum of two bfloat16 numbers, within about 3e-6 of float32's.

`split_rows` rounds rows of A, once for all products of them; `gemm_split` multiplies them with all kinds of
slices: planes, outliers and full fidelity.
"""

import ctypes

from pliant.kernels.coded.activate import write_activations
from pliant.kernels.coded.block_bf16 import write_fill_bf16, write_fill_lower
from pliant.kernels.coded.round_bf16 import RoundBf16Args, RowPlace, row_place
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.product.bf16_pairs import round_one, round_row, split_floats
from pliant.kernels.product.matmul_pack import write_copy_columns
from pliant.kernels.tiles.coded_bf16 import (
    MOST_UNITS_AT_ONCE,
    SPLIT_BYTES,
    write_split_units,
    write_tiled_bf16,
)
from pliant.kernels.tiles.tile_rows import PANELS, config_space

_LARGE_BYTES = 1 << 20
"""Both parts of A that are too large to stay in L2 beside B and C."""


class SplitRowsArgs(ctypes.Structure):
    """As RoundBf16Args; q has the nearest bfloat16 of each number of a row, and the nearest of the
    remainders.

    In elements, rows of q are `ldq` apart, and the second part of a row is `part` after the first; in tiles,
    it is in the tile after.
    """

    _fields_ = (*RoundBf16Args._fields_, ("ldq", ctypes.c_int64), ("part", ctypes.c_int64))


def units_split(n_columns: int) -> int:
    """Work units of a product: the widest panels; the last may have fewer columns."""
    return -(-n_columns // (COLUMNS * PANELS[-1]))


def grain_split(n_units: int, n_rows: int, depth: int, n_threads: int) -> int:
    """Units that a thread takes at a time: several, to share each block of A, if A does not stay in L2."""
    is_large = 4 * n_rows * depth > _LARGE_BYTES
    return max(1, min(MOST_UNITS_AT_ONCE, n_units // (2 * n_threads))) if is_large else 1


def scratch_bytes_split() -> int:
    """Scratch a thread needs, 64-byte aligned."""
    return SPLIT_BYTES


def split_rows_ir(isa: Isa, name: str = "split_rows") -> str:
    """The kernel with SplitRowsArgs; a unit is a row."""
    assert isa.has_tiles, isa.name
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        names = ("a", "lda", "n_columns", "q", "depth", "n_rows", "ldq", "part")
        a, lda, n, q, depth, n_rows, ldq, part = f.fields(args, SplitRowsArgs, *names)
        with f.each(lo, hi) as row:
            upper = row_place(f, q, row, ldq, n_rows, 2)
            split_row(f, f.at(a, row * lda), n, depth, upper, upper.part(f, part))
    return module.text()


def split_row(f: Function, x: Value, n: Value, depth: Value, upper: RowPlace, lower: RowPlace) -> None:
    """Both parts of n floats, each padded to `depth` bfloat16 with zeros."""
    both, whole = 2 * f.lanes, n & -(2 * f.lanes)

    def store(column: Value) -> None:
        low, high = (split_floats(f, f.load(f.at(x, column + i), f.vec)) for i in (0, f.lanes))
        for to, *two in zip((upper, lower), low, high, strict=True):
            f.store(round_row(f, *two), to.column(f, column), 2)

    with f.each(0, whole, both) as column:
        store(column)
    are_together = (n >= both) & upper.is_row(f)
    with f.when(are_together & whole.compare("ne", n)):
        store(n - both)  # repeats some earlier columns
    with f.each(f.select(are_together, n, whole), n) as column:
        for to, part in zip((upper, lower), split_floats(f, f.load(f.at(x, column))), strict=True):
            f.store(round_one(f, part), to.column(f, column))
    with f.each(n, depth) as column:
        for to in (upper, lower):
            f.store(f.const(0, "i16"), to.column(f, column))


def gemm_split_ir(isa: Isa, name: str = "gemm_split") -> str:
    """The kernel with GemmArgs: `a` is what `split_rows` stores in tiles, and `lda` is not read.

    Slices have tables of `decode_table_bf16`. C may end within a column group.
    """
    assert isa.has_tiles, isa.name
    module = Module(isa)
    write_fill_bf16(module)
    write_fill_lower(module)
    write_activations(module)
    write_copy_columns(module)
    write_tiled_bf16(module, parts=2)
    with module.kernel(name) as f:
        write_split_units(f, config_space(f))
    return module.text()
