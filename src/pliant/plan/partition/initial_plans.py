"""Candidate partitions: all if they are few, else heads to the earliest finisher and the rest by speed."""

from collections.abc import Iterator
from itertools import combinations, product
from math import comb

import numpy as np

from pliant.arrays import Float, Int
from pliant.plan.partition.cost_ws import Sets
from pliant.plan.partition.partition_cost import Counts, FlatMode, FlatPlans, concat_plans
from pliant.plan.partition.problem import ITEMSIZE, PartitionProblem

Speeds = Float[np.ndarray, "plans devices"]
DeviceCounts = Int[np.ndarray, " devices"]

MOST_PLANS = 6000
"""This many plans are priced in a few milliseconds."""


def initial_plans(p: PartitionProblem, mode: FlatMode) -> FlatPlans:
    """Return every device alone, then, for every number of devices with heads, the fastest at them.

    Plans need not fit in memory.
    """
    s = p.sizes
    head_s = p.attend_s if mode == "ws" else p.mixed_s
    room = head_room(p, mode)
    found = []
    for late_s in (head_s, head_s + sent_s(p)):
        order = np.argsort(_entry_s(p, late_s), kind="stable")
        for some in (order[:q] for q in range(2, min(p.n, s.n_heads) + 1)):
            heads = assign_earliest(late_s, s.n_heads, room, some)
            if heads is not None:
                found.append(heads)
    if not found:
        return single_device_plans(p, mode)
    return concat_plans([single_device_plans(p, mode), with_heads(p, mode, np.array(found))])


def all_initial_plans(p: PartitionProblem, mode: FlatMode) -> FlatPlans:
    """Return a plan for every set of devices with heads, with rows and with columns: for a few devices."""
    s, n = p.sizes, p.n
    head_s = p.attend_s if mode == "ws" else p.mixed_s
    room, made = head_room(p, mode), [single_device_plans(p, mode).heads]
    for late_s in (head_s, head_s + sent_s(p)):
        for q in range(2, min(n, s.n_heads) + 1):
            for some in combinations(range(n), q):
                heads = assign_earliest(late_s, s.n_heads, room, np.array(some))
                made += [] if heads is None else [heads[None]]
    heads = np.unique(np.concatenate(made), axis=0)
    sets = np.array(list(product((False, True), repeat=n)))[1:]
    of_columns = sets if mode == "1d" else sets[-1:]
    i, j, k = (x.ravel() for x in np.indices((len(heads), len(sets), len(of_columns))))
    return with_heads(p, mode, heads[i], sets[j], of_columns[k])


def single_device_plans(p: PartitionProblem, mode: FlatMode) -> FlatPlans:
    """Return plans that give each device everything, in order."""
    each = np.eye(p.n, dtype=np.int64)
    columns = each * (0 if mode == "ws" else p.sizes.n_columns)
    return FlatPlans(mode, each * p.sizes.n_heads, each * p.sizes.rows, columns)


def sent_s(p: PartitionProblem) -> Speeds:
    """Return the seconds to send the output of 0, 1, 2, ... heads, all rows: [devices, counts]."""
    s = p.sizes
    times: Speeds = np.arange(s.n_heads + 1) * (ITEMSIZE * s.head_dim * s.rows / p.egress)[:, None]
    return times


def with_heads(
    p: PartitionProblem, mode: FlatMode, heads: Counts, rowed: Sets | None = None, cut: Sets | None = None
) -> FlatPlans:
    """Return plans with these heads; rows (and columns) in proportion to each device's speed.

    Rows go to the devices in `rowed`, columns to those in `cut`. By default, they go to all devices with
    enough memory, in the 1D-tiled mode to those with heads.
    """
    s = p.sizes
    headed = heads > 0
    n_to = headed.sum(1, keepdims=True) - headed
    if mode == "ws":
        row_s = p.rest_s[:, -1] / s.rows + ITEMSIZE * s.hidden * n_to / p.egress
        row_s = row_s + ITEMSIZE * s.head_dim * (s.n_heads - heads) / p.ingress
        able = p.memory >= s.ws_row + np.where(headed, s.ws_head.fixed + s.ws_head.each * heads, 0.0)
        rows = share_proportionally(
            np.where(able if rowed is None else able & rowed, 1.0 / row_s, 0.0), s.rows
        )
        return FlatPlans(mode, heads, rows, np.zeros_like(heads))
    held = np.where(headed, s.tiled_head.fixed + s.tiled_head.each * heads, 0.0)
    room = np.maximum(p.memory - held - s.tiled_row, 0) // s.tiled_column
    columns = share_proportionally(
        np.where(headed if cut is None else cut, 1.0 / sum(times[:, -1] for times in p.forward_s), 0.0),
        s.n_columns,
        room,
    )
    row_s = ITEMSIZE * s.inner * ((n_to + headed) / p.ingress + n_to / p.egress)
    rows = share_proportionally(np.where(headed if rowed is None else rowed, 1.0 / row_s, 0.0), s.rows)
    return FlatPlans(mode, heads, rows, columns)


