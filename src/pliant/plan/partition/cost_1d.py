"""Predicted time of the 1D-tiled mode, for many partitions at once.

The steps of `plan.split` in closed form, as in `cost_ws`.
"""

import numpy as np

from pliant.plan.partition.cost_ws import (
    Counts,
    Pairs,
    PerDevice,
    RowCounts,
    Sets,
    Times,
    exchange_s,
    gather_s,
    row_counts,
    run_s,
)
from pliant.plan.partition.problem import ITEMSIZE, PartitionProblem


def tiled_seconds(p: PartitionProblem, heads: Counts, rows: Counts, columns: Counts) -> Times:
    """Return the predicted seconds from input to answer of each plan; shares are assumed to add up."""
    s, at = p.sizes, np.arange(p.n)
    inner_bytes = float(ITEMSIZE * s.inner)
    headed, cut = heads > 0, columns > 0
    shared = row_counts(rows)
    ends_s, leaves_s = _reduce_scatter(p, 0, shared, headed, p.mixed_s[at, heads])
    for f in range(1, s.n_forwards + 1):
        starts_s = gather_s(p, inner_bytes, shared, ends_s, cut, np.maximum(ends_s, leaves_s))
        done_s = np.where(cut, starts_s + p.forward_s[f - 1][at, columns], starts_s)
        ends_s, leaves_s = _reduce_scatter(p, f, shared, cut, done_s)
    works = headed | cut | (rows > 0)
    return run_s(p, headed, shared, ends_s, works, np.maximum(ends_s, leaves_s))


def _reduce_scatter(
    p: PartitionProblem, f: int, rows: RowCounts, senders: Sets, ready_s: PerDevice
) -> tuple[PerDevice, PerDevice]:
    """Return when each device has finished sum `f`, and when its interface has sent the others' sums."""
    n_bytes = senders[:, :, None] * (float(ITEMSIZE * p.sizes.inner) * rows.each)[:, None, :]
    n_bytes[:, np.arange(p.n), np.arange(p.n)] = 0.0
    return _reduced_s(p, f, rows, senders, ready_s, n_bytes), _sent_s(p, rows, senders, ready_s)


def _sent_s(p: PartitionProblem, rows: RowCounts, senders: Sets, ready_s: PerDevice) -> PerDevice:
    """When each device's interface has sent its sums of all others' rows, which its own rows follow."""
    b = float(ITEMSIZE * p.sizes.inner) * rows.each
    others = b.sum(1, keepdims=True) - b
    wait_s = np.where((b > 0)[:, None, :], b[:, None, :] / p.rate + p.latency_s, 0.0)
    wait_s[:, np.arange(p.n), np.arange(p.n)] = 0.0
    sent_s: PerDevice = ready_s + senders * np.maximum(wait_s.max(2), others / p.egress)
    return sent_s


def _reduced_s(
    p: PartitionProblem, f: int, rows: RowCounts, senders: Sets, ready_s: PerDevice, n_bytes: Pairs
) -> PerDevice:
    """Reduce-scatter: when each device has finished sum `f` over its rows, or its sends if without rows."""
    row_bytes = float(ITEMSIZE * p.sizes.inner)
    b = row_bytes * rows.each
    wait_s = (rows.served[:, None, :] - rows.fewer) * (row_bytes / p.egress)[:, None]
    into = (senders.sum(1, keepdims=True) - senders) * b / p.ingress
    np.maximum(wait_s, into[:, None, :], out=wait_s)
    np.maximum(wait_s, b[:, None, :] / p.rate, out=wait_s)
    start_s = exchange_s(p, n_bytes, wait_s, ready_s)
    reduce_s = np.zeros_like(start_s)
    n_terms = senders.sum(1)
    for n in np.unique(n_terms):
        mine = n_terms == n
        reduce_s[mine] = p.reduce_s(f, int(n))[np.arange(p.n), rows.each[mine]]
    ends_s: PerDevice = start_s + np.where(rows.each > 0, reduce_s, 0.0)
    return ends_s
