"""Which planes to keep in memory before a run (STI 5.4, "preload"). Knows sizes, nothing of times."""

from typing import Literal

import numpy as np
from jaxtyping import Int

from pliant.plan.shape import FULL_BITS, LOWEST_BITS, PLANES, StoreShape

PreloadRule = Literal["shards", "planes", "base"]


def preload(
    shape: StoreShape, n: int, m: int, n_bytes: int, rule: PreloadRule, bits: int
) -> Int[np.ndarray, "n m"]:
    """Planes of each shard of an n x m submodel that `n_bytes` hold: 0..6, or 32 for full fidelity.

    `shards`: whole shards of `bits` bits, bottom layer first (the paper's).
    `planes`: the same, but what is left of the buffer takes the low planes of the next shards.
    `base`: the lowest planes of every layer first, so that no layer has to wait for IO; then as `planes`.
    """
    held = np.zeros((n, m), dtype=np.int64)
    if rule == "shards":
        count = min(n * m, n_bytes // shape.shard_bytes(bits))
        held.reshape(-1)[:count] = bits
        return held
    left = n_bytes
    if rule == "base":
        for plane in range(LOWEST_BITS):
            left = _raise(held, slice(None), plane, plane + 1, left, shape.plane_bytes)
    for k in range(n):
        if bits == FULL_BITS:
            # A shard's planes are of no use beside its full fidelity, so they make room for it.
            rows = held[k]
            for s in range(m):
                price = shape.full_bytes - int(rows[s]) * shape.plane_bytes
                if price > left:
                    break
                left -= price
                rows[s] = FULL_BITS
        for plane in range(PLANES if bits == FULL_BITS else bits):
            left = _raise(held, slice(k, k + 1), plane, plane + 1, left, shape.plane_bytes)
    return held


def held_bytes(shape: StoreShape, held: Int[np.ndarray, "n m"]) -> int:
    """Bytes that `held` takes in memory."""
    n_full = int((held == FULL_BITS).sum())
    n_planes = int(held.sum()) - FULL_BITS * n_full
    return n_full * shape.full_bytes + n_planes * shape.plane_bytes


def _raise(held: np.ndarray, rows: slice, old: int, new: int, left: int, price: int) -> int:
    """Raise shards of `rows` from `old` to `new` planes while `left` bytes last; returns what is left."""
    part = held[rows]
    at = np.argwhere(part == old)[: max(left, 0) // price]
    part[tuple(at.T)] = new
    return left - len(at) * price
