"""The k largest or smallest elements of rows, best first.

The elements are inserted into a heap of k pairs (key, index) with the worst at its root, which is then
sorted: at most n log k steps. Keys are 64-bit integers in the order of the elements (NaN of positive sign
above inf, both zeros equal); on equal keys the lower index is better.
"""

import ctypes

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.dtypes import DTYPES, Dtype, widen
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value

PAIR_BYTES = 16


class TopKArgs(ctypes.Structure):
    """Row u, of `n` elements `inner` elements apart, gives `k` <= n values and int64 indices with the same
    spacing.

    Row u starts at element u % inner of block u / inner, of n * inner elements (k * inner in the outputs).
    `flip` is 0 for the largest, -1 for the smallest.
    """

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("flip", ctypes.c_int64),
    )


def topk_ir(isa: Isa, name: str, dtype: str) -> str:
    """The kernel with TopKArgs; a unit is one row; scratch is `PAIR_BYTES` times k; null outputs are not
    written.
    """
    row = DTYPES[dtype]
    module = Module(isa)
    _sift(module)
    with module.kernel(name) as f:
        args, lo, hi, heap = f.params
        source, values, indices = f.fields(args, TopKArgs, "source", "values", "indices")
        n, k, inner, flip = f.fields(args, TopKArgs, "n", "k", "inner", "flip")
        with f.each(lo, hi) as u:
            block, place = u // inner, u % inner
            x = f.at(source, block * n * inner + place, row.memory)

            def key(i: Value, x: Value = x) -> Value:
                return _key(f, f.load(f.at(x, i * inner, row.memory), row.memory), row) ^ flip

            with f.each(0, k) as i:
                _write(f, heap, i, key(i), i)
            half = k >> 1
            with f.each(0, half) as i:
                f.call("sift", "void", heap, half - 1 - i, k)
            with f.each(k, n) as i:
                found = key(i)
                worst, _ = _read(f, heap, f.const(0))
                with f.when(worst < found):  # on a tie the earlier one is kept
                    _write(f, heap, f.const(0), found, i)
                    f.call("sift", "void", heap, f.const(0), k)
            with f.each(0, k) as i:
                last = k - 1 - i
                first_pair, last_pair = _read(f, heap, f.const(0)), _read(f, heap, last)
                _write(f, heap, last, *first_pair)
                _write(f, heap, f.const(0), *last_pair)
                f.call("sift", "void", heap, f.const(0), last)
            out = block * k * inner + place
            with f.each(0, k) as i:
                _, index = _read(f, heap, i)
                at = out + i * inner
                with f.when(f.cast("ptrtoint", values, "i64").compare("ne", 0)):
                    value = f.load(f.at(x, index * inner, row.memory), row.memory)
                    f.store(value, f.at(values, at, row.memory))
                with f.when(f.cast("ptrtoint", indices, "i64").compare("ne", 0)):
                    f.store(index, f.at(indices, at, "i64"))
    return module.text()


def _sift(module: Module) -> None:
    """`void sift(ptr heap, i64 start, i64 n)`: the pair at `start` sinks below every worse child."""
    params = (("heap", "ptr"), ("start", "i64"), ("n", "i64"))
    with module.function("sift", params, is_exported=False) as f:
        heap, start, n = f.params
        key, index = _read(f, heap, start)
        with f.repeat([start]) as loop:
            (at,) = loop.carried
            left = at * 2 + 1
            right = f.select(left + 1 < n, left + 1, left)
            safe = [f.select(child < n, child, at) for child in (left, right)]
            pairs = [_read(f, heap, child) for child in safe]
            is_right = _is_worse(f, pairs[1], pairs[0])
            child = f.select(is_right, safe[1], safe[0])
            pair = tuple(f.select(is_right, b, a) for a, b in zip(*pairs, strict=True))
            sinks = (left < n) & _is_worse(f, (pair[0], pair[1]), (key, index))
            with f.when(sinks):
                _write(f, heap, at, *pair)
            loop.repeat_if(sinks, [f.select(sinks, child, at)])
        _write(f, heap, loop.carried[0], key, index)
        f.ret()


def _is_worse(f: Function, a: tuple[Value, Value], b: tuple[Value, Value]) -> Value:
    return (a[0] < b[0]) | (a[0].compare("eq", b[0]) & (b[1] < a[1]))


def _read(f: Function, heap: Value, i: Value) -> tuple[Value, Value]:
    at = f.at(heap, i * 2, "i64")
    return f.load(at, "i64"), f.load(f.at(at, 1, "i64"), "i64")


def _write(f: Function, heap: Value, i: Value, key: Value, index: Value) -> None:
    at = f.at(heap, i * 2, "i64")
    f.store(key, at)
    f.store(index, f.at(at, 1, "i64"))


def _key(f: Function, raw: Value, row: Dtype) -> Value:
    """An element as an i64 of the same order."""
    if row.kind in ("uint", "bool"):
        wide = raw if row.bits == 64 else f.cast("zext", raw, "i64")
        return wide ^ -(1 << 63) if row.bits == 64 else wide
    if row.kind == "int":
        return raw if row.bits == 64 else f.cast("sext", raw, "i64")
    value = widen(f, raw, row)
    wide = value if value.type == "double" else f.cast("fpext", value, "double")
    word = f.cast("bitcast", wide + 0.0, "i64")  # -0 becomes 0
    return f.select(word < 0, word ^ ((1 << 63) - 1), word)
