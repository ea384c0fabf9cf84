"""Lower float32 products with a constant matrix for tiles: each number as the sum of two bfloat16 numbers."""

from collections.abc import Mapping
from math import prod

import numpy as np

from pliant.compiler.executable.call import FieldValue, LoweredNode, PackedConstant, Ref, Target
from pliant.compiler.rewrite.coder import is_large
from pliant.compiler.rewrite.view import View, read_view
from pliant.compiler.rules.product.bf16_calls import product_call, round_call
from pliant.compiler.rules.product.plane_args import pack_table_bf16
from pliant.compiler.rules.product.product import Product
from pliant.compiler.rules.tile_cycles import COLUMNS, ROWS, SPLIT, TERMS, cycles_in_tiles, cycles_in_vectors
from pliant.kernels.coded.gemm_args import ACTIVATIONS, BF16_PAIRS
from pliant.kernels.coded.gemm_bf16 import pack_pairs, padded_depth, pairs_shape
from pliant.kernels.tiles.matmul_split import BLOCK_DEPTH, PANEL
from pliant.kernels.tiles.tile_rows import MOST_ROWS_IN_VECTORS


def takes_split(p: Product, constants: Mapping[str, np.ndarray], target: Target) -> bool:
    """Whether tiles multiply: more than a few rows, in one batch, with a large constant matrix."""
    rows, depth = p.a.shape[-2:]
    is_one = prod(p.a.shape[:-2]) == 1 and p.a.strides[-1] == 1
    is_known = p.coded is not None or (p.scaled is None and p.b.tensor in constants)
    is_worth = rows > MOST_ROWS_IN_VECTORS["bf16"] and is_large(depth, p.out.shape[-1])
    return target.isa.has_tiles and is_one and is_known and is_worth and p.activation in ACTIVATIONS


def splits_both(p: Product, target: Target) -> bool:
    """Whether tiles multiply two matrices that are split on the fly, for each batch index."""
    rows, depth = p.a.shape[-2:]
    is_plain = p.coded is None and p.scaled is None and not p.has_extent and p.activation in ACTIVATIONS
    return target.isa.has_tiles and is_plain and split_is_faster(rows, p.out.shape[-1], depth)


def split_is_faster(rows: int, columns: int, depth: int) -> bool:
    """Whether tiles are faster than vectors despite splitting B once, and A for each dozen column groups.

    They are faster from about 10 rows, columns and terms on: the fewer there are, the larger is the share of
    time that splitting takes. Both pack B first.
    """
    if 0 in (rows, columns, depth):
        return False
    row_tiles, column_tiles, steps = (
        -(-n // m) for n, m in ((rows, ROWS), (columns, COLUMNS), (depth, TERMS))
    )
    splits = SPLIT * steps * (row_tiles * -(-column_tiles // 12) + column_tiles * -(-rows // 144))
    blocks, panels = -(-depth // BLOCK_DEPTH), -(-column_tiles // PANEL)
    in_tiles = splits + cycles_in_tiles(row_tiles, columns, steps, blocks, panels, 2)
    return in_tiles < cycles_in_vectors(rows, columns, depth)


def lower_split(p: Product, constants: Mapping[str, np.ndarray], target: Target) -> LoweredNode:
    """Rows of A are split once for all threads; B's two parts are packed once, or decoded on the fly."""
    rows, columns = p.out.shape[-2:]
    parts = f"{p.out.tensor}|split"
    if p.coded is None:
        depth = padded_depth(p.a.shape[-1])
        of_b, packed = _pairs(p, constants[p.b.tensor])
        tensors = tuple(packed)
    else:
        depth = p.coded.depth
        table, made = pack_table_bf16(p.coded, constants[p.coded.tensors[1]], target.isa)
        of_b, packed, tensors = p.coded.fields(table), {table: made}, (*p.coded.reads, table)
    rounding = round_call(
        p.a.ref(4), (rows, p.a.shape[-1]), p.a.strides[-2], parts, depth, target, p.label,
        has_extent=p.has_extent, is_split=True,
    )  # fmt: skip
    residual = p.residual
    fields: dict[str, FieldValue] = {
        **{"a": Ref(parts), "c": p.out.ref(4), "ldc": p.out.strides[-2]},
        **{"n_rows": rows, "n_columns": columns, "bias": Ref(p.bias) if p.bias else None},
        "residual": residual.ref(4) if residual else None,
        "ldr": residual.strides[-2] if residual else 0,
        "activation": ACTIVATIONS[p.activation],
    }
    reads = (parts, *tensors, p.bias or "", residual.tensor if residual else "")
    call = product_call(
        fields | dict(of_b), (rows, columns), depth, reads, p.out.tensor, target, p.label,
        has_extent=p.has_extent, is_split=True,
    )  # fmt: skip
    return LoweredNode((rounding, call), temporaries={parts: 4 * rows * depth}, packed=packed)


def _pairs(p: Product, array: np.ndarray) -> tuple[dict[str, FieldValue], dict[str, PackedConstant]]:
    """Pairs of B rounded, then pairs of the remainders."""
    b = View(p.b.tensor, p.b.offset, p.b.shape[-2:], p.b.strides[-2:])
    shape = pairs_shape(*b.shape)
    size, name = 2 * prod(shape), f"{b.tensor}|split|{','.join(map(str, (*b.attribute, p.alpha)))}"

    def fill(memory: np.ndarray) -> None:
        upper, lower = memory.view(np.uint16).reshape(2, *shape)
        pack_pairs(read_view(array, b, p.alpha), upper, lower)

    of_b: dict[str, FieldValue] = {
        **{"segment_rows": 2 * shape[1], "n_segments": 1, "column_groups_per_slice": shape[0]},
        **{"own.bits": BF16_PAIRS, "own.full": Ref(name), "own.table": Ref(name, size)},
    }
    return of_b, {name: PackedConstant(2 * size, fill, b.tensor)}
