"""Search for partitions of the 2D-tiled mode: grids of the fastest devices, then moves. No proof.

A grid's groups are devices of similar speed. Its blocks are cut by solving the one-axis problem in turn for
rows and for columns (Hepti, the end of 4.3): with one axis cut, a block of the other is as large as the
slowest device across it allows. Rounded plans are priced exactly.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from pliant.arrays import Bool, Float, Int
from pliant.plan.partition.cost_2d import grid_seconds
from pliant.plan.partition.initial_plans import assign_earliest, head_room, share_proportionally
from pliant.plan.partition.local_search import descend, fastest, moved_plans, with_share
from pliant.plan.partition.partition_cost import GridPlans, concat_plans, device_weight_bytes, make_contiguous
from pliant.plan.partition.problem import ITEMSIZE, PartitionProblem

PerDevice = Float[np.ndarray, "plans devices"]
Counts = Int[np.ndarray, "plans devices"]
Sets = Bool[np.ndarray, "plans devices"]

FACTORS = (0.0, 0.5, 0.8, 0.95, 1.06, 1.25, 2.0)
"""Factors tried on a device's share, or on a block."""
ROUNDS = 6
AXES = ("heads", "hidden", "outputs", "rows", "columns")


def solve_grid(p: PartitionProblem) -> tuple[GridPlans, float]:
    """Return the fastest plan found in the 2D-tiled mode; infinite seconds if none fits in memory."""
    begun = concat_plans(list(_initial_grids(p)))
    priced = _price(p, begun)
    order = np.argsort(priced, kind="stable")
    both_ways = (begun.group[order].max(1) > 0) & (begun.column[order].max(1) > 0)
    first = dict.fromkeys([*order[:1].tolist(), *order[both_ways][:1].tolist()])
    found = [(begun.take(i), float(priced[i])) for i in first]
    near = [partial(_near, axis=axis) for axis in AXES]
    found += descend(found, near, lambda plans: _price(p, plans), ROUNDS)
    return fastest(p, concat_plans([plan for plan, _ in found]))


def _price(p: PartitionProblem, plans: GridPlans) -> Float[np.ndarray, " plans"]:
    """Seconds, with a penalty that grows with missing memory, so that moves lead back to what fits."""
    plans = make_contiguous(plans)
    n_bytes = device_weight_bytes(p, plans)
    lacking = np.maximum(n_bytes - p.memory, 0.0).sum(1) / n_bytes.sum(1)
    priced: Float[np.ndarray, " plans"] = grid_seconds(p, plans, 0) * np.where(
        lacking > 0, 10 + 1e3 * lacking, 1
    )
    return priced


def _initial_grids(p: PartitionProblem) -> Iterator[GridPlans]:
    """Yield every grid of the first 2, 3, ... devices by speed.

    If memory is short, also by two mixes of speed and memory.
    """
    s = p.sizes
    work_s = p.mixed_s[:, -1] + sum(times[:, -1] for times in p.forward_s)
    x_s = ITEMSIZE * s.inner * s.rows / np.minimum(p.egress, p.ingress)
    memory = p.memory / p.memory.max()
    tight = p.memory.min() < s.ws_head.each * s.n_heads + s.tiled_column * s.n_columns
    for speed in (1.0 / work_s, 1.0 / (work_s + x_s)):
        for power in (0.0, 0.5, 0.9) if tight else (0.0,):
            yield _grids(p, (speed / speed.max()) ** (1 - power) * memory**power)


