"""The activations of one submodel in one block of memory. Knows their shapes and lifetimes, no kernels."""

from dataclasses import dataclass

import numpy as np

from pliant.compile.kernels import Precise
from pliant.compile.place import Lifetime, place
from pliant.models.slices import SliceGeometry


@dataclass(frozen=True, slots=True)
class Arena:
    """The activations of one submodel at up to `tokens` rows; every array is float32 [tokens, columns].

    `hidden` enters and leaves a layer; `qkv` and `ffn` never live together and share their bytes.
    `quantized` (int16) and `scales` (float32, one a row) exist for int8 compute only.
    """

    tokens: int
    hidden: np.ndarray
    qkv: np.ndarray
    attended: np.ndarray
    normed: np.ndarray
    ffn: np.ndarray
    n_bytes: int
    quantized: np.ndarray | None = None
    scales: np.ndarray | None = None


def make_arena(geometry: SliceGeometry, width: int, tokens: int, compute: Precise = "fp32") -> Arena:
    """One zeroed block for all activations of `width` slices, placed by lifetime over a layer's steps."""
    columns = (
        geometry.hidden,
        width * 3 * geometry.head_dim,
        width * geometry.head_dim,
        geometry.hidden,
        width * geometry.slice_ffn,
    )
    lives = ((0, 6), (0, 1), (1, 2), (2, 6), (4, 5))
    placed = place([Lifetime(4 * tokens * n, *life) for n, life in zip(columns, lives, strict=True)])
    block = np.zeros(placed.n_bytes + 64, np.uint8)
    start = -block.ctypes.data % 64
    views = [
        block[start + at : start + at + 4 * tokens * n].view(np.float32).reshape(tokens, n)
        for at, n in zip(placed.offsets, columns, strict=True)
    ]
    hidden, qkv, attended, normed, ffn = views
    if compute == "fp32":
        return Arena(tokens, hidden, qkv, attended, normed, ffn, placed.n_bytes)
    quantized = np.zeros(tokens * max(columns), np.int16)
    scales = np.zeros(tokens, np.float32)
    n_bytes = placed.n_bytes + quantized.nbytes + scales.nbytes
    return Arena(tokens, hidden, qkv, attended, normed, ffn, n_bytes, quantized, scales)
