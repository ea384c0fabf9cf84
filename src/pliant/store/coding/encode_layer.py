"""Encode one layer for the store: planes, full fidelity, outliers, codebooks.

A layer's resident part is everything but planes and full fidelity.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float32, UInt8, UInt16, UInt32
from pliant.errors import StoreError
from pliant.ir.bitwidths import PLANES
from pliant.models.slice_shapes import GROUP_COLUMNS, GROUP_ROWS, SliceGeometry, slice_geometry
from pliant.models.spec import ModelSpec, Precision
from pliant.store.coding.cut_slices import LINEARS, column_group_starts, cut
from pliant.store.coding.planes import pack_planes
from pliant.store.coding.quantize import QuantizedWeights, Quantizer, fit, to_bfloat16

MAX_ROWS = (1 << 16) // GROUP_COLUMNS  # an outlier's offset is 16 bits: row * 16 + column


@dataclass(frozen=True, slots=True)
class ResidentLayer:
    """The part of a layer that stays in memory, in the kernels' padded layout.

    `codebooks[k]` has 2**k values. `outlier_rows[s, c]` to `outlier_rows[s, c + 1]` are the places, in
    `outlier_offsets` and `outlier_values`, of the outliers of slice s's column group c (counted over its
    four matrices); an offset is row of the matrix * 16 + column of the group, ascending. Padding weights are
    stored as outliers of value 0, so that they decode to exactly 0. `qkv_bias` has per slice
    [query|key|value], each padded; norms are [weight, bias]. Padded entries of biases and norms are 0.
    """

    codebooks: Mapping[int, Float32[np.ndarray, " levels"]]
    outlier_rows: UInt32[np.ndarray, "slices column_groups_1"]
    outlier_offsets: UInt16[np.ndarray, " outliers"]
    outlier_values: Float32[np.ndarray, " outliers"]
    qkv_bias: Float32[np.ndarray, "slices qkv"]
    output_bias: Float32[np.ndarray, " hidden"]
    up_bias: Float32[np.ndarray, "slices ffn"]
    down_bias: Float32[np.ndarray, " hidden"]
    attention_norm: Float32[np.ndarray, "2 hidden"]
    output_norm: Float32[np.ndarray, "2 hidden"]

    @property
    def n_bytes(self) -> int:
        arrays = [getattr(self, name) for name in RESIDENT_ARRAYS]
        return sum(int(a.nbytes) for a in (*arrays, *self.codebooks.values()))


RESIDENT_ARRAYS = tuple(n for n in ResidentLayer.__dataclass_fields__ if n != "codebooks")


@dataclass(frozen=True, slots=True)
class EncodedLayer:
    """One layer as stored: its six planes, its full fidelity, its resident part, and its errors."""

    planes: UInt8[np.ndarray, "6 slices plane_bytes"]
    full: UInt8[np.ndarray, "slices full_bytes"]
    resident: ResidentLayer
    mean: float
    std: float
    n_weights: int
    n_outliers: int
    error: tuple[float, ...]


def encode_layer(
    spec: ModelSpec, layer: Mapping[str, Float32[np.ndarray, "..."]], quantizer: Quantizer
) -> EncodedLayer:
    """Quantize and pack one layer.

    `layer` maps `query.weight`, `query.bias`, ... `output_norm.bias` to float32 arrays, linears [out, in].
    Raises StoreError when the weights are not exact in the checkpoint's precision or a matrix is too tall.
    """
    geometry = slice_geometry(spec)
    tallest = max(m.rows for m in geometry.matrices)
    if tallest > MAX_ROWS:
        raise StoreError(f"a matrix of {tallest} input rows is more than the format's {MAX_ROWS}.")
    slices, is_padding = cut(spec, {name: layer[name + ".weight"] for name in LINEARS})
    weights = slices[:, ~is_padding]
    fitted = fit(weights.ravel(), quantizer)
    codes = np.empty(slices.shape, np.uint8)
    codes[:, ~is_padding] = fitted.codes.reshape(weights.shape)
    is_kept = np.empty(slices.shape, bool)
    is_kept[:, ~is_padding] = fitted.is_outlier.reshape(weights.shape)
    is_kept[:, is_padding] = True
    # A kernel that decodes in registers adds an outlier as its difference from the decoded value in its
    # place, which must be known without reading the planes again.
    codes[is_kept] = 0
    planes = pack_planes(codes.reshape(-1, GROUP_ROWS, GROUP_COLUMNS))
    return EncodedLayer(
        planes.reshape(PLANES, spec.n_heads, geometry.plane_bytes),
        to_precision(slices, spec.precision).reshape(spec.n_heads, -1).view(np.uint8),
        _resident(spec, geometry, layer, fitted, slices, is_kept),
        fitted.code.mean,
        fitted.code.std,
        weights.size,
        int(np.count_nonzero(fitted.is_outlier)),
        relative_errors(weights.ravel(), fitted),
    )


def relative_errors(weights: Float32[np.ndarray, " n"], fitted: QuantizedWeights) -> tuple[float, ...]:
    """For k = 1..6, the squared error of the k-bit version over the weights' sum of squared deviations."""
    spread = float(weights.var(dtype=np.float64)) * weights.size
    inliers, codes = weights[~fitted.is_outlier], fitted.codes[~fitted.is_outlier]
    errors = []
    for k in range(1, PLANES + 1):
        miss = inliers - fitted.code.codebooks[k][codes >> (PLANES - k)]
        errors.append(float(np.square(miss, dtype=np.float64).sum()) / spread if spread else 0.0)
    return tuple(errors)


