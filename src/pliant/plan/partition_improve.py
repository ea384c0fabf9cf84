"""Better partitions by moving shares between two devices, judged by the true cost. Proves no optimum."""

from typing import TypeVar

import numpy as np

from pliant.arrays import Int
from pliant.plan.pace import Counts, GridPlans, Plans, seconds, together
from pliant.plan.partition_start import with_heads
from pliant.plan.problem import Problem

Kind = TypeVar("Kind", Plans, GridPlans)
FEW = 4
"""Devices among which moves of two shares at once are tried."""
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
    """Take the best single move of heads, rows or columns while one helps, for `rounds` at most."""
    for _ in range(rounds):
        plan, better_s = best(p, _neighbours(plan))
        if not better_s < plan_s * (1 - 1e-6):
            return plan, better_s
        plan_s = better_s
    return plan, plan_s


def best(p: Problem, plans: Kind) -> tuple[Kind, float]:
    """The quickest, of equals the first, and its seconds."""
    times = seconds(p, plans)
    i = int(np.argmin(times))
    return plans.take(int(i)), float(times[i])


def moved(share: Int[np.ndarray, " devices"], size: int) -> Counts:
    """The ways to take `size` from one device and give it to another; evenly MOST of them at most."""
    src, dst = np.nonzero((share >= size)[:, None] & ~np.eye(len(share), dtype=bool))
    stride = -(-len(src) // MOST) or 1
    src, dst = src[::stride], dst[::stride]
    after = share[None].repeat(len(src), 0)
    after[np.arange(len(src)), src] -= size
    after[np.arange(len(src)), dst] += size
    return after


def _neighbours(plan: Plans) -> Plans:
    """The plan itself, then all plans one move away: a head, a row, a 64th of the columns or one.

    Between few devices also two shares at once, and a device left out for another.
    """
    shares = (plan.heads, plan.rows, plan.columns)
    some = (1,) if plan.heads.shape[1] > FEW else (1, 4, 16)
    sizes = ((1,), some, (*some, max(1, int(plan.columns.sum()) // 64)))
    single = [[moved(share[0], size) for size in some] for share, some in zip(shares, sizes, strict=True)]
    made = [plan]
    for axis, changed in enumerate(single):
        made += [_with(plan, {axis: part}) for part in changed]
    if plan.heads.shape[1] <= FEW:
        for a, b in ((0, 1), (0, 2), (1, 2)):
            for one in single[a]:
                for other in single[b]:
                    i, j = (x.ravel() for x in np.indices((len(one), len(other))))
                    made.append(_with(plan, {a: one[i], b: other[j]}))
        made.append(_left_out(plan))
    return together(made)


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
