"""Kernels that write few rows or elements at integer positions: one-hot marks, cache rows.

Positions outside the target are skipped.
"""

import ctypes

from pliant.kernels.emit import rowcopy
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.dtypes import DTYPES, convert, widen
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.move.index_gather import load_index


class OneHotArgs(ctypes.Structure):
    """target[o, index[o, i], i] = the element at `value`.

    target is [outer, depth, inner], indices [outer, inner].
    """

    _fields_ = (
        ("indices", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("depth", ctypes.c_int64),
        ("inner", ctypes.c_int64),
    )


class CacheArgs(ctypes.Structure):
    """target[b, o, first[b] + t] = updates[b, o, t], rows of `row_bytes`; `first` int64 or null (0).

    Target has `length` rows, updates `n`; units count (b, o), `outer` of them for each b.
    """

    _fields_ = (
        ("updates", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("outer", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
    )


def one_hot_ir(isa: Isa, name: str, index: str, size: int) -> str:
    """The kernel with OneHotArgs; a unit is one index, of any numeric dtype; negative ones count from the
    end.
    """
    row = DTYPES[index]
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        indices, value_at, target, depth, inner = f.fields(
            args, OneHotArgs, "indices", "value", "target", "depth", "inner"
        )
        value = f.load(value_at, f"i{8 * size}", 1)
        with f.each(lo, hi) as u:
            found = widen(f, f.load(f.at(indices, u, row.memory), row.memory), row)
            which = convert(f, found, row, DTYPES["int64"])
            which = f.select(which < 0, which + depth, which)
            is_within = f.op(f"icmp ult {which}, {depth.text}", "i1")
            with f.when(is_within):
                at = (u // inner * depth + which) * inner + u % inner
                f.store(value, f.at(target, at, f"i{8 * size}"), 1)
    return module.text()


def cache_ir(isa: Isa, name: str, is_circular: bool) -> str:
    """The kernel with CacheArgs; a unit is one (b, o). Positions past the end wrap around if `is_circular`,
    else are skipped.
    """
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        updates, first_at, target = f.fields(args, CacheArgs, "updates", "first", "target")
        outer, length, n, row_bytes = f.fields(args, CacheArgs, "outer", "length", "n", "row_bytes")
        with f.each(lo, hi) as u:
            first = _number_at(f, first_at, u // outer)
            with f.each(0, n) as t:
                place = first + t
                if is_circular:
                    rest = place % length
                    place = f.select(rest < 0, rest + length, rest)
                with f.when(f.op(f"icmp ult {place}, {length.text}", "i1")):
                    x = f.at(updates, (u * n + t) * row_bytes, "i8")
                    rowcopy.copy(f, x, f.at(target, (u * length + place) * row_bytes, "i8"), row_bytes)
    return module.text()


def _number_at(f: Function, numbers: Value, i: Value) -> Value:
    """Number i of an int64 array; 0 if the array is null."""
    is_given = f.cast("ptrtoint", numbers, "i64").compare("ne", 0)
    (number,) = f.choose(
        is_given, lambda: [load_index(f, f.at(numbers, i, "i64"), "int64")], lambda: [f.const(0)]
    )
    return number
