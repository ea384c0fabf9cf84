"""The arguments of a float32 matrix product: the C structure and its sizes."""

import ctypes
from dataclasses import dataclass

from pliant.kernels.coded.gemm_args import GemmArgs

MAX_BATCH_DIMS = 6
"""Batch dimensions left after merging adjacent ones; ONNX models have at most two."""

COLUMNS = 16
BLOCK_ROWS = 2048
"""Most rows of B in a block: a column group of it is read from L2, at a fifth of L2's bandwidth.

Each additional block costs a tile about 80 cycles, for sums that are stored and read again.
"""


class MatmulArgs(ctypes.Structure):
    """C[z] = activation(alpha * A[z] @ B[z] + bias + residual[z]) for every batch index z; strides in floats.

    A is [n_rows, depth] with any strides, C [n_rows, n_columns] with unit column stride. B is strided too
    (`b_row`, `b_column`), or, if `is_packed`, in panels [column groups][depth][16] whose last group is padded
    with arbitrary values: alpha is then 1, or part of B. `bias` [n_columns] and `residual` may be null.

    Unit u is a panel of `panel` column groups, in a block of `row_block` rows, of a batch index: panels vary
    fastest, batch indices slowest. `extents` of unused batch dimensions are 1. At the end of its unit a
    thread prefetches the next column group, because a thread takes consecutive units.
    """

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("c", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("n_rows", ctypes.c_int64),
        ("n_columns", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("a_row", ctypes.c_int64),
        ("a_column", ctypes.c_int64),
        ("b_row", ctypes.c_int64),
        ("b_column", ctypes.c_int64),
        ("c_row", ctypes.c_int64),
        ("residual_row", ctypes.c_int64),
        ("is_packed", ctypes.c_int64),
        ("row_block", ctypes.c_int64),
        ("panel", ctypes.c_int64),
        ("extents", ctypes.c_int64 * MAX_BATCH_DIMS),
        ("a_batch", ctypes.c_int64 * MAX_BATCH_DIMS),
        ("b_batch", ctypes.c_int64 * MAX_BATCH_DIMS),
        ("c_batch", ctypes.c_int64 * MAX_BATCH_DIMS),
        ("residual_batch", ctypes.c_int64 * MAX_BATCH_DIMS),
        ("alpha", ctypes.c_float),
    )


class MatmulCodedArgs(ctypes.Structure):
    """A product whose B is decoded on the fly. `coded` is read only for the fields of B, `product` for all
    others.

    B has product.depth rows, padded to coded.segment_rows * coded.n_segments, and product.n_columns columns,
    padded to whole column groups; padding can hold any finite values.
    """

    _fields_ = (("product", MatmulArgs), ("coded", GemmArgs))


class MatmulScaledArgs(ctypes.Structure):
    """A product whose B is integers or half floats times scales, converted to float32 on the fly.

    product.b holds B's elements in panels [column groups][depth][16], one matrix for a whole batch. `scales`
    is float32 [rows of scales][column groups][16]; each of its rows applies to `rows_per_scale` rows of B.
    """

    _fields_ = (("product", MatmulArgs), ("scales", ctypes.c_void_p), ("rows_per_scale", ctypes.c_int64))


@dataclass(frozen=True, slots=True)
class Blocking:
    """How a product is cut into units: rows of A and column groups of B that one unit multiplies."""

    row_block: int
    panel: int

    def units(self, n_batch: int, n_rows: int, n_columns: int) -> int:
        """Work units of a product."""
        groups = -(-n_columns // COLUMNS)
        return n_batch * -(-n_rows // self.row_block) * -(-groups // self.panel)


def blocking(n_batch: int, n_rows: int, n_columns: int, n_threads: int, wide: int = 1) -> Blocking:
    """Rows whose block of A stays in L2; as many column groups as leave every thread about twelve units.

    With fewer units a delayed thread makes the others wait. A tile has `wide` column groups.
    """
    row_block = _divide_evenly(max(n_rows, 1), 144)
    groups = max(1, -(-n_columns // COLUMNS))
    others = n_batch * -(-n_rows // row_block)
    panel = groups * others // (12 * n_threads) if n_threads > 1 else groups
    most = max(1, min(panel, 12) // wide) * wide
    # Of panels not much smaller, the one whose units are divided most evenly among threads.
    sizes = range(most, most // 2, -wide)
    return Blocking(row_block, min(sizes, key=lambda n: -(-(others * -(-groups // n)) // n_threads) * n))


def _divide_evenly(n: int, most: int) -> int:
    """The size of equal parts of n, each at most `most`; a multiple of 12 if there are several."""
    parts = -(-n // most)
    size = -(-n // parts)
    return size if parts == 1 else min(most, -(-size // 12) * 12)
