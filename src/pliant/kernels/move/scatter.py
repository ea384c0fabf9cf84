"""Kernels that write at integer indices, replacing the previous value or combined with it.

One thread applies the updates in order, so that repeated indices give deterministic results. An index out of
range is an error, as in `index`.
"""

import ctypes

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.dtypes import DTYPES, Dtype, narrow, widen
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.nest import Nest, locate_unit
from pliant.kernels.emit.operations import OPERATIONS
from pliant.kernels.emit.values import Value
from pliant.kernels.move.index_gather import (
    DEPTH,
    INDEX_TYPES,
    IndexFault,
    check_index,
    load_index,
    tuple_offset,
)
from pliant.kernels.move.move import MoveArgs

REDUCTIONS = ("none", "add", "mul", "max", "min")


class ScatterArgs(ctypes.Structure):
    """target row at the tuple of `depth` indices i = reduction(that row, update row i); rows of `n` elements.

    Updates and indices are dense; `strides` are those of the target, in bytes.
    """

    _fields_ = (
        ("indices", ctypes.c_void_p),
        ("updates", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("dims", ctypes.c_int64 * DEPTH),
        ("strides", ctypes.c_int64 * DEPTH),
        ("fault", IndexFault),
    )


class ScatterElementsArgs(ctypes.Structure):
    """target[... + axis_stride * index] = reduction(that, updates[...]), dense updates and indices.

    The nest's source is the updates; its target strides do not include the axis.
    """

    _fields_ = (
        ("indices", ctypes.c_void_p),
        ("updates", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("dim", ctypes.c_int64),
        ("axis_stride", ctypes.c_int64),
        ("nest", Nest),
        ("fault", IndexFault),
    )


def scatter_ir(isa: Isa, name: str, index: str, dtype: str, reduction: str) -> str:
    """The kernel with ScatterArgs; a unit is one update row."""
    row = DTYPES[dtype]
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        indices, updates, target, n, depth = f.fields(
            args, ScatterArgs, "indices", "updates", "target", "n", "depth"
        )
        with f.each(lo, hi) as i:
            at = f.at(indices, i * depth * INDEX_TYPES[index], "i8")
            y = f.at(target, tuple_offset(f, args, ScatterArgs, at, index, depth), "i8")
            x = f.at(updates, i * n, row.memory)
            with f.each(0, n) as j:
                combine(f, row, reduction, f.at(x, j, row.memory), f.at(y, j, row.memory))
    return module.text()


def scatter_elements_ir(isa: Isa, name: str, index: str, dtype: str, reduction: str) -> str:
    """The kernel with ScatterElementsArgs, for elements with one index each."""
    row = DTYPES[dtype]
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        indices, updates, target, dim, axis_stride = f.fields(
            args, ScatterElementsArgs, "indices", "updates", "target", "dim", "axis_stride"
        )
        nest = f.at(args, ScatterElementsArgs.nest.offset, "i8")
        n, source_m, target_m, target_n = f.fields(nest, Nest, "n", "source_m", "target_m", "target_n")
        with f.each(lo, hi) as number:
            source_at, target_at, first, stop = locate_unit(f, nest, number)
            with f.each(0, stop - first) as i, f.each(0, n) as j:
                at = source_at + i * source_m + j * row.itemsize
                which = f.at(indices, at // row.itemsize * INDEX_TYPES[index], "i8")
                place = check_index(f, args, ScatterElementsArgs, load_index(f, which, index), dim)
                y = target_at + i * target_m + j * target_n + place * axis_stride
                combine(f, row, reduction, f.at(updates, at, "i8"), f.at(target, y, "i8"))
    return module.text()


def combine(f: Function, row: Dtype, reduction: str, update: Value, place: Value) -> None:
    """Write one element, or combine it with the value at its place."""
    value = f.load(update, row.memory)
    if reduction != "none":
        values = [widen(f, x, row) for x in (f.load(place, row.memory), value)]
        value = narrow(f, _reduce(f, row, reduction, values), row)
    f.store(value, place)


def _reduce(f: Function, row: Dtype, reduction: str, values: list[Value]) -> Value:
    """The combined value; for bools a sum is `or`, a product is `and`."""
    if row.kind == "bool":
        return values[0] | values[1] if reduction in ("add", "max") else values[0] & values[1]
    return OPERATIONS[reduction](f, row, values)


def add_strided_ir(isa: Isa, name: str, dtype: str) -> str:
    """target[...] += source[...] with MoveArgs, over elements strided in both."""
    row = DTYPES[dtype]
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        source, target = f.fields(args, MoveArgs, "source", "target")
        nest = f.at(args, MoveArgs.nest.offset, "i8")
        n, source_m, target_m, source_n, target_n = f.fields(
            nest, Nest, "n", "source_m", "target_m", "source_n", "target_n"
        )
        with f.each(lo, hi) as number:
            source_at, target_at, first, stop = locate_unit(f, nest, number)
            with f.each(0, stop - first) as i, f.each(0, n) as j:
                x = f.at(source, source_at + i * source_m + j * source_n, "i8")
                y = f.at(target, target_at + i * target_m + j * target_n, "i8")
                combine(f, row, "add", x, y)
    return module.text()
