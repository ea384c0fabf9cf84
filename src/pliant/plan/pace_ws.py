"""How long the weight-stationary mode takes, for many partitions at once. Knows no solver.

The steps of `plan.split` in closed form: exchanges that leave or reach a device together share its
interface evenly, so the k-th smallest of them ends when everyone has had as much as it.
"""

import numpy as np

from pliant.arrays import Bool, Float, Int
from pliant.plan.problem import ITEMSIZE, Problem

Counts = Int[np.ndarray, "plans devices"]
Times = Float[np.ndarray, " plans"]
PerDevice = Float[np.ndarray, "plans devices"]
Sets = Bool[np.ndarray, "plans devices"]


def ws_seconds(p: Problem, heads: Counts, rows: Counts) -> Times:
    """Predicted seconds from input to answer of each plan; shares are taken to add up."""
    s, at = p.sizes, np.arange(p.n)
    attend_s = p.attend_s[at, heads]
    rest_s = p.rest_s[at, rows]
    needs = heads > 0
    needs[:, p.primary] = True
    ends_s = np.where(rows > 0, _attended(p, heads, rows, attend_s) + rest_s, attend_s)
    row_bytes = ITEMSIZE * s.hidden
    inner_s = held(p, row_bytes * rows, ends_s, needs).max(1)
    last = np.zeros_like(needs)
    last[:, p.primary] = True
    last_s = held(p, row_bytes * rows, ends_s, last).max(1)
    total_s: Times = opened(p, needs, rows) + (s.n_layers - 1) * inner_s + last_s
    return total_s


def opened(p: Problem, needs: Sets, rows: Counts) -> Times:
    """The primary sends x: whole to who `needs` it, own rows to the others."""
    n_bytes = ITEMSIZE * p.sizes.hidden * np.where(needs, p.sizes.rows, rows).astype(float)
    n_bytes[:, p.primary] = 0.0
    return _fan_out(p, n_bytes, p.primary)


def _fan_out(p: Problem, n_bytes: PerDevice, src: int) -> Times:
    served = np.minimum(n_bytes[:, :, None], n_bytes[:, None, :]).sum(2)
    end_s = p.rtt_s[src] + np.maximum(n_bytes / p.rate[src], served / p.egress[src])
    last_s: Times = np.where(n_bytes > 0, end_s, 0.0).max(1)
    return last_s


def _attended(p: Problem, heads: Counts, rows: Counts, attend_s: PerDevice) -> PerDevice:
    """When each device holds the attended rows that it owns: everybody's heads of them."""
    unit = float(ITEMSIZE * p.sizes.head_dim)
    h, r = heads.astype(float), rows.astype(float)
    both_r = np.minimum(r[:, :, None], r[:, None, :])
    both_h = np.minimum(h[:, :, None], h[:, None, :])
    out = unit * h[:, :, None] * (both_r.sum(1)[:, None, :] - both_r) / p.egress[:, None]
    into = unit * r[:, None, :] * (both_h.sum(1)[:, :, None] - both_h) / p.ingress[None, :]
    n_bytes = unit * h[:, :, None] * r[:, None, :]
    n_bytes[:, np.arange(p.n), np.arange(p.n)] = 0.0
    end_s = attend_s[:, :, None] + p.rtt_s + np.maximum(np.maximum(out, into), n_bytes / p.rate)
    held_s: PerDevice = np.maximum(np.where(n_bytes > 0, end_s, 0.0).max(1), attend_s)
    return held_s


def held(
    p: Problem,
    n_bytes: Counts,
    ends_s: PerDevice,
    needs: Sets,
) -> PerDevice:
    """When each device that `needs` it holds everybody's `n_bytes`, ready at `ends_s`; others at `ends_s`."""
    b = n_bytes.astype(float)
    out = b * (needs.sum(1, keepdims=True) - needs) / p.egress
    both = np.minimum(b[:, :, None], b[:, None, :])
    into = (both.sum(1)[:, :, None] - both) / p.ingress
    end_s = (
        ends_s[:, :, None] + p.rtt_s + np.maximum(np.maximum(out[:, :, None], into), b[:, :, None] / p.rate)
    )
    moves = (b > 0)[:, :, None] & needs[:, None, :]
    moves[:, np.arange(p.n), np.arange(p.n)] = False
    held_s: PerDevice = np.maximum(np.where(moves, end_s, 0.0).max(1), ends_s)
    return held_s
