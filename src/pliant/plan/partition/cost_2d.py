"""Predicted time and memory of the 2D-tiled mode, for many partitions at once.

The steps of `plan.split` in closed form, as in `cost_ws`. Every plan may have its own grid.
"""

from dataclasses import dataclass, fields

import numpy as np

from pliant.arrays import Int
from pliant.ir.partition import DeviceGrid, Partition, Share
from pliant.models.slice_shapes import GROUP_COLUMNS, GROUP_ROWS
from pliant.plan.partition.cost_ws import Counts, Pairs, PerDevice, Sets, Times, exchange_s, row_counts, run_s
from pliant.plan.partition.problem import ITEMSIZE, PartitionProblem
from pliant.plan.partition.sizes import LayerSizes, reduce_kernels

Amounts = PerDevice | Counts
PlanIndex = int | Int[np.ndarray, " some"]


@dataclass(frozen=True, slots=True)
class GridPlans:
    """Grid positions and shares of several partitions, all [plans, devices].

    `group` and `column` are a device's position, -1 outside the grid; `outputs` and `hidden` are the block
    sizes of its column and of its group, equal for all devices in it, 0 outside.
    """

    group: Counts
    column: Counts
    heads: Counts
    rows: Counts
    columns: Counts
    outputs: Counts
    hidden: Counts

    def __len__(self) -> int:
        return len(self.heads)

    def take(self, i: PlanIndex) -> "GridPlans":
        """Return plan number `i`, or the plans of these numbers."""
        at = np.atleast_1d(i)
        return GridPlans(*(getattr(self, one.name)[at] for one in fields(self)))

    @property
    def placed(self) -> Sets:
        is_placed: Sets = self.group >= 0
        return is_placed


def grid_seconds(p: PartitionProblem, plans: GridPlans, passes: int = 2) -> Times:
    """Return the predicted seconds from input to answer of each plan; shares are assumed to add up and fit.

    `passes` is how often the time of each exchange is recomputed from the durations of concurrent ones: 2
    passes come within a few percent of `simulate`; 0 passes are fast enough for a search and up to a fifth
    too short.
    """
    s, at, each = p.sizes, np.arange(p.n), _Tiles(plans)
    m, placed = float(s.rows), plans.placed
    everybody = _other_pairs(placed[:, :, None] & placed[:, None, :])
    in_group, in_column = _other_pairs(each.same_group), _other_pairs(each.same_column)
    attend_s = p.attend_s[at, plans.heads]
    mixing = (each.group_heads > 0) & (plans.outputs > 0)
    start_s = _exchange_s(p, attend_s, ITEMSIZE * s.head_dim * plans.heads, m * mixing, in_group, passes)
    mix_s = p.times.seconds("mix", 2.0 * m * s.head_dim * each.group_heads * plans.outputs)
    mixed_s = np.where(mixing, start_s + mix_s, start_s)
    n_groups = ((plans.column == 0) & (each.group_heads > 0)).sum(1)
    ends_s = _reduced_s(p, 0, n_groups, mixed_s, plans.outputs * mixing, plans.rows, everybody, passes)
    cut = (plans.hidden > 0) & (each.neurons > 0)
    tile_ops = 2.0 * m * plans.hidden * each.neurons
    terms = (each.same_column & cut[:, None, :]).sum(2)
    n_columns = ((plans.group == 0) & (each.neurons > 0)).sum(1)
    has = plans.columns > 0
    for f in range(s.n_forwards):
        start_s = _exchange_s(p, ends_s, ITEMSIZE * plans.rows, plans.hidden * cut, everybody, passes)
        up_s = np.where(cut, start_s + p.times.seconds(f"up.{f}", tile_ops), start_s)
        start_s = _exchange_s(p, up_s, ITEMSIZE * m * cut, plans.columns, in_column, passes)
        active_s = p.times.seconds(f"activate.{f}", m * plans.columns * terms)
        active_s = np.where(has, start_s + active_s, start_s)
        start_s = _exchange_s(p, active_s, ITEMSIZE * m * plans.columns, cut.astype(float), in_column, passes)
        down_s = np.where(cut, start_s + p.times.seconds(f"down.{f}", tile_ops), start_s)
        ends_s = _reduced_s(p, f + 1, n_columns, down_s, plans.hidden * cut, plans.rows, everybody, passes)
    works = (plans.heads > 0) | (plans.rows > 0) | mixing | cut | has
    return run_s(p, plans.heads > 0, row_counts(plans.rows), ends_s, works)


def grid_weights(p: PartitionProblem, plans: GridPlans) -> PerDevice:
    """Return the bytes on each device: own heads, tiles, and the needs of own activations and sums."""
    s, each = p.sizes, _Tiles(plans)
    held: PerDevice = np.where(plans.heads > 0, s.ws_head.fixed + s.ws_head.each * plans.heads, 0.0)
    held += s.tiled_row * (plans.rows > 0)
    attended = s.head_dim * each.group_heads
    tiles = _tile(s, attended, plans.outputs)
    tiles += s.n_forwards * (_tile(s, plans.hidden, each.neurons) + _tile(s, each.neurons, plans.hidden))
    held += s.n_layers * (s.tile_weight * tiles + ITEMSIZE * s.n_forwards * plans.columns)
    return held


def _tile(s: LayerSizes, depth: Counts, width: Counts) -> Counts:
    """Return the number of weights of each device's tile; in codes, with the rest of partly used groups."""
    weights: Counts = depth * width
    if s.bits:
        filled = (depth + GROUP_ROWS - 1) * (width + GROUP_COLUMNS - 1)
        weights = np.where(weights > 0, filled, 0)
    return weights


