"""Search for the fastest partition of a mode without a grid: starts, then moves. A heuristic: no proof.

The difficult choice is which devices have heads, rows and columns at all: no single move leads from one such
choice to another. With up to FEW devices, all choices are starts, and the most promising are improved side by
side; tests over all plans find nothing better. With more, a search over heads comes first, and a linear
program assigns rows and columns: without it, plans took up to a fifth longer when memory was short.
"""

from math import ceil, floor

import numpy as np

from pliant.arrays import Float
from pliant.plan.partition.initial_plans import (
    MOST_PLANS,
    all_initial_plans,
    all_plans,
    count_plans,
    initial_plans,
    with_heads,
)
from pliant.plan.partition.linear_shares import fit_shares
from pliant.plan.partition.local_search import descend, fastest, moved_plans
from pliant.plan.partition.partition_cost import Counts, FlatMode, FlatPlans, concat_plans, seconds
from pliant.plan.partition.problem import PartitionProblem

FEW = 4
"""With this many devices, there are at most 15 sets per axis."""
WIDTHS = (48, 24, 12, 8, 6, 4, 4, 3)
"""The number of plans improved side by side in each round; the last number repeats until no move helps."""
FITTED = 2
"""The number of plans whose rows and columns are computed again by a linear program."""
ROUNDS = 40
SIZES = {"heads": (1,), "rows": (1, 2, 4, 16), "columns": (1, 2, 4, 16)}
"""Move sizes; for columns also a 64th of all."""
TRADED = (1, 2, 4)
"""Numbers of heads exchanged for columns at once."""
HEAD_ROUNDS = 3
"""Rounds of head moves among many devices: they take as long as a linear program."""
LAST_ROUNDS = 2
"""Rounds of moves after it: a third saves 0.3 % of the time, and takes a tenth longer."""


def solve_flat(p: PartitionProblem, mode: FlatMode) -> tuple[FlatPlans, float]:
    """Return the fastest plan found; infinite seconds if none fits in memory.

    If there are few plans, as for two devices in the weight-stationary mode, all are priced.
    """
    if count_plans(p, mode) <= MOST_PLANS:
        return fastest(p, all_plans(p, mode))
    return _solve_few(p, mode) if p.n <= FEW else _solve_many(p, mode)


def improve(p: PartitionProblem, plan: FlatPlans, plan_s: float, rounds: int) -> tuple[FlatPlans, float]:
    """Apply the best move of rows or columns, then of heads, for at most `rounds`."""
    near = (lambda plan: _near(plan, "rows", "columns"), lambda plan: _near(plan, "heads"))
    return descend([(plan, plan_s)], near, lambda plans: seconds(p, plans), rounds)[0]


def _solve_many(p: PartitionProblem, mode: FlatMode) -> tuple[FlatPlans, float]:
    plan, plan_s = fastest(p, initial_plans(p, mode))
    if not np.isfinite(plan_s):
        return plan, plan_s

    def dealt(plan: FlatPlans) -> FlatPlans:
        return with_heads(p, mode, moved_plans(plan, {"heads": 1}).heads)

    ((plan, _),) = descend([(plan, plan_s)], (dealt,), lambda plans: seconds(p, plans), HEAD_ROUNDS)
    plan, plan_s = fastest(p, concat_plans([plan, fit_shares(p, plan)]))
    return improve(p, plan, plan_s, LAST_ROUNDS)


def _near(plan: FlatPlans, *axes: str) -> FlatPlans:
    """Return all plans one move away: a head, a row, a column, or a 64th of the columns."""
    sizes = {axis: {1} for axis in axes}
    if "columns" in axes:
        n_columns = int(plan.columns[0].sum())
        sizes["columns"] = {min(1, n_columns), n_columns // 64} - {0}
    return concat_plans(
        [plan, *(moved_plans(plan, {axis: n}) for axis, some in sizes.items() for n in sorted(some))]
    )


def _solve_few(p: PartitionProblem, mode: FlatMode) -> tuple[FlatPlans, float]:
    plans, times = _leaders(p, all_initial_plans(p, mode), WIDTHS[0])
    if not np.isfinite(times[0]):
        return plans.take(0), float(times[0])
    plans = concat_plans([plans, *(fit_shares(p, plans.take(i)) for i in range(min(FITTED, len(plans))))])
    plans, times = _leaders(p, plans, WIDTHS[0])
    for k in range(ROUNDS):
        width = WIDTHS[min(k, len(WIDTHS) - 1)]
        after, after_s = _leaders(p, _one_move(plans), width)
        if k >= len(WIDTHS) and not after_s[0] < times[0] * (1 - 1e-9):
            after, after_s = _leaders(p, concat_plans([plans, *_several_moves(p, plans.take(0))]), width)
            if not after_s[0] < times[0] * (1 - 1e-9):
                break
        plans, times = after, after_s
    return plans.take(0), float(times[0])


def _leaders(
    p: PartitionProblem, plans: FlatPlans, width: int
) -> tuple[FlatPlans, Float[np.ndarray, " plans"]]:
    """Return the fastest plan of each of the `width` fastest choices of sharing devices, best first."""
    times = seconds(p, plans)
    order = np.argsort(times, kind="stable")
    shares = np.concatenate([plans.heads, plans.rows, plans.columns], axis=1)[order] > 0
    _, first = np.unique(shares @ (1 << np.arange(shares.shape[1])), return_index=True)
    kept = order[np.sort(first)[:width]]
    return plans.take(kept), times[kept]


def _one_move(plans: FlatPlans) -> FlatPlans:
    """Return the plans themselves, then all plans one move away from any of them."""
    found = [plans]
    for axis, some in SIZES.items():
        sizes = {*some, int(plans.columns[0].sum()) // 64} if axis == "columns" else set(some)
        found += [moved_plans(plans, {axis: size}) for size in sorted(sizes - {0})]
    return concat_plans(found)


def _several_moves(p: PartitionProblem, plan: FlatPlans) -> list[FlatPlans]:
    """Return moves along two axes at once, of a few units, of half or of all that a device has.

    In the 1D-tiled mode also along three axes, with rows and columns between the same two devices, and heads
    against columns of equal size, for devices whose memory is full.
    """
    heads, rows = _jumps(plan, "heads"), _jumps(plan, "rows")
    found = [heads, rows, _jumps(heads, "rows")]
    if plan.mode == "1d":
        found += [_jumps(heads, "columns"), _jumps(rows, "columns")]
        of_rows: list[int | Counts] = [1, (plan.rows + 1) // 2, plan.rows]
        of_columns: list[int | Counts] = [1, (plan.columns + 1) // 2, plan.columns]
        alongside = [moved_plans(plan, {"rows": r, "columns": c}) for r in of_rows for c in of_columns]
        found += [_jumps(one, "heads") for one in alongside]
        a_head = p.sizes.tiled_head.each / p.sizes.tiled_column
        for n in TRADED:
            some = {floor(n * a_head), ceil(n * a_head)}
            found += [moved_plans(plan, {"heads": n, "columns": -k}) for k in sorted(some)]
    return found


def _jumps(plans: FlatPlans, axis: str) -> FlatPlans:
    """Return moves of a few units, of half and of all that a device has."""
    share, some = getattr(plans, axis), SIZES[axis]
    parts = [np.where(np.isin(part, some), 0, part) for part in ((share + 1) // 2, share)]
    sizes: list[int | Counts] = [*some, *parts]
    return concat_plans([moved_plans(plans, {axis: size}) for size in sizes])
