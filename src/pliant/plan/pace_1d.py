"""How long the 1D-tiled mode takes, for many partitions at once. Knows no solver.

The steps of `plan.split` in closed form, as `plan.pace_ws` has them.
"""

import numpy as np

from pliant.plan.pace_ws import Counts, PerDevice, Sets, Times, held, opened
from pliant.plan.problem import ITEMSIZE, Problem


def tiled_seconds(p: Problem, heads: Counts, rows: Counts, columns: Counts) -> Times:
    """Predicted seconds from input to answer of each plan; shares are taken to add up."""
    s, at = p.sizes, np.arange(p.n)
    inner_bytes = ITEMSIZE * s.inner
    headed, cut = heads > 0, columns > 0
    ends_s = _reduced(p, 0, rows, headed, p.mixed_s[at, heads])
    for f in range(1, s.n_forwards + 1):
        starts_s = held(p, inner_bytes * rows, ends_s, cut)
        done_s = np.where(cut, starts_s + p.forward_s[f - 1][at, columns], ends_s)
        ends_s = _reduced(p, f, rows, cut, done_s)
    needs = headed.copy()
    needs[:, p.primary] = True
    inner_s = held(p, ITEMSIZE * s.hidden * rows, ends_s, needs).max(1)
    last = np.zeros_like(needs)
    last[:, p.primary] = True
    last_s = held(p, ITEMSIZE * s.hidden * rows, ends_s, last).max(1)
    total_s: Times = opened(p, needs, rows) + (s.n_layers - 1) * inner_s + last_s
    return total_s


def _reduced(p: Problem, f: int, rows: Counts, senders: Sets, ready_s: PerDevice) -> PerDevice:
    """Reduce-scatter: when each device is through with sum `f` over its rows; who has none, when it was."""
    b = (ITEMSIZE * p.sizes.inner * rows).astype(float)
    both = np.minimum(b[:, :, None], b[:, None, :])
    out = (both.sum(1)[:, None, :] - both) / p.egress[:, None]
    into = (senders.sum(1, keepdims=True) - senders) * b / p.ingress
    end_s = (
        ready_s[:, :, None] + p.rtt_s + np.maximum(np.maximum(out, into[:, None, :]), b[:, None, :] / p.rate)
    )
    moves = senders[:, :, None] & (rows > 0)[:, None, :]
    moves[:, np.arange(p.n), np.arange(p.n)] = False
    start_s = np.maximum(np.where(moves, end_s, 0.0).max(1), ready_s)
    reduce_s = np.zeros_like(start_s)
    for n_terms in np.unique(senders.sum(1)):
        mine = senders.sum(1) == n_terms
        reduce_s[mine] = p.reduce_s(f, int(n_terms))[np.arange(p.n), rows[mine]]
    return np.where(rows > 0, start_s + reduce_s, ready_s)
