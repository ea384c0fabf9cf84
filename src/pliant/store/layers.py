"""A layer of a store as matrices: in float32 at any of its bitwidths, or in its codes."""

from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float32, UInt8
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.program import FULL, SliceRun
from pliant.models.encoder.encoder_source import MatrixCodes
from pliant.models.slice_shapes import GROUP, GROUP_COLUMNS, GROUP_ROWS
from pliant.models.spec import Precision
from pliant.store.coding.cut_slices import column_group_starts, join, locate_weights
from pliant.store.coding.encode_layer import ResidentLayer
from pliant.store.coding.planes import decode, unpack_planes
from pliant.store.read import Store
from pliant.store.store_files import DenseTable, LinearWeights

Norm = Float32[np.ndarray, "2 hidden"]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One encoder layer without padding: linears as [out, in], norms as [weight, bias]."""

    query: LinearWeights
    key: LinearWeights
    value: LinearWeights
    output: LinearWeights
    up: LinearWeights
    down: LinearWeights
    attention_norm: Norm
    output_norm: Norm


def layer_weights(store: Store, layer: int, bits: int) -> LayerWeights:
    """All slices of `layer` at 1..6 bits, outliers in place, or at full fidelity (32).

    Raises StoreError when a shard is damaged or not offered at `bits`.
    """
    matrices, vectors = layer_matrices(store, layer, bits), layer_vectors(store, layer)
    return LayerWeights(
        **{name: LinearWeights(matrix, vectors[name]) for name, matrix in matrices.items()},
        attention_norm=vectors["attention_norm"],
        output_norm=vectors["output_norm"],
    )


def layer_matrices(store: Store, layer: int, bits: int) -> dict[str, Float32[np.ndarray, "out in"]]:
    """The matrices of `layer` by name: `query`, ... `down`. Raises StoreError as `layer_weights` does."""
    return join(store.spec, _full(store, layer) if bits == FULL_BITS else _coded(store, layer, bits))


def layer_vectors(store: Store, layer: int) -> dict[str, Float32[np.ndarray, "..."]]:
    """The vectors of `layer` by name: each linear's bias, each norm's [weight, bias]."""
    spec, resident = store.spec, store.resident(layer)
    d, dh, ffn = spec.hidden, spec.head_dim, spec.slice_ffn
    parts = resident.qkv_bias.reshape(spec.n_heads, 3, -1)[:, :, :dh]
    found = {name: parts[:, i].reshape(-1) for i, name in enumerate(("query", "key", "value"))}
    found |= {"output": resident.output_bias[:d], "down": resident.down_bias[:d]}
    found["up"] = resident.up_bias[:, :ffn].reshape(-1)
    found |= {"attention_norm": resident.attention_norm[:, :d], "output_norm": resident.output_norm[:, :d]}
    return found


def layer_codes(store: Store, layer: int) -> dict[str, MatrixCodes]:
    """The six matrices of `layer` in as many bits as the store offers, by name: `query`, ... `down`.

    Raises StoreError when a shard is damaged.
    """
    bits, n_slices, resident = store.manifest.most_planes, store.spec.n_heads, store.resident(layer)
    planes = np.stack([_read(store, SliceRun(layer, plane, 0, n_slices)) for plane in range(bits)])
    codes = unpack_planes(planes.reshape(bits, -1, 64)).reshape(n_slices, -1, GROUP_ROWS, GROUP_COLUMNS)
    places = locate_weights(store.spec, _outlier_places(store, resident))
    found = {}
    for name, matrix in join(store.spec, codes).items():
        mine, rows, columns = places[name]
        found[name] = MatrixCodes(
            bits, matrix, resident.codebooks, rows, columns, resident.outlier_values[mine]
        )
    return found


def _full(store: Store, layer: int) -> Float32[np.ndarray, "slices groups 32 16"]:
    raw = _read(store, SliceRun(layer, FULL, 0, store.spec.n_heads))
    types: dict[Precision, str] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    table = DenseTable(store.spec.precision, raw.view(types[store.spec.precision])[None])
    return table.decode(np.zeros(1, np.int64)).reshape(store.spec.n_heads, -1, GROUP_ROWS, GROUP_COLUMNS)


def _coded(store: Store, layer: int, bits: int) -> Float32[np.ndarray, "slices groups 32 16"]:
    n_slices, resident = store.spec.n_heads, store.resident(layer)
    planes = [_read(store, SliceRun(layer, plane, 0, n_slices)) for plane in range(bits)]
    values = decode(np.stack(planes).reshape(bits, -1, 64), resident.codebooks[bits]).reshape(-1)
    values[_outlier_places(store, resident)] = resident.outlier_values
    return values.reshape(n_slices, -1, GROUP_ROWS, GROUP_COLUMNS)


def _outlier_places(store: Store, resident: ResidentLayer) -> np.ndarray:
    """The place of each outlier among the weights of all slices, in the order of `outlier_values`."""
    starts = np.array(column_group_starts(store.geometry)[:-1])
    first = np.arange(store.spec.n_heads)[:, None] * store.geometry.groups * GROUP + starts
    rows = resident.outlier_rows.astype(np.int64)
    counts = rows[:, 1:] - rows[:, :-1]
    places: np.ndarray = np.repeat(first.reshape(-1), counts.reshape(-1)) + resident.outlier_offsets
    return places


def _read(store: Store, run: SliceRun) -> UInt8[np.ndarray, " n"]:
    payload = np.empty(store.run_bytes(run), np.uint8)
    store.read(run, payload)
    return payload
