"""Cut a layer's six weight matrices into slices of groups (STI Table 1), and join them."""

from collections.abc import Mapping

import numpy as np

from pliant.arrays import Bool, Float32, Int, UInt8
from pliant.models.slice_shapes import (
    GROUP,
    GROUP_COLUMNS,
    GROUP_ROWS,
    MatrixGeometry,
    SliceGeometry,
    slice_geometry,
)
from pliant.models.spec import ModelSpec

LINEARS = ("query", "key", "value", "output", "up", "down")


def cut(
    spec: ModelSpec, layer: Mapping[str, Float32[np.ndarray, "out in"]]
) -> tuple[Float32[np.ndarray, "slices groups 32 16"], Bool[np.ndarray, "groups 32 16"]]:
    """All slices of a layer in group order, and a mask of the padding in a slice.

    `layer` maps each of LINEARS to its weight as [out, in]. Padding is 0 and lies at the same places
    in every slice.
    """
    geometry = slice_geometry(spec)
    slices = np.stack([_cut_slice(spec, geometry, layer, s) for s in range(spec.n_heads)])
    ones = {name: np.ones_like(layer[name]) for name in LINEARS}
    return slices, _cut_slice(spec, geometry, ones, 0) == 0


def join(
    spec: ModelSpec,
    slices: Float32[np.ndarray, "slices groups 32 16"] | UInt8[np.ndarray, "slices groups 32 16"],
) -> dict[str, np.ndarray]:
    """The layer's matrices as [out, in], without padding: the inverse of `cut`, for weights or codes."""
    geometry = slice_geometry(spec)
    d, f = spec.hidden, spec.ffn
    shapes = dict.fromkeys(LINEARS, (d, d)) | {"up": (f, d), "down": (d, f)}
    layer = {name: np.empty(shape, slices.dtype) for name, shape in shapes.items()}
    for s in range(spec.n_heads):
        qkv, output, up, down = (from_groups(m, slices[s]) for m in geometry.matrices)
        head, neurons = _ranges(spec, s)
        for i, name in enumerate(("query", "key", "value")):
            columns = slice(i * geometry.head_dim, i * geometry.head_dim + spec.head_dim)
            layer[name][head] = qkv[:d, columns].T
        layer["output"][:, head] = output[: spec.head_dim, :d].T
        layer["up"][neurons] = up[:d, : spec.slice_ffn].T
        layer["down"][:, neurons] = down[: spec.slice_ffn, :d].T
    return layer


def locate_weights(
    spec: ModelSpec, places: Int[np.ndarray, " places"]
) -> dict[str, tuple[Int[np.ndarray, " some"], Int[np.ndarray, " some"], Int[np.ndarray, " some"]]]:
    """For each matrix of a layer: which of `places` lie in it, and their rows and columns [out, in].

    A place is an index into the weights of all slices in group order, as `cut` makes them; padding belongs to
    no matrix.
    """
    geometry = slice_geometry(spec)
    s, place = np.divmod(places, geometry.groups * GROUP)
    group, inside = np.divmod(place, GROUP)
    found = {}
    for m in geometry.matrices:
        column_group, row_group = np.divmod(group - m.first_group, m.row_groups)
        k = row_group * GROUP_ROWS + inside // GROUP_COLUMNS
        n = column_group * GROUP_COLUMNS + inside % GROUP_COLUMNS
        is_mine = (group >= m.first_group) & (group < m.first_group + m.groups)
        if m.name == "qkv":
            which, n = np.divmod(n, geometry.head_dim)
            is_mine &= (n < spec.head_dim) & (k < spec.hidden)
            for i, name in enumerate(("query", "key", "value")):
                mine = np.flatnonzero(is_mine & (which == i))
                found[name] = mine, (s * spec.head_dim + n)[mine], k[mine]
        elif m.name == "up":
            mine = np.flatnonzero(is_mine & (n < spec.slice_ffn) & (k < spec.hidden))
            found["up"] = mine, (s * spec.slice_ffn + n)[mine], k[mine]
        else:
            width = spec.head_dim if m.name == "output" else spec.slice_ffn
            mine = np.flatnonzero(is_mine & (k < width) & (n < spec.hidden))
            found[m.name] = mine, n[mine], (s * width + k)[mine]
    return found


def to_groups(matrix: Float32[np.ndarray, "rows columns"]) -> Float32[np.ndarray, "groups 32 16"]:
    """A padded [K, N] matrix as groups: column group by column group, each with its row groups in order."""
    rows, columns = matrix.shape
    blocks = matrix.reshape(rows // GROUP_ROWS, GROUP_ROWS, columns // GROUP_COLUMNS, GROUP_COLUMNS)
    return blocks.transpose(2, 0, 1, 3).reshape(-1, GROUP_ROWS, GROUP_COLUMNS)


def from_groups(
    m: MatrixGeometry, groups: Float32[np.ndarray, "groups 32 16"] | UInt8[np.ndarray, "groups 32 16"]
) -> np.ndarray:
    """Matrix `m` of a slice, padded, as [K, N]."""
    mine = groups[m.first_group : m.first_group + m.groups]
    blocks = mine.reshape(m.column_groups, m.row_groups, GROUP_ROWS, GROUP_COLUMNS)
    return blocks.transpose(1, 2, 0, 3).reshape(m.rows, m.columns)


def column_group_starts(geometry: SliceGeometry) -> list[int]:
    """The start of each column group, in weights from the slice's start; the last entry is the slice's
    size.
    """
    starts = [
        m.first_group * GROUP + c * m.rows * GROUP_COLUMNS
        for m in geometry.matrices
        for c in range(m.column_groups)
    ]
    return [*starts, geometry.groups * GROUP]


def _cut_slice(
    spec: ModelSpec, geometry: SliceGeometry, layer: Mapping[str, np.ndarray], s: int
) -> Float32[np.ndarray, "groups 32 16"]:
    head, neurons = _ranges(spec, s)
    d, h, f = geometry.hidden, geometry.head_dim, geometry.slice_ffn
    qkv = np.concatenate([_padded(layer[n][head].T, d, h) for n in ("query", "key", "value")], axis=1)
    output = _padded(layer["output"][:, head].T, h, d)
    up = _padded(layer["up"][neurons].T, d, f)
    down = _padded(layer["down"][:, neurons].T, f, d)
    return np.concatenate([to_groups(m) for m in (qkv, output, up, down)])


def _ranges(spec: ModelSpec, s: int) -> tuple[slice, slice]:
    """The rows of the head and of the FFN neurons in slice `s`."""
    h, f = spec.head_dim, spec.slice_ffn
    return slice(s * h, (s + 1) * h), slice(s * f, (s + 1) * f)


def _padded(matrix: np.ndarray, rows: int, columns: int) -> Float32[np.ndarray, "rows columns"]:
    out = np.zeros((rows, columns), np.float32)
    out[: matrix.shape[0], : matrix.shape[1]] = matrix
    return out
