"""Enumerate the partitions of a few devices, for a mode without a grid."""

from collections.abc import Iterator
from math import comb

import numpy as np

from pliant.arrays import Int
from pliant.plan.partition.pace import FlatMode, Plans
from pliant.plan.partition.partition_problem import Problem

MOST_PLANS = 6000
"""As many are priced in a few milliseconds."""


def n_plans(p: Problem, mode: FlatMode) -> int:
    """How many ways there are to share out heads, rows and, in the 1D-tiled mode, columns."""
    s = p.sizes
    totals = (s.n_heads, s.rows) + ((s.n_columns,) if mode == "1d" else ())
    n = 1
    for total in totals:
        n *= comb(total + p.n - 1, p.n - 1)
    return n


def all_plans(p: Problem, mode: FlatMode) -> Plans:
    """All of them, in order of heads, then rows, then columns."""
    s = p.sizes
    shares = [_all(s.n_heads, p.n), _all(s.rows, p.n)]
    shares.append(_all(s.n_columns, p.n) if mode == "1d" else np.zeros((1, p.n), dtype=np.int64))
    at = np.meshgrid(*(np.arange(len(x)) for x in shares), indexing="ij")
    return Plans(mode, *(share[i.ravel()] for share, i in zip(shares, at, strict=True)))


def _all(total: int, n: int) -> Int[np.ndarray, "ways devices"]:
    if n == 1:
        return np.array([[total]])
    if n == 2:
        first = np.arange(total + 1)
        return np.stack([first, total - first], axis=1)
    return np.array(list(_compositions(total, n)), dtype=np.int64)


def _compositions(total: int, n: int) -> Iterator[tuple[int, ...]]:
    if n == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, n - 1):
            yield (first, *rest)