def to_precision(values: Float32[np.ndarray, "..."], precision: Precision) -> np.ndarray:
    """The same values in the checkpoint's own precision (BF16 as raw uint16); StoreError if not exact."""
    match precision:
        case "F32":
            return values
        case "F16":
            half = values.astype(np.float16)
            exact = np.array_equal(half.astype(np.float32), values)
            narrow: np.ndarray = half
        case "BF16":
            exact = np.array_equal(to_bfloat16(values), values)
            narrow = (values.view(np.uint32) >> 16).astype(np.uint16)
    if not exact:
        raise StoreError(f"a weight is not exact in {precision}, the precision that the checkpoint names.")
    return narrow


def _resident(
    spec: ModelSpec,
    geometry: SliceGeometry,
    layer: Mapping[str, np.ndarray],
    fitted: QuantizedWeights,
    slices: Float32[np.ndarray, "slices groups 32 16"],
    is_kept: np.ndarray,
) -> ResidentLayer:
    size = slices[0].size
    starts = np.array(column_group_starts(geometry))
    places = np.flatnonzero(is_kept)
    bounds = np.arange(spec.n_heads)[:, None] * size + starts
    column_group = np.searchsorted(starts, places % size, side="right") - 1
    d = geometry.hidden
    biases = [layer[n + ".bias"].reshape(spec.n_heads, -1) for n in ("query", "key", "value")]
    return ResidentLayer(
        codebooks=fitted.code.codebooks,
        outlier_rows=np.searchsorted(places, bounds).astype(np.uint32),
        outlier_offsets=(places % size - starts[column_group]).astype(np.uint16),
        outlier_values=slices.reshape(-1)[places],
        qkv_bias=np.concatenate([_pad_last(b, geometry.head_dim) for b in biases], axis=1),
        output_bias=_pad_last(layer["output.bias"], d),
        up_bias=_pad_last(layer["up.bias"].reshape(spec.n_heads, -1), geometry.slice_ffn),
        down_bias=_pad_last(layer["down.bias"], d),
        attention_norm=_norm(layer, "attention_norm", d),
        output_norm=_norm(layer, "output_norm", d),
    )


def _norm(layer: Mapping[str, np.ndarray], name: str, d: int) -> Float32[np.ndarray, "2 hidden"]:
    return _pad_last(np.stack([layer[name + ".weight"], layer[name + ".bias"]]), d)


def _pad_last(array: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros((*array.shape[:-1], size), np.float32)
    out[..., : array.shape[-1]] = array
    return out
