"""Float32 products in tiles: each number as the sum of two bfloat16 numbers, within about 3e-6 of float32's.

`split_rows` rounds rows of A, once for all products of them, `gemm_split` multiplies them with any slices:
planes, outliers and full fidelity.
"""

from pliant.kernels.coded.activate import write_activations
from pliant.kernels.coded.block_bf16 import write_fill_bf16, write_fill_lower
from pliant.kernels.coded.round_bf16 import RoundBf16Args
from pliant.kernels.coded.tile import COLUMNS
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.product.bf16_pairs import rest_of, round_one, round_row
from pliant.kernels.product.matmul_pack import write_copy_columns
from pliant.kernels.tiles.coded_bf16 import SPLIT_BYTES, write_split_units, write_tiled_bf16
from pliant.kernels.tiles.tile_rows import PANELS, config_space


def units_split(n_columns: int) -> int:
    """Work units of a product: the widest panels; the last may have fewer columns."""
    return -(-n_columns // (COLUMNS * PANELS[-1]))


def scratch_bytes_split() -> int:
    """Scratch a thread needs, 64-byte aligned."""
    return SPLIT_BYTES


def split_rows_ir(isa: Isa, name: str = "split_rows") -> str:
    """The kernel with RoundBf16Args whose q is bfloat16 [n_rows, 2, depth]; a unit is a row.

    The first half of a row is the nearest bfloat16, the second the nearest of what that leaves.
    """
    assert isa.has_tiles, isa.name
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        a, lda, n, q, depth = f.fields(args, RoundBf16Args, "a", "lda", "n_columns", "q", "depth")
        whole = n & -(2 * f.lanes)
        with f.each(lo, hi) as row:
            source = f.at(a, row * lda)
            upper = f.at(q, row * depth * 2, "i16")
            lower = f.at(upper, depth, "i16")
            with f.each(0, whole, 2 * f.lanes) as column:
                two = [f.load(f.at(source, column + i), f.vec) for i in (0, f.lanes)]
                for to in (upper, lower):
                    f.store(round_row(f, *two), f.at(to, column, "i16"), 2)
                    two = [rest_of(f, x) for x in two]
            with f.each(whole, n) as column:
                x = f.load(f.at(source, column))
                for to in (upper, lower):
                    f.store(round_one(f, x), f.at(to, column, "i16"))
                    x = rest_of(f, x)
            with f.each(n, depth) as column:
                for to in (upper, lower):
                    f.store(f.const(0, "i16"), f.at(to, column, "i16"))
    return module.text()


def gemm_split_ir(isa: Isa, name: str = "gemm_split") -> str:
    """The kernel with GemmArgs: `a` is what `split_rows` wrote, `lda` its words a row, both parts counted.

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
