"""Improve a partition by moving shares between two devices. Heuristic: proves no optimum."""

from typing import TypeVar

import numpy as np

from pliant.arrays import Bool, Int
from pliant.plan.partition.pace import Counts, GridPlans, Plans, seconds, together
from pliant.plan.partition.partition_problem import Problem
from pliant.plan.partition.partition_start import with_heads

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

    Who had no part after the first move gets none.
    """
    everybody = np.ones(p.n, dtype=bool)
    for i in range(rounds):
        taking = everybody if i == 0 else (plan.heads + plan.rows + plan.columns)[0] > 0
        near, better_s = best(p, _neighbours(plan, taking))
        if not better_s < plan_s * (1 - 1e-6):
            break
        plan, plan_s = near, better_s
    return plan, plan_s


def best(p: Problem, plans: Kind) -> tuple[Kind, float]:
    """The quickest, of equals the first, and its seconds."""
    times = seconds(p, plans)
    i = int(np.argmin(times))
    return plans.take(int(i)), float(times[i])


def moved(
    share: Int[np.ndarray, " devices"],
    size: int | Int[np.ndarray, " devices"],
    taking: Bool[np.ndarray, " devices"] | bool = True,
) -> Counts:
    """The ways to take `size` (of each device its own) from one and give it to one `taking`; MOST at most."""
    sizes = np.broadcast_to(size, share.shape)
    giving = (share >= sizes) & (sizes > 0)
    src, dst = np.nonzero(giving[:, None] & taking & ~np.eye(len(share), dtype=bool))
    stride = -(-len(src) // MOST) or 1
    src, dst = src[::stride], dst[::stride]
    after = share[None].repeat(len(src), 0)
    after[np.arange(len(src)), src] -= sizes[src]
    after[np.arange(len(src)), dst] += sizes[src]
    return after


def _neighbours(plan: Plans, taking: Bool[np.ndarray, " devices"]) -> Plans:
    """The plan itself, then all plans one move away: a head, a row, a 64th of the columns or one."""
    parts = (plan.heads[0], plan.rows[0], plan.columns[0])
    sizes = ((1,), (1,), sorted({1, int(parts[2].sum()) // 64} - {0}))
    return together(
        [
            plan,
            *(
                with_shares(plan, {axis: moved(parts[axis], n, taking)})
                for axis in range(3)
                for n in sizes[axis]
            ),
        ]
    )


def with_shares(plan: Plans, changed: dict[int, Counts]) -> Plans:
    """One plan for each row of `changed`, whose keys number heads, rows and columns."""
    n = len(next(iter(changed.values())))
    parts = [
        changed.get(axis, part.repeat(n, 0))
        for axis, part in enumerate((plan.heads, plan.rows, plan.columns))
    ]
    return Plans(plan.mode, *parts)
