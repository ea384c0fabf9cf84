"""Choose the planes kept in memory before a run (STI 5.4, "preload")."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Literal

import numpy as np

from pliant.arrays import Int
from pliant.ir.bitwidths import FULL_BITS, LOWEST_BITS
from pliant.plan.submodel.shape import StoreShape

# "first": in one fixed order, by what most submodels read first (`hold_in_order`). "shards": whole shards of
# one bitwidth, bottom layer first (the paper's). "planes": the same, plane by plane within a layer. "base":
# the lowest planes of all layers first.
PreloadRule = Literal["first", "shards", "planes", "base"]
FixedRule = Literal["shards", "planes", "base"]  # the rules that do not depend on the bits


def preload(
    shape: StoreShape, n: int, m: int, n_bytes: int, rule: FixedRule, bits: int
) -> Int[np.ndarray, "n m"]:
    """Return the planes of each shard of an n x m submodel that `n_bytes` hold: 0..6, or 32 (full fidelity).

    `shards`: whole shards of `bits` bits, bottom layer first (the paper's).
    `planes`: the same, but the rest of the buffer takes the low planes of the next shards.
    `base`: the lowest planes of every layer first, so that no layer waits for IO; then as `planes`.
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
        for plane in range(min(bits, shape.planes)):
            left = _add_plane(row, plane, left, shape.plane_bytes)
    return np.array(rows, dtype=np.int64)


def hold_in_order(
    shape: StoreShape, n: int, m: int, n_bytes: int, *, seek: float, later: float = 0.0, wider: float = 0.0
) -> Int[np.ndarray, "n m"]:
    """Return the first `n_bytes` of n x m shards in a fixed order: a larger buffer includes a smaller one.

    The lowest planes of every layer come first, then plane by plane, bottom layer first, then full fidelity.
    Layers above the first come `later` planes later, slices beyond the narrowest width `wider` planes later.
    `seek` is the latency of a read in planes. A gap in the reads costs one more read, so the first planes of
    a layer are added in groups worth a read, and the others where they leave no further gap. In anytime
    plans, more planes in memory therefore make no read slower.
    """
    rows = [[0] * m for _ in range(n)]
    left = n_bytes
    for k, s, bits, price in _priced_order(shape, n, m, max(1, ceil(seek)), later, wider):
        if price > left:
            break
        left -= price
        rows[k][s] = bits
    return np.array(rows, dtype=np.int64)


@lru_cache(maxsize=256)
def _priced_order(
    shape: StoreShape, n: int, m: int, together: int, later: float, wider: float
) -> tuple[tuple[int, int, int, int], ...]:
    """Return the order of additions: a layer, a slice, its new number of planes, the bytes that must be left.

    Of planes added together, the first has the bytes of all, the others 0.
    """
    has = [[0] * m for _ in range(n)]
    priced = []
    for k, more in _order(shape, n, m, together, later, wider):
        price = 0
        for s, bits in more:
            price += _held_bytes(shape, bits) - _held_bytes(shape, has[k][s])
            has[k][s] = bits
        for s, bits in more:
            priced.append((k, s, bits, price))
            price = 0
    return tuple(priced)


def _order(
    shape: StoreShape, n: int, m: int, together: int, later: float, wider: float
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield the additions to the buffer in order: a layer, and its slices' new numbers of planes."""
    steps = sorted(
        (plane + later * (k > 0) + wider * is_wide, k, is_wide, plane)
        for plane in range(LOWEST_BITS - 1, shape.planes)
        for is_wide in (False, True)
        for k in range(n)
    )
    narrow, places = min(shape.widths[0], m), shape.places
    for _, k, is_wide, plane in steps:
        if plane < LOWEST_BITS:
            edges = sorted({narrow, m, *(w for w in shape.widths if w < m)}) if is_wide else [0, narrow]
            for a, b in pairwise(edges):
                base = [(s, planes) for planes in range(1, LOWEST_BITS + 1) for s in range(a, b)]
                first = 1 if is_wide else together
                yield k, base[:first]
                for s, planes in base[first:]:
                    yield k, [(s, planes)]
        elif is_wide:
            for s in sorted(range(narrow, m), key=lambda s: places[plane][s]):
                yield k, [(s, plane + 1)]
        else:  # the last plane is first in the file
            for s in reversed(range(narrow)):
                yield k, [(s, plane + 1)]
    for k in range(n if shape.has_full else 0):
        for s in range(m):
            yield k, [(s, FULL_BITS)]


def _held_bytes(shape: StoreShape, planes: int) -> int:
    return shape.shard_bytes(planes) if planes else 0


def held_bytes(shape: StoreShape, held: Int[np.ndarray, "..."]) -> int:
    """Return the bytes of `held` in memory."""
    n_full = int((held == FULL_BITS).sum())
    n_planes = int(held.sum()) - FULL_BITS * n_full
    return n_full * shape.full_bytes + n_planes * shape.plane_bytes


def _add_plane(row: list[int], plane: int, left: int, price: int) -> int:
    """Add a plane to shards of `row` with `plane` planes while `left` bytes last; return the rest."""
    if left < price:
        return left
    for s, planes in enumerate(row):
        if planes == plane and left >= price:
            row[s] = plane + 1
            left -= price
    return left


def _complete(row: list[int], left: int, shape: StoreShape) -> int:
    """Give shards of `row` full fidelity while `left` bytes last; this frees their planes."""
    for s, planes in enumerate(row):
        price = shape.full_bytes - planes * shape.plane_bytes
        if price > left:
            break
        left -= price
        row[s] = FULL_BITS
    return left