def assign_earliest(
    late_s: Float[np.ndarray, "devices counts"],
    n: int,
    room: DeviceCounts,
    devices: Int[np.ndarray, " chosen"],
) -> DeviceCounts | None:
    """Assign `n` units, each to the one of `devices` that finishes it first: the least latest end.

    None if they do not fit in `room`. Exact for times that increase with the count: the `n` earliest ends.
    """
    if room[devices].sum() < n:
        return None
    ends_s = np.maximum.accumulate(late_s[devices, 1 : n + 1], axis=1)
    ends_s = np.where(np.arange(n) < room[devices][:, None], ends_s, np.inf)
    first = np.argsort(ends_s, axis=None, kind="stable")[:n]
    share: DeviceCounts = np.bincount(devices[first // n], minlength=len(late_s))
    return share


def share_proportionally(speed: Speeds, total: int, room: Speeds | None = None) -> Counts:
    """Return integers with the sum `total`, close to the ratio of `speed`, each at most its `room`.

    An excess that fits nowhere goes to the fastest device, whose plan then does not fit.
    """
    if room is None:
        return _rounded(speed / np.maximum(speed.sum(1, keepdims=True), 1e-300) * total, speed, total)
    level = np.zeros_like(speed)
    open_ = speed > 0
    for _ in range(speed.shape[1]):
        left = total - level.sum(1, keepdims=True)
        some = np.where(open_, speed, 0.0)
        more = left * some / np.maximum(some.sum(1, keepdims=True), 1e-300)
        over = level + more > room
        level = np.where(over & open_, room, level + more)
        if not (over & open_).any():
            break
        open_ &= ~over
    return _rounded(level, np.where(level < room, speed, 0.0), total)


def _rounded(exact: Speeds, speed: Speeds, total: int) -> Counts:
    """Round by largest remainders; a remaining difference goes to the fastest device."""
    share = np.floor(exact + 1e-9).astype(np.int64)
    ranks = np.argsort(np.argsort(np.where(speed > 0, share - exact, np.inf), axis=1, kind="stable"), axis=1)
    left = total - share.sum(1, keepdims=True)
    share += (ranks < left) & (speed > 0)
    quickest = np.argmax(speed, axis=1)
    share[np.arange(len(share)), quickest] += total - share.sum(1)
    return share


def _entry_s(
    p: PartitionProblem, late_s: Float[np.ndarray, "devices counts"]
) -> Float[np.ndarray, " devices"]:
    """Return the rank of devices for heads: their time for an equal share, and to receive x."""
    s = p.sizes
    some = max(1, s.n_heads // min(p.n, s.n_heads))
    entry_s: Float[np.ndarray, " devices"] = late_s[:, some] + ITEMSIZE * s.hidden * s.rows / p.ingress / p.n
    return entry_s


def head_room(p: PartitionProblem, mode: FlatMode) -> DeviceCounts:
    """Return how many heads fit in each device's memory, beside its other weights if these fit too."""
    s = p.sizes
    if mode == "ws":
        able = np.where(p.memory >= s.ws_row + s.ws_head.fixed + s.ws_head.each, s.ws_row, 0.0)
        return _whole_counts((p.memory - able - s.ws_head.fixed) / s.ws_head.each, s.n_heads)
    free = p.memory - s.tiled_row - s.tiled_head.fixed
    # If memory is short, heads and columns share it in the same ratio as in the layer.
    part = s.tiled_head.each * s.n_heads / (s.tiled_head.each * s.n_heads + s.tiled_column * s.n_columns)
    even = _whole_counts(np.ceil(free * part / s.tiled_head.each - 0.5), s.n_heads)
    return even if even.sum() >= s.n_heads else _whole_counts(free / s.tiled_head.each, s.n_heads)


def _whole_counts(room: Float[np.ndarray, " devices"], most: int) -> DeviceCounts:
    whole: DeviceCounts = np.clip(np.floor(room), 0, most).astype(np.int64)
    return whole


def count_plans(p: PartitionProblem, mode: FlatMode) -> int:
    """Return the number of ways to share heads, rows and, in the 1D-tiled mode, columns."""
    s = p.sizes
    totals = (s.n_heads, s.rows) + ((s.n_columns,) if mode == "1d" else ())
    n = 1
    for total in totals:
        n *= comb(total + p.n - 1, p.n - 1)
    return n


def all_plans(p: PartitionProblem, mode: FlatMode) -> FlatPlans:
    """Return all plans, in order of heads, then rows, then columns."""
    s = p.sizes
    shares = [_ways(s.n_heads, p.n), _ways(s.rows, p.n)]
    shares.append(_ways(s.n_columns, p.n) if mode == "1d" else np.zeros((1, p.n), dtype=np.int64))
    at = np.meshgrid(*(np.arange(len(x)) for x in shares), indexing="ij")
    return FlatPlans(mode, *(share[i.ravel()] for share, i in zip(shares, at, strict=True)))


def _ways(total: int, n: int) -> Int[np.ndarray, "ways devices"]:
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
