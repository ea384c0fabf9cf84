"""Kernels that copy strided tensors: rows, single elements, repeated elements, transposed tiles.

Element sizes and strides are arguments, so that few kernels serve all types and shapes.
"""

import ctypes
from collections.abc import Callable

from pliant.kernels.emit import rowcopy
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.nest import Nest, locate_unit
from pliant.kernels.emit.values import Value, vector

SIZES = (1, 2, 4, 8)
"""Element sizes of the kernels in bytes; larger elements are moved as several."""

_LANE_BYTES = 16


class MoveArgs(ctypes.Structure):
    """target[...] = source[...] over a nest of loops; the accessed parts of the two tensors do not
    overlap.
    """

    _fields_ = (("source", ctypes.c_void_p), ("target", ctypes.c_void_p), ("nest", Nest))


def rows_ir(isa: Isa, name: str) -> str:
    """The kernel for rows of `nest.n` bytes that are contiguous in both tensors."""
    return _write_by_rows(isa, name, lambda f, _, source, target, n: rowcopy.copy(f, source, target, n))


def spread_ir(isa: Isa, name: str, size: int) -> str:
    """The kernel that fills each row with `nest.n` copies of the element of `size` bytes at the source."""

    def row(f: Function, _: Value, source: Value, target: Value, n: Value) -> None:
        rowcopy.fill(f, f.load(source, _element(size)), target, n)

    return _write_by_rows(isa, name, row)


def strided_ir(isa: Isa, name: str, size: int) -> str:
    """The kernel for elements of `size` bytes, `nest.n` per row, strided in both tensors."""

    def row(f: Function, nest: Value, source: Value, target: Value, n: Value) -> None:
        source_n, target_n = f.fields(nest, Nest, "source_n", "target_n")
        with f.each(0, n & -4, 4) as j:
            values = [f.load(f.at(source, (j + k) * source_n, "i8"), _element(size), 1) for k in range(4)]
            for k, value in enumerate(values):
                f.store(value, f.at(target, (j + k) * target_n, "i8"), 1)
        with f.each(n & -4, n) as j:
            value = f.load(f.at(source, j * source_n, "i8"), _element(size), 1)
            f.store(value, f.at(target, j * target_n, "i8"), 1)

    return _write_by_rows(isa, name, row)


def transpose_ir(isa: Isa, name: str, size: int) -> str:
    """The kernel for elements of `size` bytes, contiguous along `m` in the source and along `n` in the
    target.

    Tiles of several 16-byte pieces of the source become whole vectors of the target in registers.
    """
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        source, target = f.fields(args, MoveArgs, "source", "target")
        nest = f.at(args, MoveArgs.nest.offset, "i8")
        with f.each(lo, hi) as number:
            source_at, target_at, first, stop = locate_unit(f, nest, number)
            x, y = f.at(source, source_at, "i8"), f.at(target, target_at, "i8")
            _transpose_block(f, nest, x, y, stop - first, size)
    return module.text()


def _transpose_block(f: Function, nest: Value, x: Value, y: Value, m: Value, size: int) -> None:
    """`m` contiguous elements of each of `nest.n` rows at x become rows at y: tiles, then the remainder."""
    n, source_n, target_m = f.fields(nest, Nest, "n", "source_n", "target_m")
    height, width = 4 * f.lanes // size, _LANE_BYTES // size
    tall, wide = n - n % height, m - m % width

    def corners(i: Value, j: Value) -> tuple[Value, Value]:
        source = f.at(f.at(x, j * source_n, "i8"), i * size, "i8")
        return source, f.at(f.at(y, i * target_m, "i8"), j * size, "i8")

    with f.each(0, tall, height) as j, f.each(0, wide, width) as i:
        source, target = corners(i, j)
        _tile(f, source, source_n, target, target_m, size)
    zero = f.const(0)
    for i0, i1, j0, j1 in ((wide, m, zero, tall), (zero, m, tall, n)):
        with f.each(i0, i1) as i, f.each(j0, j1) as j:
            source, target = corners(i, j)
            f.store(f.load(source, _element(size), 1), target, 1)


def _write_by_rows(isa: Isa, name: str, row: Callable[[Function, Value, Value, Value, Value], None]) -> str:
    """A kernel that emits `row(f, nest, source, target, n)` for every iteration of `m` in its units."""
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        source, target = f.fields(args, MoveArgs, "source", "target")
        nest = f.at(args, MoveArgs.nest.offset, "i8")
        n, source_m, target_m = f.fields(nest, Nest, "n", "source_m", "target_m")
        with f.each(lo, hi) as number:
            source_at, target_at, first, stop = locate_unit(f, nest, number)
            x, y = f.at(source, source_at, "i8"), f.at(target, target_at, "i8")
            with f.each(0, stop - first) as i:
                row(f, nest, f.at(x, i * source_m, "i8"), f.at(y, i * target_m, "i8"), n)
    return module.text()


def _tile(f: Function, x: Value, x_stride: Value, y: Value, y_stride: Value, size: int) -> None:
    """Rows of one 16-byte piece each become columns: y[i][j] = x[j][i].

    A vector holds, in each 128-bit part, a piece of another row; interleaving vectors i and i + half, log2 of
    their number times, transposes every part.
    """
    width, parts = _LANE_BYTES // size, 4 * f.lanes // _LANE_BYTES
    piece = vector(width, _element(size))
    rows = [
        _join(f, [_piece(f, x, x_stride, i + p * width, piece) for p in range(parts)]) for i in range(width)
    ]
    half = width // 2
    low = [lane for p in range(parts) for k in range(half) for lane in _pair(p, k, width, parts)]
    high = [lane for p in range(parts) for k in range(half, width) for lane in _pair(p, k, width, parts)]
    turns = width.bit_length() - 1
    for _ in range(turns):
        pairs = [(rows[i], rows[i + half]) for i in range(half)]
        rows = [f.shuffle(a, b, lanes) for a, b in pairs for lanes in (low, high)]
    for i, column in enumerate(rows):
        f.store(column, f.at(y, y_stride * i, "i8"), 1)


def _pair(part: int, k: int, width: int, parts: int) -> tuple[int, int]:
    return part * width + k, (parts + part) * width + k


def _piece(f: Function, x: Value, stride: Value, row: int, type_: str) -> Value:
    return f.load(f.at(x, stride * row, "i8"), type_, 1)


def _join(f: Function, pieces: list[Value]) -> Value:
    while len(pieces) > 1:
        n = int(pieces[0].type[1:].split(" ")[0])
        pieces = [f.shuffle(a, b, range(2 * n)) for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
    return pieces[0]


def _element(size: int) -> str:
    return f"i{8 * size}"
