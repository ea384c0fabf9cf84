"""One matrix alone in k-bit codes: planes, codebook, outliers, as kernels read them.

The quantizer is the store's, with one matrix where the store has a layer: an ONNX graph has no layers, and
a code of its own fits each matrix at least as well as one shared by all.
"""

from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float32, UInt8, UInt16, UInt32
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.models.slice_shapes import GROUP_COLUMNS, GROUP_ROWS
from pliant.store.coding.encode_layer import MAX_ROWS
from pliant.store.coding.planes import pack_planes
from pliant.store.coding.quantize import fit

_BEYOND = 2048
"""One weight in so many may be larger than the largest integer of the int8 form, which adds it as a float."""
_HEADROOM = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class CodedMatrix:
    """A [K, N] matrix, zero-padded to whole groups of 32 rows by 16 columns.

    K is cut into `n_segments` of `segment_rows`, as an outlier's offset is 16 bits: row of the segment * 16 +
    column of the group, ascending. Groups stand by segment, column group, row. A weight is
    `codebook[its planes' code]`, or where it is an outlier its exact value: those of column group c of
    segment s stand at `outlier_rows[s * column groups + c]` up to the next. What padding decodes to has no
    meaning.
    `largest` is the magnitude that takes all steps of a byte where the weights become int8.
    """

    planes: UInt8[np.ndarray, "bits plane_bytes"]
    codebook: Float32[np.ndarray, " levels"]
    outlier_rows: UInt32[np.ndarray, " segments_column_groups_1"]
    outlier_offsets: UInt16[np.ndarray, " outliers"]
    outlier_values: Float32[np.ndarray, " outliers"]
    segment_rows: int
    n_segments: int
    largest: float


def code_matrix(matrix: Float32[np.ndarray, "K N"], bits: int) -> CodedMatrix:
    """Quantize a matrix to `bits` of the store's code. Raises StoreError where a value is not finite."""
    depth, columns = matrix.shape
    fitted = fit(np.ascontiguousarray(matrix).reshape(-1))
    is_outlier = fitted.is_outlier.reshape(depth, columns)
    # As in the store: what an outlier's place decodes to must be known without reading the planes.
    codes = fitted.codes.reshape(depth, columns)
    codes[is_outlier] = 0
    n_segments = -(-depth // MAX_ROWS)
    segment_rows = _up(-(-depth // n_segments), GROUP_ROWS)
    rows, width = n_segments * segment_rows, _up(columns, GROUP_COLUMNS)
    if codes.shape != (rows, width):
        codes = np.pad(codes, ((0, rows - depth), (0, width - columns)))
    shape = (n_segments, segment_rows // GROUP_ROWS, GROUP_ROWS, width // GROUP_COLUMNS, GROUP_COLUMNS)
    groups = codes.reshape(shape).transpose(0, 3, 1, 2, 4).reshape(-1, GROUP_ROWS, GROUP_COLUMNS)
    planes = pack_planes(groups)[:bits].reshape(bits, -1)
    aligned = aligned_bytes(planes.size).reshape(planes.shape)
    aligned[:] = planes
    row, column = np.nonzero(is_outlier)
    place = row // segment_rows * (width // GROUP_COLUMNS) + column // GROUP_COLUMNS
    offset = row % segment_rows * GROUP_COLUMNS + column % GROUP_COLUMNS
    order = np.lexsort((offset, place))
    codebook = fitted.code.codebooks[bits]
    return CodedMatrix(
        planes=aligned,
        codebook=codebook,
        outlier_rows=np.searchsorted(place[order], np.arange(n_segments * width // GROUP_COLUMNS + 1)).astype(
            np.uint32
        ),
        outlier_offsets=offset[order].astype(np.uint16),
        outlier_values=matrix[row[order], column[order]],
        segment_rows=segment_rows,
        n_segments=n_segments,
        largest=_largest(codebook, matrix[is_outlier], matrix.size),
    )


def _largest(
    codebook: Float32[np.ndarray, " levels"], outliers: Float32[np.ndarray, " outliers"], n: int
) -> float:
    """The largest centroid, or more where too many outliers would not fit: integers beyond take time."""
    top = float(np.abs(codebook).max())
    allowed = n // _BEYOND
    if outliers.size <= allowed:
        return top
    kept = float(np.partition(np.abs(outliers), outliers.size - 1 - allowed)[outliers.size - 1 - allowed])
    return min(max(kept, top), _HEADROOM * top)


def _up(n: int, by: int) -> int:
    return -(-n // by) * by
