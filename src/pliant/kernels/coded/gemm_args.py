"""The arguments of a GEMM: the C structures of a slice and of one GEMM."""

import ctypes

import numpy as np

ACTIVATIONS = {None: 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "tanh": 4}
"""Values of `GemmArgs.activation`."""

F16, BF16, BF16_PAIRS, F32 = 16, 17, 18, 32
"""Values of `SliceDesc.bits` for full fidelity; 1..6 are numbers of planes.

BF16_PAIRS is read directly by the bfloat16 GEMM: i32 [column groups][K / 2][16] whose low halves are even
rows of K.
"""


class SliceDesc(ctypes.Structure):
    """One slice of a layer: the addresses of its weights in memory. Its four matrices share it.

    `bits` of 1..6 planes, or 16, 17, 32 for full fidelity in F16, BF16, F32, or BF16_PAIRS, whose `table` is
    null or the pairs of remainders after rounding to `full`, for a matrix of one slice.

    The planes hold code 0 in the places of outliers. `outlier_rows` (u32, one for each column group of the
    slice and one more) are places in `outlier_offsets` (u16, row * 16 + column, ascending) and
    `outlier_values` (float32).
    """

    _fields_ = (
        ("bits", ctypes.c_int64),
        ("planes", ctypes.c_void_p * 6),
        ("full", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("outlier_rows", ctypes.c_void_p),
        ("outlier_offsets", ctypes.c_void_p),
        ("outlier_values", ctypes.c_void_p),
    )


SLICE_DTYPE = np.dtype(
    [
        ("bits", np.int64),
        ("planes", np.uint64, 6),
        ("full", np.uint64),
        ("table", np.uint64),
        ("outlier_rows", np.uint64),
        ("outlier_offsets", np.uint64),
        ("outlier_values", np.uint64),
    ]
)
"""`SliceDesc` as a numpy dtype: an array of it describes one layer."""
assert SLICE_DTYPE.itemsize == ctypes.sizeof(SliceDesc)


class GemmArgs(ctypes.Structure):
    """One GEMM. Strides in floats; `bias`, `residual` may be null; K = segment_rows * n_segments.

    Column group g and segment s of the matrix are in slice g // column_groups_per_slice + s, as column group
    g % column_groups_per_slice of a matrix that begins at `first_group` and `first_column_group`. If `slices`
    is null, all slices are consecutive in `own`, including outliers: a single matrix.
    """

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("lda", ctypes.c_int64),
        ("c", ctypes.c_void_p),
        ("ldc", ctypes.c_int64),
        ("n_rows", ctypes.c_int64),
        ("n_columns", ctypes.c_int64),
        ("slices", ctypes.c_void_p),
        ("first_group", ctypes.c_int64),
        ("first_column_group", ctypes.c_int64),
        ("segment_rows", ctypes.c_int64),
        ("n_segments", ctypes.c_int64),
        ("column_groups_per_slice", ctypes.c_int64),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("ldr", ctypes.c_int64),
        ("activation", ctypes.c_int64),
        ("own", SliceDesc),
    )
