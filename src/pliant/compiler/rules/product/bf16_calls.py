"""Calls of the kernels that round rows to bfloat16 and multiply them."""

from collections.abc import Mapping, Sequence

from pliant.compiler.executable.call import Call, FieldValue, Kernel, Ref, RowExtent, Target
from pliant.kernels.coded.gemm_args import GemmArgs
from pliant.kernels.coded.gemm_bf16 import gemm_bf16_ir, scratch_bytes_bf16, units_bf16
from pliant.kernels.coded.round_bf16 import RoundBf16Args, round_bf16_ir, row_grain_bf16
from pliant.kernels.tiles.gemm_split import (
    SplitRowsArgs,
    gemm_split_ir,
    grain_split,
    scratch_bytes_split,
    split_rows_ir,
    units_split,
)


def round_call(
    a: Ref,
    shape: tuple[int, int],
    lda: int,
    q: str,
    depth: int,
    target: Target,
    label: str,
    *,
    has_extent: bool = False,
    is_split: bool = False,
    part: int | None = None,
    in_rows: bool = False,
) -> Call:
    """Rows of `a`, float32 of `shape` and stride `lda`, to `q`, bfloat16 [rows, depth].

    With `is_split`, for CPUs with tiles, q is [rows, 2, depth]: two numbers for each element. With `part`,
    every second number is that many elements after the first. Rows for `product_call` are stored in tiles;
    `in_rows` keeps them in rows.
    """
    (rows, columns), size = shape, row_grain_bf16(depth)
    in_tiles = target.isa.has_tiles and not in_rows
    fields: dict[str, FieldValue] = {"a": a, "lda": lda, "n_columns": columns, "q": Ref(q), "depth": depth}
    fields["n_rows"] = rows if in_tiles else 0
    if is_split:
        fields |= {"ldq": 2 * depth, "part": depth} if part is None else {"ldq": depth, "part": part}
    return Call(
        kernel=Kernel("split_rows", split_rows_ir) if is_split else Kernel("round_bf16", round_bf16_ir),
        layout=SplitRowsArgs if is_split else RoundBf16Args,
        fields=fields,
        n_units=rows if columns else 0,
        reads=(a.tensor,),
        writes=(q,),
        grain=size,
        label=label,
        is_shared=is_split,
        extent=RowExtent(("n_rows",) if in_tiles else (), lambda lengths: (sum(lengths), size))
        if has_extent
        else None,
    )


def product_call(
    fields: Mapping[str, FieldValue],
    shape: tuple[int, int],
    depth: int,
    reads: Sequence[str],
    out: str,
    target: Target,
    label: str,
    *,
    has_extent: bool = False,
    is_split: bool = False,
) -> Call:
    """`out`, float32 [rows, columns] as `shape` says, from the rows of `round_call`; `fields` of GemmArgs."""
    rows, columns = shape
    n_units = units_split(columns) if is_split else units_bf16(columns, target.isa)
    size = grain_split(n_units, rows, depth, target.n_threads) if is_split else 1
    return Call(
        kernel=Kernel("gemm_split", gemm_split_ir) if is_split else Kernel("gemm_bf16", gemm_bf16_ir),
        layout=GemmArgs,
        fields={**fields, "lda": depth // 2},
        n_units=n_units if rows else 0,
        grain=size,
        reads=tuple(x for x in reads if x),
        writes=(out,),
        scratch_bytes=scratch_bytes_split() if is_split else scratch_bytes_bf16(depth, target.isa),
        label=label,
        extent=RowExtent(("n_rows",), lambda lengths: (n_units, size)) if has_extent else None,
    )
