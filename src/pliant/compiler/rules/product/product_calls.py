"""Calls that multiply matrices seen through views."""

import ctypes
from math import prod

import numpy as np

from pliant.compiler.executable.call import (
    Call,
    FieldValue,
    Kernel,
    LoweredNode,
    PackedConstant,
    Ref,
    RowExtent,
    Target,
)
from pliant.compiler.rewrite.view import View, merge_dims
from pliant.compiler.rules.product.plane_args import pack_table
from pliant.compiler.rules.product.product import Product, with_most_rows
from pliant.compiler.rules.product.split_product import lower_split, splits_both, takes_split
from pliant.errors import GraphError
from pliant.kernels.coded.gemm_args import ACTIVATIONS
from pliant.kernels.coded.tile import tiling
from pliant.kernels.product import contract, matmul
from pliant.kernels.product.contract import MAX_OPERANDS, OUT_DIMS, SUM_DIMS, ContractArgs
from pliant.kernels.product.matmul_args import (
    COLUMNS,
    MAX_BATCH_DIMS,
    MatmulArgs,
    MatmulCodedArgs,
    MatmulScaledArgs,
    blocking,
)
from pliant.kernels.product.matmul_pack import pack_panels, packed_bytes
from pliant.kernels.tiles import matmul_split
from pliant.kernels.tiles.matmul_split import MatmulSplitArgs


def lower_product(p: Product, constants: dict[str, np.ndarray], target: Target) -> LoweredNode:
    """One call, or two if tiles multiply with a constant `b`; a constant `b` is packed once."""
    p = with_most_rows(p)
    if takes_split(p, constants, target):
        return lower_split(p, constants, target)
    is_split = splits_both(p, target)
    *batch, n_rows, depth = p.a.shape
    n_columns = p.out.shape[-1]
    packed: dict[str, PackedConstant] = {}
    if p.coded is not None:
        b_ref, b_batch = None, p.b.strides[:-2]
    elif p.scaled is not None:
        packed = dict(p.scaled.packed)
        b_ref, b_batch = Ref(p.scaled.codes), p.b.strides[:-2]
    elif p.b.tensor in constants and 0 not in p.b.shape:
        name, packed = _pack(p, constants[p.b.tensor])
        b_ref, b_batch = Ref(name), _panel_strides(p.b)
    else:
        b_ref, b_batch = p.b.ref(4), p.b.strides[:-2]
    residual_batch = p.residual.strides[:-2] if p.residual else (0,) * len(batch)
    extents, strides = merge_dims(batch, [p.a.strides[:-2], b_batch, p.out.strides[:-2], residual_batch])
    if len(extents) > MAX_BATCH_DIMS:
        raise GraphError(
            f"node {p.label!r} has {len(extents)} separate batch dimensions; kernels walk {MAX_BATCH_DIMS}."
        )
    n_batch = prod(extents)
    assert not p.has_extent or n_batch == 1, p.label
    wide = matmul_split.PANEL if is_split else tiling(target.isa).panel
    blocks = blocking(n_batch, n_rows, n_columns, target.n_threads, wide)
    a_row, a_column = p.a.strides[-2:]
    fields: dict[str, FieldValue] = {
        "a": p.a.ref(4),
        "b": b_ref,
        "c": p.out.ref(4),
        "bias": Ref(p.bias) if p.bias else None,
        "residual": p.residual.ref(4) if p.residual else None,
        "n_rows": n_rows,
        "n_columns": n_columns,
        "depth": depth,
        "a_row": a_row,
        "a_column": 1 if depth == 1 else a_column,
        "b_row": p.b.strides[-2],
        "b_column": p.b.strides[-1],
        "c_row": p.out.strides[-2],
        "residual_row": p.residual.strides[-2] if p.residual else 0,
        "is_packed": int(bool(packed)),
        "row_block": blocks.row_block,
        "panel": blocks.panel,
        "extents": _fill_batch(extents, 1),
        **{
            name: _fill_batch(s, 0)
            for name, s in zip(("a_batch", "b_batch", "c_batch", "residual_batch"), strides, strict=True)
        },
        "alpha": 1.0 if packed else p.alpha,
    }
    reads = [p.a.tensor, b_ref and b_ref.tensor, p.bias, p.residual.tensor if p.residual else None]
    activation, bits = p.activation, None if p.coded is None else p.coded.bits
    element = None if p.scaled is None else p.scaled.element
    layout: type[ctypes.Structure] = MatmulArgs
    if p.coded is not None:
        table, made = pack_table(p.coded, constants[p.coded.tensors[1]], target.isa)
        packed = {table: made}
        fields = {f"product.{name}": value for name, value in fields.items()}
        fields |= p.coded.fields(table, "coded.")
        reads += [*p.coded.reads, table]
        layout = MatmulCodedArgs
    if p.scaled is not None:
        fields = {f"product.{name}": value for name, value in fields.items()}
        fields |= {"scales": Ref(p.scaled.scales), "rows_per_scale": p.scaled.rows_per_scale}
        reads.append(p.scaled.scales)
        layout = MatmulScaledArgs
    kernel = Kernel(
        matmul.matmul_name(activation, bits, element),
        lambda isa: matmul.matmul_ir(isa, activation, bits, element),
    )
    scratch_bytes = matmul.scratch_bytes(blocks.row_block, target.isa)
    if is_split:
        fields = {f"product.{name}": value for name, value in fields.items()}
        fields["activation"] = ACTIVATIONS[activation]
        layout, kernel = MatmulSplitArgs, Kernel("matmul_split", matmul_split.matmul_split_ir)
        scratch_bytes = matmul_split.scratch_bytes_matmul_split(blocks)
    call = Call(
        kernel=kernel,
        layout=layout,
        fields=fields,
        n_units=blocks.units(n_batch, n_rows, n_columns),
        reads=tuple(dict.fromkeys(x for x in reads if x)),
        writes=(p.out.tensor,),
        scratch_bytes=scratch_bytes,
        label=p.label,
        extent=RowExtent(("n_rows",), lambda lengths: (blocks.units(1, sum(lengths), n_columns), 1))
        if p.has_extent
        else None,
    )
    return LoweredNode(calls=(call,), packed=packed)


