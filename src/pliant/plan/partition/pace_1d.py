"""How long the 1D-tiled mode takes, for many partitions at once.

The steps of `plan.split` in closed form, as `pace_ws` has them.
"""

import numpy as np

from pliant.plan.partition.pace_ws import Counts, PerDevice, Rows, Sets, Times, held, rows_of, whole_s
from pliant.plan.partition.problem import ITEMSIZE, Problem


def tiled_seconds(p: Problem, heads: Counts, rows: Counts, columns: Counts) -> Times:
    """Predicted seconds from input to answer of each plan; shares are taken to add up."""
    s, at = p.sizes, np.arange(p.n)
    inner_bytes = float(ITEMSIZE * s.inner)
    headed, cut = heads > 0, columns > 0
    shared = rows_of(rows)
    ready_s = p.mixed_s[at, heads]
    ends_s, leaves_s = _reduced(p, 0, shared, headed, ready_s), _sent(p, shared, headed, ready_s)
    for f in range(1, s.n_forwards + 1):
        starts_s = held(p, inner_bytes, shared, ends_s, cut, np.maximum(ends_s, leaves_s))
        done_s = np.where(cut, starts_s + p.forward_s[f - 1][at, columns], ends_s)
        ends_s, leaves_s = _reduced(p, f, shared, cut, done_s), _sent(p, shared, cut, done_s)
    works = headed | cut | (rows > 0)
    return whole_s(p, headed, shared, ends_s, works, np.maximum(ends_s, leaves_s))


def _sent(p: Problem, rows: Rows, senders: Sets, ready_s: PerDevice) -> PerDevice:
    """When each device's interface has passed its sums of all others' rows: its own rows wait behind them."""
    b = float(ITEMSIZE * p.sizes.inner) * rows.each
    others = b.sum(1, keepdims=True) - b
    wait_s = np.where((b > 0)[:, None, :], b[:, None, :] / p.rate + p.rtt_s, 0.0)
    wait_s[:, np.arange(p.n), np.arange(p.n)] = 0.0
    sent_s: PerDevice = ready_s + senders * np.maximum(wait_s.max(2), others / p.egress)
    return sent_s


def _reduced(p: Problem, f: int, rows: Rows, senders: Sets, ready_s: PerDevice) -> PerDevice:
    """Reduce-scatter: when each device is through with sum `f` over its rows; who has none, when it was."""
    row_bytes = float(ITEMSIZE * p.sizes.inner)
    has_rows, b = rows.each > 0, row_bytes * rows.each
    wait_s = (rows.served[:, None, :] - rows.fewer) * (row_bytes / p.egress)[:, None]
    into = (senders.sum(1, keepdims=True) - senders) * b / p.ingress
    np.maximum(wait_s, into[:, None, :], out=wait_s)
    np.maximum(wait_s, b[:, None, :] / p.rate, out=wait_s)
    wait_s += ready_s[:, :, None] + p.rtt_s
    moves = senders[:, :, None] & has_rows[:, None, :]
    moves[:, np.arange(p.n), np.arange(p.n)] = False
    start_s = np.maximum(np.where(moves, wait_s, 0.0).max(1), ready_s)
    reduce_s = np.zeros_like(start_s)
    n_terms = senders.sum(1)
    for n in np.unique(n_terms):
        mine = n_terms == n
        reduce_s[mine] = p.reduce_s(f, int(n))[np.arange(p.n), rows.each[mine]]
    ends_s: PerDevice = np.where(has_rows, start_s + reduce_s, ready_s)
    return ends_s
