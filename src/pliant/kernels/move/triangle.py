"""Keep the triangle above or below a diagonal of matrices, with zeros elsewhere."""

import ctypes

from pliant.kernels.emit import rowcopy
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import Isa


class TriangleArgs(ctypes.Structure):
    """Matrices of rows x columns elements of `size` bytes; `k` points to the diagonal's int64, null is 0."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("size", ctypes.c_int64),
    )


def triangle_ir(isa: Isa, name: str, is_upper: bool) -> str:
    """The kernel with TriangleArgs; a unit is one row: columns from row + k on are kept, or those up to
    it.
    """
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        source, target, k_at, rows, columns, size = f.fields(
            args, TriangleArgs, "source", "target", "k", "rows", "columns", "size"
        )
        is_given = f.cast("ptrtoint", k_at, "i64").compare("ne", 0)
        (k,) = f.choose(is_given, lambda: [f.load(k_at, "i64")], lambda: [f.const(0)])
        limit = rows + columns  # clamped: larger values have the same effect and could overflow
        k = f.select(k < -limit, -limit, f.least(k, limit))
        zero = f.const(0, "i8")
        with f.each(lo, hi) as u:
            edge = u % rows + k + (0 if is_upper else 1)
            edge = f.select(edge < 0, f.const(0), f.least(edge, columns)) * size
            start, n = u * columns * size, columns * size
            x, y = f.at(source, start, "i8"), f.at(target, start, "i8")
            if is_upper:
                rowcopy.fill(f, zero, y, edge)
                rowcopy.copy(f, f.at(x, edge, "i8"), f.at(y, edge, "i8"), n - edge)
            else:
                rowcopy.copy(f, x, y, edge)
                rowcopy.fill(f, zero, f.at(y, edge, "i8"), n - edge)
    return module.text()