def lower_contraction(
    out: View,
    operands: tuple[View, ...],
    dtype: str,
    *,
    added: View | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    label: str = "",
) -> LoweredNode:
    """out = alpha * sum over the operands' last dimensions of their product + beta * added.

    Operands have `out`'s dimensions, then the summed ones; `out` is contiguous.
    """
    shape, summed = out.shape, operands[0].shape[len(out.shape) :]
    assert len(shape) <= OUT_DIMS, label
    assert len(summed) <= SUM_DIMS, label
    assert len(operands) <= MAX_OPERANDS, label
    itemsize = np.dtype(_numpy(dtype)).itemsize
    strides: list[int] = []
    for x in operands:
        strides += _pad_front(x.strides[: len(shape)], OUT_DIMS, 0) + _pad_front(
            x.strides[len(shape) :], SUM_DIMS, 0
        )
    strides += [0] * (MAX_OPERANDS * (OUT_DIMS + SUM_DIMS) - len(strides))
    refs = [x.ref(itemsize) for x in operands]
    n = len(operands)
    along = [x.strides[len(shape) - 1] for x in (*operands, added or out)] if shape else []
    is_vector = bool(along) and set(along) <= {0, 1}
    pattern = "".join("sc"[step] for step in along) if is_vector else ""
    call = Call(
        kernel=Kernel(
            contract.contract_name(dtype, n, pattern),
            lambda isa: contract.contract_ir(isa, dtype, n, pattern),
        ),
        layout=ContractArgs,
        fields={
            "out": out.ref(itemsize),
            "c": added.ref(itemsize) if added else None,
            "operands": (*refs, *(None,) * (MAX_OPERANDS - n)),
            "extents": tuple(_pad_front(shape, OUT_DIMS, 1) + _pad_front(summed, SUM_DIMS, 1)),
            "strides": tuple(strides),
            "c_strides": tuple(_pad_front(added.strides if added else (), OUT_DIMS, 0)),
            "alpha": alpha,
            "beta": beta,
        },
        n_units=prod(shape[:-1]) if 0 not in shape else 0,
        reads=tuple(dict.fromkeys(x.tensor for x in (*operands, *((added,) if added else ())))),
        writes=(out.tensor,),
        label=label,
    )
    return LoweredNode(calls=(call,))


def _pack(p: Product, array: np.ndarray) -> tuple[str, dict[str, PackedConstant]]:
    """B in panels, consecutive for each batch index that differs."""
    shape = tuple(1 if s == 0 else n for n, s in zip(p.b.shape[:-2], p.b.strides[:-2], strict=True))
    depth, n_columns = p.b.shape[-2:]
    name = f"{p.b.tensor}|panels|{','.join(map(str, (*p.b.attribute, p.alpha)))}"
    each = packed_bytes(depth, n_columns)
    n = prod(shape)
    view, alpha = p.b, p.alpha

    def fill(memory: np.ndarray) -> None:
        out = memory.view(np.float32).reshape(n, -1, depth, COLUMNS)
        flat = np.ascontiguousarray(array).reshape(-1)[view.offset :]
        matrices = np.lib.stride_tricks.as_strided(
            flat, (*shape, depth, n_columns), [4 * s for s in view.strides], writeable=False
        ).reshape(n, depth, n_columns)
        for matrix, panels in zip(matrices, out, strict=True):
            pack_panels(matrix, panels, alpha)

    return name, {name: PackedConstant(n * each, fill, p.b.tensor)}


def _panel_strides(b: View) -> tuple[int, ...]:
    """Batch strides of the panels, in floats."""
    strides: list[int] = []
    step = packed_bytes(*b.shape[-2:]) // 4
    for n, s in zip(reversed(b.shape[:-2]), reversed(b.strides[:-2]), strict=True):
        strides.insert(0, 0 if s == 0 else step)
        step *= 1 if s == 0 else n
    return tuple(strides)


def _fill_batch(numbers: list[int], with_: int) -> tuple[int, ...]:
    return (*(with_,) * (MAX_BATCH_DIMS - len(numbers)), *numbers)


def _pad_front(numbers: tuple[int, ...] | list[int], length: int, with_: int) -> list[int]:
    return [with_] * (length - len(numbers)) + list(numbers)


def _numpy(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype
