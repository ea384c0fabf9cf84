"""Lower products of bytes: prepare the rows of A, pack constant weights, and call the kernel."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, PackedConstant, Ref, Target
from pliant.compiler.rewrite.view import View, broadcast_shape, row_major
from pliant.compiler.rules.lower_elementwise import map_calls
from pliant.compiler.rules.move.copy_calls import copy_calls
from pliant.ir.graph import Graph, TensorType
from pliant.kernels.emit.expression import leaf
from pliant.kernels.emit.isa import Isa
from pliant.kernels.product import matmul_integer
from pliant.kernels.product.matmul_args import COLUMNS
from pliant.kernels.product.matmul_integer import (
    IntegerForm,
    MatmulIntegerArgs,
    byte_shift,
    choose_form,
    pack,
)


@dataclass(frozen=True, slots=True)
class IntegerWeights:
    """Constant bytes and their zero point ("" if that is 0), as a matrix of `columns`.

    They are [depth, columns], or a convolution's kernels [columns, channels, taps...], whose channels are
    innermost in the matrix's depth; of a group's kernels, `first` is the first of `columns`.
    """

    tensor: str
    zero: str
    columns: int
    are_kernels: bool = False
    first: int = 0

    def depth(self, graph: Graph) -> int:
        """Rows of the matrix."""
        values = graph.constants[self.tensor]
        return prod(values.shape[1:]) if self.are_kernels else values.size // self.columns

    def matrix(self, graph: Graph) -> np.ndarray:
        """[depth, columns] minus the zero point, as int8, or as int16 if that does not fit."""
        values, zeros = graph.constants[self.tensor], self._zeros(graph)
        if self.are_kernels:
            channels, last = values.shape[1], self.first + self.columns
            values, zeros = values[self.first : last], zeros[self.first : last] if len(zeros) > 1 else zeros
            rows = values.reshape(self.columns, channels, -1).transpose(2, 1, 0).reshape(-1, self.columns)
        else:
            rows = values.reshape(-1, self.columns)
        if rows.dtype == np.int8 and not zeros.any():
            return rows
        less: np.ndarray = rows.astype(np.int16) - zeros
        return less.astype(np.int8) if self.fits_bytes(graph) else less

    def fits_bytes(self, graph: Graph) -> bool:
        """Whether all values minus their zero point fit in signed bytes."""
        values, zeros = graph.constants[self.tensor], self._zeros(graph)
        limits = np.iinfo(values.dtype)
        lowest, highest = limits.min - int(zeros.max()), limits.max - int(zeros.min())
        if lowest >= -128 and highest <= 127:
            return True
        if not values.size:
            return True
        return int(values.min()) - int(zeros.max()) >= -128 and int(values.max()) - int(zeros.min()) <= 127

    def _zeros(self, graph: Graph) -> np.ndarray:
        zeros = graph.constants[self.zero].reshape(-1) if self.zero else np.zeros(1)
        return zeros.astype(np.int16)


@dataclass(frozen=True, slots=True)
class IntegerRows:
    """A: integers in the form of a product. BYTES subtracts the byte `zero` plus `shift`.

    `moved_zero` is the shifted zero point as a byte of A, if there is one.
    """

    tensor: str
    count: int
    zero: str = ""
    is_signed: bool = False
    shift: int = 0
    moved_zero: str = ""


def are_constant(graph: Graph, tensor: str, zero: str) -> bool:
    """Whether weights and their zero point are constants."""
    return tensor in graph.constants and (not zero or zero in graph.constants)


def product_form(graph: Graph, isa: Isa, a_zero: str, weights: IntegerWeights) -> IntegerForm:
    """The form of a product of A and its weights; it is not BYTES if each row of A has its zero point."""
    form = choose_form(isa, weights.fits_bytes(graph))
    if form is IntegerForm.BYTES and a_zero and graph.types[a_zero].size != 1:
        return IntegerForm.WIDENED
    return form


def prepare_rows(
    graph: Graph, isa: Isa, form: IntegerForm, a: tuple[str, str], name: str, label: str
) -> tuple[IntegerRows, LoweredNode]:
    """A [..., depth] with its zero point as rows of whole words, stored in temporaries called `name` if
    necessary.
    """
    rows, made = prepare_values(graph, isa, form, a, name, label)
    depth, long = graph.types[a[0]].shape[-1], form.words(graph.types[a[0]].shape[-1]) * form.packing
    if long == depth:
        return rows, made
    # B is zero in the padding of rows, so the values of A's padding do not matter.
    extents = rows.count, depth
    source = View(rows.tensor, 0, extents, row_major(extents))
    longer = View(f"{name}.rows", 0, extents, (long, 1))
    calls = copy_calls(source, longer, form.a_bytes, label)
    temporaries = {**made.temporaries, longer.tensor: form.a_bytes * rows.count * long}
    return replace(rows, tensor=longer.tensor), LoweredNode((*made.calls, *calls), temporaries=temporaries)


def prepare_values(
    graph: Graph, isa: Isa, form: IntegerForm, a: tuple[str, str], name: str, label: str
) -> tuple[IntegerRows, LoweredNode]:
    """As `prepare_rows`, in A's own shape: int16 minus the zero point, or bytes in the CPU's signedness."""
    tensor, zero = a
    type_ = graph.types[tensor]
    count = prod(type_.shape[:-1])
    if form is not IntegerForm.BYTES:
        less = subtract_zero(graph, a, f"{name}.less", "int16", True, label)
        return IntegerRows(f"{name}.less", count), LoweredNode(
            less, temporaries={f"{name}.less": 2 * type_.size}
        )
    is_signed, shift = type_.dtype == "int8", byte_shift(isa, type_.dtype)
    if not shift:
        return IntegerRows(tensor, count, zero, is_signed, moved_zero=zero), LoweredNode()
    value = (leaf(0, type_.dtype).cast("int32") + shift).cast("int8" if shift < 0 else "uint8")
    calls: tuple[Call, ...] = ()
    temporaries = {}
    for x, y in ((tensor, f"{name}.shifted"), (zero, f"{name}.zero")):
        if x:
            shape = graph.types[x].shape
            calls += map_calls(value, [(x, shape)], (y, shape), label)
            temporaries[y] = prod(shape)
    rows = IntegerRows(f"{name}.shifted", count, zero, is_signed, shift, f"{name}.zero" if zero else "")
    return rows, LoweredNode(calls, temporaries=temporaries)


def subtract_zero(
    graph: Graph, x: tuple[str, str], y: str, dtype: str, by_row: bool, label: str
) -> tuple[Call, ...]:
    """y = x minus its zero point, which is one number, or one per row or column."""
    name, zero = x
    type_ = graph.types[name]
    value, operands = leaf(0, type_.dtype).cast(dtype), [(name, type_.shape)]
    if zero:
        shape = graph.types[zero].shape
        operands.append((zero, row_parameter_shape(shape) if by_row else () if prod(shape) == 1 else shape))
        value = value - leaf(1, graph.types[zero].dtype).cast(dtype)
    return map_calls(value, operands, (y, type_.shape), label)


def row_parameter_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a scale or zero point of A: one number, or one per row."""
    if prod(shape) == 1:
        return ()
    return (*shape, 1) if len(shape) == 1 else shape