def _grids(p: PartitionProblem, speed: Float[np.ndarray, " devices"]) -> GridPlans:
    """Return one plan for every shape of grid, with blocks and shares by `speed`."""
    n, s = p.n, p.sizes
    order = np.argsort(-speed, kind="stable")
    shapes = [(k // c, c) for k in range(min(2, n), n + 1) for c in range(1, k + 1) if k % c == 0]
    group, column = np.full((len(shapes), n), -1), np.full((len(shapes), n), -1)
    heads = np.zeros((len(shapes), n), dtype=np.int64)
    dealt = {k: _heads(p, order[:k]) for k in range(min(2, n), n + 1)}
    for i, (n_groups, width) in enumerate(shapes):
        k = n_groups * width
        group[i, order[:k]], column[i, order[:k]] = np.divmod(np.arange(k), width)
        heads[i] = dealt[k]
    placed = group >= 0
    same_group = placed[:, :, None] & (group[:, :, None] == group[:, None, :])
    same_column = placed[:, :, None] & (column[:, :, None] == column[:, None, :])
    slow = np.where(placed, 1.0 / speed, 0.0)
    hidden = _cut(1.0 * slow, same_group, column == 0, s.inner)
    for _ in range(3):
        neurons = _cut(hidden * slow, same_column, group == 0, s.n_columns)
        hidden = _cut(neurons * slow, same_group, column == 0, s.inner)
    group_heads = np.where(same_group, heads[:, None, :], 0).sum(2)
    outputs = _cut(group_heads * slow, same_column, group == 0, s.inner)
    n_groups, n_columns = group.max(1, keepdims=True) + 1, column.max(1, keepdims=True) + 1
    link_s = np.where(placed, 1.0 / p.egress + 1.0 / p.ingress, 1.0)
    inside = np.where(same_column, 1.0 / link_s[:, None, :], 0.0).sum(2) * link_s
    columns = np.where(placed, neurons / np.maximum(inside, 1e-300), 0.0)
    row_s = (n_groups + n_columns) / p.ingress + 2.0 * n_columns / p.egress
    return GridPlans(
        group,
        column,
        heads,
        share_proportionally(np.where(placed, 1.0 / row_s, 0.0), s.rows),
        share_proportionally(columns, s.n_columns),
        _whole(outputs, same_column, group == 0, s.inner),
        _whole(hidden, same_group, column == 0, s.inner),
    )


def _heads(p: PartitionProblem, devices: Int[np.ndarray, " some"]) -> Int[np.ndarray, " devices"]:
    """Assign heads one by one to the device that finishes first, within memory if possible."""
    sent_s = np.arange(p.sizes.n_heads + 1) * (ITEMSIZE * p.sizes.head_dim * p.sizes.rows / p.egress)[:, None]
    late_s, most = p.attend_s + sent_s, p.sizes.n_heads
    heads = assign_earliest(late_s, most, head_room(p, "1d"), devices)
    if heads is None:
        heads = assign_earliest(late_s, most, np.full(p.n, most), devices)
    assert heads is not None, devices
    return heads


def _cut(cost: PerDevice, same: np.ndarray, is_first: Sets, total: int) -> PerDevice:
    """Return blocks, per device, whose longest time across is equal; `cost` is seconds per unit."""
    worst = np.where(same, cost[:, None, :], 0.0).max(2)
    free = is_first & (worst == 0)
    worst = np.where(free.any(1, keepdims=True) & is_first & ~free, np.inf, worst)
    share = np.where(is_first, 1.0 / np.where(worst > 0, worst, 1.0), 0.0)
    share *= total / share.sum(1, keepdims=True)
    blocks: PerDevice = np.where(same, share[:, None, :], 0.0).sum(2)
    return blocks


def _whole(blocks: PerDevice, same: np.ndarray, is_first: Sets, total: int) -> Counts:
    counts = share_proportionally(np.where(is_first, blocks, 0.0), total)
    return _broadcast(counts, same)


def _broadcast(counts: Counts, same: np.ndarray) -> Counts:
    """Give every device of a group (or column) the count of its first device."""
    blocks: Counts = np.where(same, counts[:, None, :], 0).sum(2)
    return blocks


def _near(plan: GridPlans, axis: str) -> GridPlans:
    """Return plans in which one device's share, or one block, changes and the others compensate."""
    group, column = plan.group[0], plan.column[0]
    placed = group >= 0
    line = {"outputs": column, "hidden": group}.get(axis)
    movable = {"outputs": group == 0, "hidden": column == 0}.get(axis, placed)
    counts = np.where(movable, getattr(plan, axis)[0], 0)
    changed = _redistribute(counts, movable)
    if line is not None:
        changed = _broadcast(changed, (placed[:, None] & (line[:, None] == line[None, :]))[None])
    near = with_share(plan, axis, changed)
    if axis == "heads":
        near = concat_plans([near, moved_plans(plan, {axis: 1}, placed)])
    _, first = np.unique(getattr(near, axis), axis=0, return_index=True)
    return near.take(np.sort(first))


def _redistribute(counts: Int[np.ndarray, " devices"], movable: Bool[np.ndarray, " devices"]) -> Counts:
    """Scale each of `movable` by each factor; the others share the rest in their current proportion."""
    at = np.nonzero(movable)[0]
    scale = np.ones((len(at), len(FACTORS), len(counts)))
    scale[np.arange(len(at)), :, at] = FACTORS
    some = np.where((counts == 0) & movable, 0.25, counts)
    wanted = (scale * some).reshape(-1, len(counts))
    return share_proportionally(wanted[wanted.sum(1) > 0], int(counts.sum()))
