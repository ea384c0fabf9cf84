"""Calls of the kernels that round rows to bfloat16 and multiply them."""

from collections.abc import Mapping, Sequence

from pliant.compiler.executable.call import Call, FieldValue, Kernel, Ref, RowExtent, Target
from pliant.kernels.coded.gemm_args import GemmArgs
from pliant.kernels.coded.gemm_bf16 import gemm_bf16_ir, scratch_bytes_bf16, units_bf16
from pliant.kernels.coded.round_bf16 import RoundBf16Args, round_bf16_ir, row_grain_bf16
from pliant.kernels.tiles.gemm_split import (
    SplitRowsArgs,
    gemm_split_ir,
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
) -> Call:
    """Rows of `a`, float32 of `shape` and stride `lda`, to `q`, bfloat16 [rows, depth].

    With `is_split`, for CPUs with tiles, q is [rows, 2, depth]: two numbers for each element. With `part`,
    every second number is that many elements after the first.
    """
    (rows, columns), size = shape, row_grain_bf16(depth)
    fields: dict[str, FieldValue] = {"a": a, "lda": lda, "n_columns": columns, "q": Ref(q), "depth": depth}
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
        extent=RowExtent((), lambda lengths: (sum(lengths), size)) if has_extent else None,
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
    """`out`, float32 [rows, columns] as `shape` says, from rows of `depth` bfloat16; `fields` of GemmArgs."""
    rows, columns = shape
    n_units = units_split(columns) if is_split else units_bf16(columns, target.isa)
    return Call(
        kernel=Kernel("gemm_split", gemm_split_ir) if is_split else Kernel("gemm_bf16", gemm_bf16_ir),
        layout=GemmArgs,
        fields={**fields, "lda": depth if is_split else depth // 2},
        n_units=n_units if rows else 0,
        reads=tuple(x for x in reads if x),
        writes=(out,),
        scratch_bytes=scratch_bytes_split() if is_split else scratch_bytes_bf16(depth, target.isa),
        label=label,
        extent=RowExtent(("n_rows",), lambda lengths: (n_units, 1)) if has_extent else None,
    )