def integer_product(
    graph: Graph,
    target: Target,
    form: IntegerForm,
    rows: IntegerRows,
    weights: IntegerWeights,
    y: str,
    label: str,
    floats: Mapping[str, FieldValue] | None = None,
    activation: str | None = None,
    first_row: int = 0,
) -> LoweredNode:
    """y (int32) from `first_row` on = rows @ weights; `floats` are the fields for a float32 result."""
    n_columns = weights.columns
    words, groups = form.words(weights.depth(graph)), -(-n_columns // COLUMNS)
    name = f"{weights.tensor}|{form.value}|{weights.zero}|{weights.are_kernels}"
    if weights.are_kernels and n_columns < len(graph.constants[weights.tensor]):
        name += f"|{weights.first}+{n_columns}"
    packed = {
        name: PackedConstant(
            groups * words * COLUMNS * form.packing * form.b_bytes,
            partial(_fill, graph=graph, weights=weights, form=form, words=words),
            weights.tensor,
        )
    }
    zeroed: dict[str, FieldValue] = {}
    if form is IntegerForm.BYTES:
        sums = f"{name}|sums"
        fill = partial(_fill_sums, graph=graph, weights=weights)
        packed[sums] = PackedConstant(4 * groups * COLUMNS, fill, weights.tensor)
        zeroed = {
            "sums": Ref(sums),
            "a_zero": Ref(rows.zero) if rows.zero else None,
            "zero_is_signed": int(rows.is_signed),
            "zero_shift": rows.shift,
        }
    panel = max(1, min(12, groups // (4 * target.n_threads))) if target.n_threads > 1 else groups
    more = {**(floats or {}), **zeroed}
    is_float = floats is not None
    call = Call(
        Kernel(
            matmul_integer.matmul_integer_name(form, is_float, activation),
            partial(matmul_integer.matmul_integer_ir, form=form, is_float=is_float, activation=activation),
        ),
        MatmulIntegerArgs,
        {
            "a": Ref(rows.tensor),
            "b": Ref(name),
            "c": Ref(y, 4 * first_row * n_columns),
            "n_rows": rows.count,
            "n_columns": n_columns,
            "words": words,
            "panel": panel,
            **more,
        },
        matmul_integer.units(rows.count, n_columns, panel),
        tuple(dict.fromkeys((rows.tensor, name, *(f.tensor for f in more.values() if isinstance(f, Ref))))),
        (y,),
        scratch_bytes=matmul_integer.scratch_bytes(target.isa),
        label=label,
    )
    return LoweredNode((call,), packed=packed)


def _fill(memory: np.ndarray, graph: Graph, weights: IntegerWeights, form: IntegerForm, words: int) -> None:
    kind = np.int8 if form.b_bytes == 1 else np.int16
    pack(weights.matrix(graph), memory.view(kind).reshape(-1, words, COLUMNS, form.packing))


def _fill_sums(memory: np.ndarray, graph: Graph, weights: IntegerWeights) -> None:
    out = memory.view(np.int32)
    out[:] = 0
    out[: weights.columns] = weights.matrix(graph).sum(axis=0, dtype=np.int32)


def batched_product(
    graph: Graph, a: tuple[str, str], b: tuple[str, str], y: str, label: str
) -> tuple[LoweredNode, tuple[View, View], TensorType]:
    """Both operands minus their zero points in int32, and the views whose contraction is their product."""
    calls = subtract_zero(graph, a, f"{y}.a", "int32", True, label)
    calls += subtract_zero(graph, b, f"{y}.b", "int32", False, label)
    left, right = graph.types[a[0]].shape, graph.types[b[0]].shape
    left, right = left if len(left) > 1 else (1, *left), right if len(right) > 1 else (*right, 1)
    batch = broadcast_shape(left[:-2], right[:-2])
    shape = (*batch, left[-2], right[-1])
    p = View(f"{y}.a", 0, left, row_major(left)).broadcast((*batch, *left[-2:]))
    q = View(f"{y}.b", 0, right, row_major(right)).broadcast((*batch, *right[-2:]))
    views = (
        View(p.tensor, 0, (*shape, left[-1]), (*p.strides[:-1], 0, p.strides[-1])),
        View(q.tensor, 0, (*shape, left[-1]), (*q.strides[:-2], 0, q.strides[-1], q.strides[-2])),
    )
    temporaries = {f"{y}.a": 4 * prod(left), f"{y}.b": 4 * prod(right)}
    return LoweredNode(calls, temporaries=temporaries), views, TensorType("int32", shape)
