"""Round rows of float32 to bfloat16, in the layout of the bfloat16 GEMM: pairs along K, rows separate."""

import ctypes

from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.product.bf16_pairs import require_bf16, round_one, round_row


class RoundBf16Args(ctypes.Structure):
    """Rows of float32 [n_rows, n_columns], stride lda, to bfloat16 `q` [n_rows, depth].

    Values after n_columns are 0.
    """

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("lda", ctypes.c_int64),
        ("n_columns", ctypes.c_int64),
        ("q", ctypes.c_void_p),
        ("depth", ctypes.c_int64),
    )


def row_grain_bf16(depth: int) -> int:
    """Rows that a thread rounds at a time."""
    return max(1, 8192 // max(depth, 1))


def round_bf16_ir(isa: Isa, name: str = "round_bf16") -> str:
    """The kernel with RoundBf16Args; a unit is a row."""
    require_bf16(isa)
    module = Module(isa)
    with module.kernel(name) as f:
        args, lo, hi, _ = f.params
        a, lda, n, q, depth = f.fields(args, RoundBf16Args, "a", "lda", "n_columns", "q", "depth")
        whole = n & -(2 * f.lanes)
        with f.each(lo, hi) as row:
            source, to = f.at(a, row * lda), f.at(q, row * depth, "i16")
            with f.each(0, whole, 2 * f.lanes) as column:
                low, high = (f.load(f.at(source, column + i), f.vec) for i in (0, f.lanes))
                f.store(round_row(f, low, high), f.at(to, column, "i16"), 2)
            with f.each(whole, n) as column:
                f.store(round_one(f, f.load(f.at(source, column))), f.at(to, column, "i16"))
            with f.each(n, depth) as column:
                f.store(f.const(0, "i16"), f.at(to, column, "i16"))
    return module.text()
