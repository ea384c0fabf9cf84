"""Better partitions by moving shares between two devices, judged by the true cost. Proves no optimum."""

from typing import TypeVar

import numpy as np

from pliant.arrays import Int
from pliant.plan.pace import Counts, GridPlans, Plans, seconds, together
from pliant.plan.partition_start import FEW as FEW
from pliant.plan.partition_start import with_heads
from pliant.plan.problem import Problem

Kind = TypeVar("Kind", Plans, GridPlans)
MOST = 200
"""Moves of one kind that are priced at a time."""


def search_heads(p: Problem, plan: Plans, plan_s: float, rounds: int) -> tuple[Plans, float]:
    """Move heads one at a time, rows and columns dealt out anew, while it helps and for `rounds` at most."""
    for _ in range(rounds):
        heads = moved(plan.heads[0], 1)
        if not len(heads):
            break
        plan, better_s = best(p, together([plan, with_heads(p, plan.mode, heads)]))
        if not better_s < plan_s * (1 - 1e-6):
            return plan, better_s
        plan_s = better_s
    return plan, plan_s


def polish(p: Problem, plan: Plans, plan_s: float, rounds: int) -> tuple[Plans, float]:
    """Take the best single move of heads, rows or columns while one helps, for `rounds` at most.

    Among few devices, where none helps several moves at once are tried.
    """
    for _ in range(rounds):
        near, better_s = best(p, _neighbours(plan))
        if not better_s < plan_s * (1 - 1e-6) and p.n <= FEW:
            near, better_s = best(p, together([plan, *_several_moves(plan)]))
        if not better_s < plan_s * (1 - 1e-6):
            break
        plan, plan_s = near, better_s
    return plan, plan_s


def best(p: Problem, plans: Kind) -> tuple[Kind, float]:
    """The quickest, of equals the first, and its seconds."""
    times = seconds(p, plans)
    i = int(np.argmin(times))
    return plans.take(int(i)), float(times[i])


def moved(share: Int[np.ndarray, " devices"], size: int | Int[np.ndarray, " devices"]) -> Counts:
    """The ways to take `size` (of each device its own) from one and give it to another; MOST at most."""
    sizes = np.broadcast_to(size, share.shape)
    src, dst = np.nonzero(((share >= sizes) & (sizes > 0))[:, None] & ~np.eye(len(share), dtype=bool))
    stride = -(-len(src) // MOST) or 1
    src, dst = src[::stride], dst[::stride]
    after = share[None].repeat(len(src), 0)
    after[np.arange(len(src)), src] -= sizes[src]
    after[np.arange(len(src)), dst] += sizes[src]
    return after


def _neighbours(plan: Plans) -> Plans:
    """The plan itself, then all plans one move away: a head, a row, a 64th of the columns or one.

    Between few devices more at once, and a device left out for another.
    """
    is_few = plan.heads.shape[1] <= FEW
    some = (1, 4, 16) if is_few else (1,)
    made = [plan]
    for axis, share in enumerate((plan.heads[0], plan.rows[0], plan.columns[0])):
        sizes = {*some, int(share.sum()) // 64} if axis == 2 else set(some) if axis else {1}
        made += [_with(plan, {axis: moved(share, size)}) for size in sorted(sizes - {0})]
    if is_few:
        made.append(_left_out(plan))
    return together(made)


def _several_moves(plan: Plans) -> list[Plans]:
    """Moves along two axes at once, of a few, of half or of all that a device has.

    In the 1D-tiled mode also along three, rows and columns between the same two.
    """
    shares = (plan.heads[0], plan.rows[0], plan.columns[0])
    single = [_sized(share, (1,) if axis == 0 else (1, 4, 16)) for axis, share in enumerate(shares)]
    found = [_with(plan, {0: single[0]}), _with(plan, {1: single[1]})]
    found.append(_both(plan, single, 0, 1))
    if plan.mode == "1d":
        found += [_both(plan, single, 0, 2), _both(plan, single, 1, 2)]
        rows, columns = _alongside(plan)
        i, j = (x.ravel() for x in np.indices((len(single[0]), len(rows))))
        found.append(_with(plan, {0: single[0][i], 1: rows[j], 2: columns[j]}))
    return found


def _sized(share: Int[np.ndarray, " devices"], some: tuple[int, ...]) -> Counts:
    """Moves of so many, of half and of all."""
    made = [moved(share, size) for size in some] + [moved(share, part) for part in ((share + 1) // 2, share)]
    return np.unique(np.concatenate(made), axis=0)


def _both(plan: Plans, single: list[np.ndarray], a: int, b: int) -> Plans:
    i, j = (x.ravel() for x in np.indices((len(single[a]), len(single[b]))))
    return _with(plan, {a: single[a][i], b: single[b][j]})


def _alongside(plan: Plans) -> tuple[Counts, Counts]:
    """Rows and columns that go the same way: from each device to each, one, half or all."""
    rows, columns = plan.rows[0], plan.columns[0]
    after: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for src, dst in zip(*np.nonzero(~np.eye(len(rows), dtype=bool)), strict=True):
        for r in sorted({1, -(-rows[src] // 2), rows[src]}):
            for c in sorted({1, -(-columns[src] // 2), columns[src]}):
                if 0 < r <= rows[src] and 0 < c <= columns[src]:
                    for share, size, made in ((rows, r, after[0]), (columns, c, after[1])):
                        other = share.copy()
                        other[src] -= size
                        other[dst] += size
                        made.append(other)
    first, second = (np.array(made, dtype=np.int64).reshape(-1, len(rows)) for made in after)
    return first, second


def _with(plan: Plans, changed: dict[int, Counts]) -> Plans:
    """One plan for each row of `changed`, whose keys number heads, rows and columns."""
    n = len(next(iter(changed.values())))
    parts = [
        changed.get(axis, part.repeat(n, 0))
        for axis, part in enumerate((plan.heads, plan.rows, plan.columns))
    ]
    return Plans(plan.mode, *parts)


def _left_out(plan: Plans) -> Plans:
    """Every way to give all that one device has to another."""
    n = plan.heads.shape[1]
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    parts = []
    for share in (plan.heads, plan.rows, plan.columns):
        after = share.repeat(len(src), 0)
        at = np.arange(len(src))
        after[at, dst] += after[at, src]
        after[at, src] = 0
        parts.append(after)
    return Plans(plan.mode, *parts)