def grid_partition(p: PartitionProblem, plans: GridPlans) -> Partition:
    """Convert the first of `plans`: the grid's devices in grid order, then those outside, empty."""
    group, column = plans.group[0], plans.column[0]
    order = np.lexsort((column, group))
    order = np.concatenate([order[group[order] >= 0], order[group[order] < 0]])
    n_groups, width = int(group.max()) + 1, int(column.max()) + 1
    placed = order[: n_groups * width].reshape(n_groups, width)
    grid = DeviceGrid(
        tuple(tuple(p.names[i] for i in row) for row in placed),
        tuple(int(plans.outputs[0, i]) for i in placed[0]),
        tuple(int(plans.hidden[0, i]) for i in placed[:, 0]),
    )
    shares = tuple(
        Share(p.names[i], int(plans.heads[0, i]), int(plans.rows[0, i]), int(plans.columns[0, i]))
        for i in order
    )
    return Partition("2d", p.names[p.primary], shares, p.sizes.rows, grid, p.sizes.bits)


def grid_plans(p: PartitionProblem, partition: Partition) -> GridPlans:
    """Convert a partition with a grid to plans of length one."""
    assert partition.grid is not None, partition
    grid = partition.grid
    place = {d: (g, c) for g, group in enumerate(grid.groups) for c, d in enumerate(group)}
    rows = []
    for name in p.names:
        share, (g, c) = partition.share(name), place.get(name, (-1, -1))
        blocks = (grid.outputs[c], grid.hidden[g]) if name in place else (0, 0)
        rows.append((g, c, share.heads, share.rows, share.columns, *blocks))
    return GridPlans(*(np.array([one], dtype=np.int64) for one in zip(*rows, strict=True)))


class _Tiles:
    """Which devices share a group or a column, the group's heads and the column's neurons."""

    def __init__(self, plans: GridPlans) -> None:
        placed = plans.placed[:, :, None]
        self.same_group = placed & (plans.group[:, :, None] == plans.group[:, None, :])
        self.same_column = placed & (plans.column[:, :, None] == plans.column[:, None, :])
        self.group_heads = np.where(self.same_group, plans.heads[:, None, :], 0).sum(2)
        self.neurons = np.where(self.same_column, plans.columns[:, None, :], 0).sum(2)


def _other_pairs(pairs: np.ndarray) -> Pairs:
    """Return 1 for these pairs, 0 for the others and for a device with itself."""
    others = pairs.astype(float)
    others[:, np.arange(others.shape[1]), np.arange(others.shape[1])] = 0.0
    return others


def _exchange_s(
    p: PartitionProblem, ready_s: PerDevice, sent: Amounts, wanted: Amounts, among: Pairs, passes: int
) -> PerDevice:
    """Return when each device has received its part: sent[i] * wanted[j] bytes from i to j.

    `among` holds disjoint sets of devices, as pairs: a device sends to all others in its set. Concurrent
    exchanges of a device share its interface evenly (see `cost_ws`). An exchange that is slow at its other
    end occupies its part of the interface for longer than its bytes imply.
    """
    u, v = sent.astype(float), wanted.astype(float)
    wait_s = (u / p.egress)[:, :, None] * _others_served(v, among)
    into = (v / p.ingress)[:, None, :] * _others_served(u, among).transpose(0, 2, 1)
    np.maximum(wait_s, into, out=wait_s)
    n_bytes = u[:, :, None] * v[:, None, :]
    n_bytes *= among
    if passes:
        np.maximum(wait_s, n_bytes / p.rate, out=wait_s)
    for _ in range(passes):
        wait_s = _contended_s(p, np.where(n_bytes > 0, wait_s, 0.0), n_bytes)
    return exchange_s(p, n_bytes, wait_s, ready_s)


def _others_served(each: PerDevice, among: Pairs) -> Pairs:
    """The total `each` received by the set of i and j, without i, when j has received its own."""
    fewer: Pairs = np.minimum(each[:, :, None], each[:, None, :])
    served = (fewer * among).sum(1) + each
    np.subtract(served[:, None, :], fewer, out=fewer)
    return fewer


def _contended_s(p: PartitionProblem, lasts_s: Pairs, n_bytes: Pairs) -> Pairs:
    """Return the duration of each exchange if the concurrent ones take `lasts_s`."""
    brief = np.maximum(lasts_s, 1e-300)
    out = np.minimum(lasts_s[:, :, :, None], lasts_s[:, :, None, :]).sum(3) / brief
    into = np.minimum(lasts_s[:, :, :, None], lasts_s.transpose(0, 2, 1)[:, None]).sum(3) / brief
    shared = n_bytes * np.maximum(out / p.egress[:, None], into / p.ingress)
    longer: Pairs = np.maximum(shared, n_bytes / p.rate)
    return longer


def _reduced_s(
    p: PartitionProblem,
    f: int,
    n_terms: Int[np.ndarray, " plans"],
    ready_s: PerDevice,
    widths: Counts,
    rows: Counts,
    among: Pairs,
    passes: int,
) -> PerDevice:
    """When each owner of rows has finished sum `f` over blocks of `widths`; other devices: when ready."""
    s = p.sizes
    start_s = _exchange_s(p, ready_s, ITEMSIZE * widths, rows, among, passes)
    ops = (s.reduces[f] + (n_terms[:, None] - 1.0) * s.inner) * rows
    return np.where(rows > 0, start_s + p.times.seconds(reduce_kernels(s.n_forwards)[f], ops), start_s)
