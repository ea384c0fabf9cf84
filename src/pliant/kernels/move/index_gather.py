"""Kernels that read at integer indices: rows by index tuples, elements by one index each.

A negative index counts from the end. An index out of range is an error, as in ONNX: the kernel writes it into
its own arguments (`IndexFault`), and continues with the nearest valid index, so that no access is out of
bounds.
"""

import ctypes

from pliant.kernels.emit import rowcopy
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.nest import Nest, locate_unit
from pliant.kernels.emit.values import Value

INDEX_TYPES = {"int32": 4, "int64": 8}
"""The index types, with their bytes."""

DEPTH = 8
"""The most dimensions of an index tuple."""


class IndexFault(ctypes.Structure):
    """An index out of range found by a kernel; all zero if there is none.

    If there are several, it is not defined which one is recorded.
    """

    _fields_ = (("dim", ctypes.c_int64), ("index", ctypes.c_int64))


class GatherArgs(ctypes.Structure):
    """target row (o, i) = source row o at the tuple of `depth` indices (o, i), each below its `dims`.

    Rows are `row_bytes` long, target rows dense. Strides are in bytes: of o in source and indices, and
    of each index of a tuple in the source.
    """

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("n_rows", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("source_outer", ctypes.c_int64),
        ("indices_outer", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("dims", ctypes.c_int64 * DEPTH),
        ("strides", ctypes.c_int64 * DEPTH),
        ("fault", IndexFault),
    )


class GatherElementsArgs(ctypes.Structure):
    """target[...] = source[... + axis_stride * index]: with dense target and indices and the nest of the
    source.

    The nest's source strides do not include the axis.
    """

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("dim", ctypes.c_int64),
        ("axis_stride", ctypes.c_int64),
        ("nest", Nest),
        ("fault", IndexFault),
    )


class ReverseArgs(ctypes.Structure):
    """Each of `batch` sequences of rows, the first `lengths` of its `time` rows in reverse order.

    Strides of both tensors are in bytes; lengths outside 0..time are clamped.
    """

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("time", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("time_stride", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
    )


def gather_ir(isa: Isa, name: str, index: str, size: int | None, is_deep: bool) -> str:
    """The kernel with GatherArgs, for rows of any length, or of one element of `size` bytes; a unit is one
    row.

    Unless `is_deep`, tuples have one index.
    """
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        source, indices, target = f.fields(args, GatherArgs, "source", "indices", "target")
        n_rows, row_bytes = f.fields(args, GatherArgs, "n_rows", "row_bytes")
        source_outer, indices_outer = f.fields(args, GatherArgs, "source_outer", "indices_outer")
        depth = f.fields(args, GatherArgs, "depth")[0] if is_deep else f.const(1)
        with f.loop(lo, hi, carry=[lo // n_rows, lo % n_rows]) as loop:
            o, i = loop.carried
            at = f.at(indices, o * indices_outer + i * depth * INDEX_TYPES[index], "i8")
            offset = tuple_offset(f, args, GatherArgs, at, index, depth) + o * source_outer
            x, y = f.at(source, offset, "i8"), f.at(target, loop.index * row_bytes, "i8")
            if size is None:
                rowcopy.copy(f, x, y, row_bytes)
            else:
                f.store(f.load(x, f"i{8 * size}", 1), y, 1)
            is_last = (i + 1).compare("eq", n_rows)
            loop.carry([f.select(is_last, o + 1, o), f.select(is_last, f.const(0), i + 1)])
    return module.text()


def gather_elements_ir(isa: Isa, name: str, index: str, size: int) -> str:
    """The kernel with GatherElementsArgs, for elements of `size` bytes with one index each."""
    element = f"i{8 * size}"
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        source, indices, target, dim, axis_stride = f.fields(
            args, GatherElementsArgs, "source", "indices", "target", "dim", "axis_stride"
        )
        nest = f.at(args, GatherElementsArgs.nest.offset, "i8")
        n, source_m, target_m, source_n = f.fields(nest, Nest, "n", "source_m", "target_m", "source_n")
        with f.each(lo, hi) as number:
            source_at, target_at, first, stop = locate_unit(f, nest, number)
            with f.each(0, stop - first) as i:
                row = (target_at + i * target_m) >> (size.bit_length() - 1)
                x = f.at(source, source_at + i * source_m, "i8")
                places, y = f.at(indices, row, _llvm(index)), f.at(target, row, element)
                with f.each(0, n) as j:
                    found = load_index(f, f.at(places, j, _llvm(index)), index)
                    place = check_index(f, args, GatherElementsArgs, found, dim)
                    value = f.load(f.at(x, j * source_n + place * axis_stride, "i8"), element, 1)
                    f.store(value, f.at(y, j, element), 1)
    return module.text()


def reverse_ir(isa: Isa, name: str) -> str:
    """The kernel with ReverseArgs; a unit is one sequence; lengths are int64."""
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        source, lengths, target = f.fields(args, ReverseArgs, "source", "lengths", "target")
        time, batch_stride, time_stride, row_bytes = f.fields(
            args, ReverseArgs, "time", "batch_stride", "time_stride", "row_bytes"
        )
        with f.each(lo, hi) as b, f.each(0, time) as t:
            length = f.least(f.load(f.at(lengths, b, "i64"), "i64"), time)
            from_t = f.select(t < length, length - 1 - t, t)
            base = b * batch_stride
            x = f.at(source, base + from_t * time_stride, "i8")
            rowcopy.copy(f, x, f.at(target, base + t * time_stride, "i8"), row_bytes)
    return module.text()


def tuple_offset(
    f: Function, args: Value, layout: type[ctypes.Structure], indices: Value, index: str, depth: Value
) -> Value:
    """The byte offset for `depth` indices from `indices` on, with the `dims` and `strides` of `layout`."""
    dims, strides = (f.at(args, getattr(layout, name).offset, "i8") for name in ("dims", "strides"))
    with f.loop(0, depth, carry=[f.const(0)]) as loop:
        d = loop.index
        found = load_index(f, f.at(indices, d, _llvm(index)), index)
        place = check_index(f, args, layout, found, f.load(f.at(dims, d, "i64"), "i64"))
        loop.carry([loop.carried[0] + place * f.load(f.at(strides, d, "i64"), "i64")])
    return loop.carried[0]


def load_index(f: Function, pointer: Value, index: str) -> Value:
    """The integer at `pointer` as i64."""
    value = f.load(pointer, _llvm(index))
    return value if index == "int64" else f.cast("sext", value, "i64")


def check_index(f: Function, args: Value, layout: type[ctypes.Structure], index: Value, dim: Value) -> Value:
    """An index clamped to 0..dim-1; an index out of range is written into the `fault` of `args`."""
    place = f.select(index < 0, index + dim, index)
    within = f.select(place < dim, place, dim - 1)
    within = f.select(within < 0, f.const(0), within)
    with f.when(within.compare("ne", place)):
        fault = layout.fault.offset
        f.store(index, f.at(args, fault + IndexFault.index.offset, "i8"))
        f.store(dim, f.at(args, fault + IndexFault.dim.offset, "i8"))
    return within


def _llvm(index: str) -> str:
    return f"i{8 * INDEX_TYPES[index]}"
