"""Which planes to keep in memory before a run (STI 5.4, "preload"). Knows sizes, nothing of times."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from pliant.arrays import Int
from pliant.ir.program import FULL
from pliant.plan.load import LayerLoad
from pliant.plan.shape import FULL_BITS, LOWEST_BITS, PLANES, StoreShape

# "first": what the chosen bits read first. "shards": whole shards of one bitwidth, bottom layer first (the
# paper's). "planes": the same, plane by plane within a layer. "base": the lowest planes of all layers first.
PreloadRule = Literal["first", "shards", "planes", "base"]
FixedRule = Literal["shards", "planes", "base"]  # those that need not know the bits


def preload(
    shape: StoreShape, n: int, m: int, n_bytes: int, rule: FixedRule, bits: int
) -> Int[np.ndarray, "n m"]:
    """Planes of each shard of an n x m submodel that `n_bytes` hold: 0..6, or 32 for full fidelity.

    `shards`: whole shards of `bits` bits, bottom layer first (the paper's).
    `planes`: the same, but what is left of the buffer takes the low planes of the next shards.
    `base`: the lowest planes of every layer first, so that no layer has to wait for IO; then as `planes`.
    """
    if rule == "shards":
        held = np.zeros((n, m), dtype=np.int64)
        held.reshape(-1)[: n_bytes // shape.shard_bytes(bits)] = bits
        return held
    rows = [[0] * m for _ in range(n)]
    left = n_bytes
    if rule == "base":
        for plane in range(LOWEST_BITS):
            for row in rows:
                left = _add_plane(row, plane, left, shape.plane_bytes)
    for row in rows:
        if left < shape.plane_bytes:
            break
        if bits == FULL_BITS:
            left = _complete(row, left, shape)
        for plane in range(min(bits, PLANES)):
            left = _add_plane(row, plane, left, shape.plane_bytes)
    return np.array(rows, dtype=np.int64)


def hold_first(
    shape: StoreShape,
    held: Int[np.ndarray, "n m"],
    need: Sequence[Sequence[int]],
    n_bytes: int,
) -> Int[np.ndarray, "n m"]:
    """`held` and the first `n_bytes` of what is read beside it, in the order in which it is read.

    `need[k][part]` is a bit mask over the slices of layer k, as a ledger keeps it. Full fidelity that
    does not fit is passed over.
    """
    rows = held.tolist()
    left = n_bytes
    for row, parts in zip(rows, need, strict=True):
        for part, mask in enumerate(parts):
            if left < shape.plane_bytes:
                return np.array(rows, dtype=np.int64)
            for s in range(len(row)):
                if not mask >> s & 1 or row[s] == FULL_BITS:
                    continue
                price = shape.plane_bytes if part < FULL else shape.full_bytes - row[s] * shape.plane_bytes
                if price <= left and (part == FULL or row[s] == part):
                    row[s] = FULL_BITS if part == FULL else part + 1
                    left -= price
    return np.array(rows, dtype=np.int64)


def hold_loads(
    shape: StoreShape, held: Int[np.ndarray, "N M"], loads: Sequence[LayerLoad], n_bytes: int
) -> Int[np.ndarray, "N M"]:
    """`held`, of a whole model, and as much of what `loads` read as makes it `n_bytes` in all.

    In the order in which it is read: what comes first serves all layers that come after it.
    """
    need = [[0] * (FULL + 1) for _ in range(shape.n_layers)]
    for run in (run for load in loads for run in load.runs):
        need[run.layer][run.part] |= ((1 << run.count) - 1) << run.first
    return hold_first(shape, held, need, n_bytes - held_bytes(shape, held))


def hold_rest(shape: StoreShape, held: Int[np.ndarray, "N M"], n_bytes: int) -> Int[np.ndarray, "N M"]:
    """`held`, of a whole model, and as much of the rest of the model as makes it `n_bytes` in all.

    The lowest planes of every layer first, which any submodel runs with; then all planes, then full fidelity.
    """
    every = (1 << shape.n_slices) - 1
    for parts in (range(LOWEST_BITS), range(LOWEST_BITS, PLANES), range(FULL, FULL + 1)):
        need = [[every * (part in parts) for part in range(FULL + 1)]] * shape.n_layers
        held = hold_first(shape, held, need, n_bytes - held_bytes(shape, held))
    return held


def held_bytes(shape: StoreShape, held: Int[np.ndarray, "..."]) -> int:
    """Bytes that `held` takes in memory."""
    n_full = int((held == FULL_BITS).sum())
    n_planes = int(held.sum()) - FULL_BITS * n_full
    return n_full * shape.full_bytes + n_planes * shape.plane_bytes


def _add_plane(row: list[int], plane: int, left: int, price: int) -> int:
    """Give shards of `row` with `plane` planes one more while `left` bytes last; returns what is left."""
    if left < price:
        return left
    for s, planes in enumerate(row):
        if planes == plane and left >= price:
            row[s] = plane + 1
            left -= price
    return left


def _complete(row: list[int], left: int, shape: StoreShape) -> int:
    """Give shards of `row` full fidelity while `left` bytes last; their planes, of no more use, make room."""
    for s, planes in enumerate(row):
        price = shape.full_bytes - planes * shape.plane_bytes
        if price > left:
            break
        left -= price
        row[s] = FULL_BITS
    return left
