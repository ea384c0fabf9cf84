"""Encode a single matrix in k-bit codes: planes, codebook, outliers, in the kernels' layout.

It uses the store's quantizer, per matrix instead of per layer: an ONNX graph has no layers, and a separate
code fits each matrix at least as well as a shared one.
"""

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from pliant.arrays import Float32, UInt8, UInt16, UInt32
from pliant.ir.bitwidths import PLANES
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.models.slice_shapes import GROUP_COLUMNS, GROUP_ROWS, PLANE_GROUP_BYTES
from pliant.store.coding.encode_layer import MAX_ROWS
from pliant.store.coding.error_feedback import round_with_feedback
from pliant.store.coding.planes import pack_planes
from pliant.store.coding.quantize import fit

_BEYOND = 1 << 15
"""At most one in this many weights may exceed the int8 form's largest integer; the form adds such weights as
floats.
"""
_HEADROOM = 1.5
_TABLE_BYTES = 1024
"""The largest size of the table that kernels decode with."""
_PAGE_BYTES = 4096
_APART_BYTES, _APART_GROUPS = 1 << 18, 37
"""Planes of at least this many bytes, if a multiple of the page size, are spaced by this many groups if a
column group has more. Otherwise the streams of all planes map to a few sets of every cache (one row on Zen 5:
0.77 to 0.90 of a read).
"""


@dataclass(frozen=True, slots=True, eq=False)
class CodedMatrix:
    """A [K, N] matrix, zero-padded to whole groups of 32 rows by 16 columns.

    K is cut into `n_segments` of `segment_rows`, as an outlier's offset is 16 bits: row of the segment * 16 +
    column of the group, ascending. Groups are ordered by segment, column group, row. A weight is
    `codebook[its planes' code]`, or for an outlier its exact value: the outliers of column group c of segment
    s are at `outlier_rows[s * column groups + c]` up to the next. The decoded value of padding is undefined.
    A large plane may be followed by padding of less than a column group. `largest` is the magnitude that maps
    to the largest int8 when the weights become int8.
    """

    planes: UInt8[np.ndarray, "bits plane_bytes"]
    codebook: Float32[np.ndarray, " levels"]
    outlier_rows: UInt32[np.ndarray, " segments_column_groups_1"]
    outlier_offsets: UInt16[np.ndarray, " outliers"]
    outlier_values: Float32[np.ndarray, " outliers"]
    segment_rows: int
    n_segments: int
    largest: float


def code_matrix(
    matrix: Float32[np.ndarray, "K N"],
    bits: int,
    moments: Float32[np.ndarray, "K K"] | None = None,
    steps: int | None = None,
) -> CodedMatrix:
    """Quantize a matrix to `bits` of the store's code. Raises StoreError where a value is not finite.

    With `moments`, X' X of rows X that the matrix is multiplied with, weights are rounded so that the error
    of these products is small, else each to its own code; they are ignored if not finite, or zero. If `steps`
    is given, products are in int8, whose largest centroid has so many steps.
    """
    fitted = fit(np.ascontiguousarray(matrix).reshape(-1))
    codes, is_outlier = (x.reshape(matrix.shape) for x in (fitted.codes, fitted.is_outlier))
    codebook, of_bits = fitted.code.codebooks[bits], PLANES
    largest = _largest(codebook, matrix[is_outlier], matrix.size)
    if moments is not None and np.isfinite(moments).all() and moments.any():
        step = np.float32(0.0 if steps is None else largest / steps)
        levels = np.rint(codebook / step) * step if step else codebook
        codes, matrix = round_with_feedback(matrix, levels, codes >> (PLANES - bits), is_outlier, moments)
        of_bits = bits
    # As in the store, the decoded value in an outlier's place must be known without reading the planes.
    codes[is_outlier] = 0
    row, column = np.nonzero(is_outlier)
    made = pack_matrix(codes, codebook, (row, column, matrix[row, column]), of_bits)
    return replace(made, largest=largest)  # of the weights as they were: corrections change it little


