"""The quickest partition among a few devices: every choice of who takes part in what, then moves. No proof.

What plans get stuck in is who has heads, rows and columns at all: no single move leads from one such choice
to another. Among up to FEW devices all choices are begun with, and the most promising are moved side by side.
"""

from itertools import combinations, product
from math import ceil, floor

import numpy as np

from pliant.arrays import Float, Int
from pliant.plan.partition.pace import Counts, FlatMode, Plans, seconds, together
from pliant.plan.partition.partition_improve import moved, with_shares
from pliant.plan.partition.partition_linear import fitted
from pliant.plan.partition.partition_problem import Problem
from pliant.plan.partition.partition_start import alone, head_room, sent_s, spread, with_heads

FEW = 4
"""Devices among which there are at most 15 sets for each axis."""
WIDTHS = (48, 24, 12, 8, 6, 4, 4, 3)
"""How many plans are moved side by side in each round, then the last so many until no move helps."""
FITTED = 4
"""Of how many the rows and columns are made anew by a linear program."""
ROUNDS = 40
SIZES = (1, 2, 4, 16)
"""Rows or columns that move at a time, and of columns a 64th of all."""

TRADED = (1, 2, 4)
"""Heads that change places with columns at a time."""


def solve_few(p: Problem, mode: FlatMode) -> tuple[Plans, float]:
    """The quickest plan found; infinite seconds where none fits in memory."""
    plans, times = _leaders(p, _begun(p, mode), WIDTHS[0])
    if not np.isfinite(times[0]):
        return plans.take(0), float(times[0])
    plans = together([plans, *(fitted(p, plans.take(i)) for i in range(min(FITTED, len(plans))))])
    plans, times = _leaders(p, plans, WIDTHS[0])
    for k in range(ROUNDS):
        width = WIDTHS[min(k, len(WIDTHS) - 1)]
        after, after_s = _leaders(p, _neighbours(plans), width)
        if k >= len(WIDTHS) and not after_s[0] < times[0] * (1 - 1e-9):
            near = together([plans, *_several_moves(p, plans.take(0))])
            after, after_s = _leaders(p, near, width)
            if not after_s[0] < times[0] * (1 - 1e-9):
                break
        plans, times = after, after_s
    return plans.take(0), float(times[0])


def _begun(p: Problem, mode: FlatMode) -> Plans:
    """A plan for every set of devices with heads, with rows and with columns."""
    s, n = p.sizes, p.n
    head_s = p.attend_s if mode == "ws" else p.mixed_s
    room, made = head_room(p, mode), [alone(p, mode).heads]
    for late_s in (head_s, head_s + sent_s(p)):
        for q in range(2, min(n, s.n_heads) + 1):
            for some in combinations(range(n), q):
                heads = spread(late_s, s.n_heads, room, np.array(some))
                made += [] if heads is None else [heads[None]]
    heads = np.unique(np.concatenate(made), axis=0)
    sets = np.array(list(product((False, True), repeat=n)))[1:]
    of_columns = sets if mode == "1d" else sets[-1:]
    i, j, k = (x.ravel() for x in np.indices((len(heads), len(sets), len(of_columns))))
    return with_heads(p, mode, heads[i], sets[j], of_columns[k])


def _leaders(p: Problem, plans: Plans, width: int) -> tuple[Plans, Float[np.ndarray, " plans"]]:
    """The quickest plan of each of the `width` quickest choices of who has what, best first."""
    times = seconds(p, plans)
    order = np.argsort(times, kind="stable")
    shares = np.concatenate([plans.heads, plans.rows, plans.columns], axis=1)[order] > 0
    _, first = np.unique(shares @ (1 << np.arange(shares.shape[1])), return_index=True)
    kept = order[np.sort(first)[:width]]
    return Plans(plans.mode, plans.heads[kept], plans.rows[kept], plans.columns[kept]), times[kept]


def _neighbours(plans: Plans) -> Plans:
    """The plans themselves, then all that are one move away from any of them."""
    n = plans.heads.shape[1]
    step = np.eye(n, dtype=np.int64)[None] - np.eye(n, dtype=np.int64)[:, None]
    step = step[~np.eye(n, dtype=bool)]
    parts = (plans.heads, plans.rows, plans.columns)
    made = [plans]
    for axis, share in enumerate(parts):
        sizes = {1} if axis == 0 else {*SIZES, int(share[0].sum()) // 64 if axis == 2 else 1}
        steps = np.concatenate([size * step for size in sorted(sizes - {0})])
        moved_to = (share[:, None] + steps).reshape(-1, n)
        able = (moved_to >= 0).all(1)
        shares = [part.repeat(len(steps), 0)[able] for part in parts]
        shares[axis] = moved_to[able]
        made.append(Plans(plans.mode, *shares))
    return together(made)


def _several_moves(p: Problem, plan: Plans) -> list[Plans]:
    """Moves along two axes at once, of a few, of half or of all that a device has.

    In the 1D-tiled mode also along three, rows and columns between the same two; and heads against as many
    columns as weigh the same, for devices whose memory is full.
    """
    shares = (plan.heads[0], plan.rows[0], plan.columns[0])
    single = [_sized(share, (1,) if axis == 0 else SIZES) for axis, share in enumerate(shares)]
    found = [with_shares(plan, {0: single[0]}), with_shares(plan, {1: single[1]})]
    found.append(_both(plan, single, 0, 1))
    if plan.mode == "1d":
        found += [_both(plan, single, 0, 2), _both(plan, single, 1, 2)]
        rows, columns = _alongside(plan)
        i, j = (x.ravel() for x in np.indices((len(single[0]), len(rows))))
        found.append(with_shares(plan, {0: single[0][i], 1: rows[j], 2: columns[j]}))
        found.append(_traded(plan, p.sizes.tiled_head.each / p.sizes.tiled_column))
    return found


def _sized(share: Int[np.ndarray, " devices"], some: tuple[int, ...]) -> Counts:
    """Moves of so many, of half and of all."""
    made = [moved(share, size) for size in some] + [moved(share, part) for part in ((share + 1) // 2, share)]
    return np.unique(np.concatenate(made), axis=0)


def _both(plan: Plans, single: list[np.ndarray], a: int, b: int) -> Plans:
    i, j = (x.ravel() for x in np.indices((len(single[a]), len(single[b]))))
    return with_shares(plan, {a: single[a][i], b: single[b][j]})


def _traded(plan: Plans, n_columns: float) -> Plans:
    """Heads that go one way, and about `n_columns` for each that come back."""
    heads, columns = plan.heads[0], plan.columns[0]
    moves = [
        (src, dst, n, k)
        for src, dst in zip(*np.nonzero(~np.eye(len(heads), dtype=bool)), strict=True)
        for n in TRADED
        for k in {floor(n * n_columns), ceil(n * n_columns)}
        if heads[src] >= n and columns[dst] >= k
    ]
    after = heads[None].repeat(len(moves), 0), columns[None].repeat(len(moves), 0)
    for i, (src, dst, n, k) in enumerate(moves):
        for share, size in zip(after, (n, -k), strict=True):
            share[i, src] -= size
            share[i, dst] += size
    return with_shares(plan, {0: after[0], 2: after[1]})


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