def pack_matrix(
    codes: UInt8[np.ndarray, "K N"],
    codebook: Float32[np.ndarray, " levels"],
    outliers: tuple[np.ndarray, np.ndarray, np.ndarray],
    of_bits: int = PLANES,
) -> CodedMatrix:
    """A CodedMatrix from existing codes: `codes` of `of_bits`, of which the leading bits that `codebook` has
    are used.

    `outliers` are their rows, columns and exact values; their codes are 0.
    """
    bits = len(codebook).bit_length() - 1
    n_segments, segment_rows, width = _cut(*codes.shape)
    rows, (depth, columns) = n_segments * segment_rows, codes.shape
    if codes.shape != (rows, width):
        codes = np.pad(codes, ((0, rows - depth), (0, width - columns)))
    shape = (n_segments, segment_rows // GROUP_ROWS, GROUP_ROWS, width // GROUP_COLUMNS, GROUP_COLUMNS)
    groups = codes.reshape(shape).transpose(0, 3, 1, 2, 4).reshape(-1, GROUP_ROWS, GROUP_COLUMNS)
    planes = pack_planes(groups << (PLANES - of_bits))[:bits].reshape(bits, -1)
    n_bytes = _plane_bytes(rows, width)
    aligned = aligned_bytes(bits * n_bytes).reshape(bits, n_bytes)
    aligned[:, : planes.shape[1]] = planes
    aligned[:, planes.shape[1] :] = 0
    row, column, values = outliers
    place = row // segment_rows * (width // GROUP_COLUMNS) + column // GROUP_COLUMNS
    offset = row % segment_rows * GROUP_COLUMNS + column % GROUP_COLUMNS
    order = np.lexsort((offset, place))
    return CodedMatrix(
        planes=aligned,
        codebook=codebook,
        outlier_rows=np.searchsorted(place[order], np.arange(n_segments * width // GROUP_COLUMNS + 1)).astype(
            np.uint32
        ),
        outlier_offsets=offset[order].astype(np.uint16),
        outlier_values=values[order],
        segment_rows=segment_rows,
        n_segments=n_segments,
        largest=_largest(codebook, values, codes.size),
    )


def blank_matrix(depth: int, columns: int, bits: int) -> CodedMatrix:
    """A placeholder matrix of this shape without memory: programs compiled for it run with the arrays of any
    other.
    """
    n_segments, segment_rows, width = _cut(depth, columns)
    none: np.ndarray = np.zeros((), np.uint8)
    return CodedMatrix(
        planes=np.broadcast_to(none, (bits, _plane_bytes(n_segments * segment_rows, width))),
        codebook=np.zeros(1 << bits, np.float32),
        outlier_rows=np.zeros(n_segments * width // GROUP_COLUMNS + 1, np.uint32),
        outlier_offsets=np.zeros(1, np.uint16),
        outlier_values=np.zeros(1, np.float32),
        segment_rows=segment_rows,
        n_segments=n_segments,
        largest=0.0,
    )


def saves_bytes(depth: int, columns: int, bits: int) -> bool:
    """Whether a matrix of this shape is smaller in codes than in float32."""
    return coded_bytes(depth, columns, bits, 0.0) < 4 * depth * columns


def coded_bytes(depth: int, columns: int, bits: int, outlier_share: float) -> int:
    """Bytes that kernels read of a matrix of this shape with this share of outliers."""
    n_segments, segment_rows, width = _cut(depth, columns)
    planes = bits * _plane_bytes(n_segments * segment_rows, width)
    outliers = ceil(depth * columns * outlier_share) * (2 + 4) + 4 * (n_segments * width // GROUP_COLUMNS + 1)
    return planes + outliers + _TABLE_BYTES


def _cut(depth: int, columns: int) -> tuple[int, int, int]:
    """(segments, rows of each, columns with their padding)."""
    n_segments = -(-depth // MAX_ROWS)
    return n_segments, _up(-(-depth // n_segments), GROUP_ROWS), _up(columns, GROUP_COLUMNS)


def _plane_bytes(rows: int, width: int) -> int:
    n_bytes, groups = rows * width // 8, rows // GROUP_ROWS
    is_apart = n_bytes >= _APART_BYTES and n_bytes % _PAGE_BYTES == 0
    return n_bytes + PLANE_GROUP_BYTES * min(_APART_GROUPS, groups - 1) * is_apart


def _largest(
    codebook: Float32[np.ndarray, " levels"], outliers: Float32[np.ndarray, " outliers"], n: int
) -> float:
    """The largest centroid, or a larger value if too many outliers would exceed it: each such outlier costs
    time. The largest outlier if all centroids are 0.
    """
    top = float(np.abs(codebook).max())
    if top == 0:
        return float(np.abs(outliers).max(initial=0.0))
    allowed = n // _BEYOND
    if outliers.size <= allowed:
        return top
    kept = float(np.partition(np.abs(outliers), outliers.size - 1 - allowed)[outliers.size - 1 - allowed])
    return min(max(kept, top), _HEADROOM * top)


def _up(n: int, by: int) -> int:
    return -(-n // by) * by
