"""How long the weight-stationary mode takes, for many partitions at once.

The steps of `plan.split` in closed form: exchanges that leave or reach a device together share its
interface evenly, so the k-th smallest of them ends when everyone has had as much as it.
"""

from dataclasses import dataclass

import numpy as np

from pliant.arrays import Bool, Float, Int
from pliant.plan.partition.problem import ITEMSIZE, Problem

Counts = Int[np.ndarray, "plans devices"]
Times = Float[np.ndarray, " plans"]
PerDevice = Float[np.ndarray, "plans devices"]
Sets = Bool[np.ndarray, "plans devices"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of each plan's devices, and of every two the fewer: [plans, devices, devices] and its sum."""

    each: Counts
    fewer: Float[np.ndarray, "plans devices devices"]
    served: PerDevice


def rows_of(rows: Counts) -> Rows:
    """`served` is how many rows all have had together when the exchange of each one's rows ends."""
    r = rows.astype(float)
    fewer = np.minimum(r[:, :, None], r[:, None, :])
    return Rows(rows, fewer, fewer.sum(1))


def ws_seconds(p: Problem, heads: Counts, rows: Counts) -> Times:
    """Predicted seconds from input to answer of each plan; shares are taken to add up."""
    at = np.arange(p.n)
    shared = rows_of(rows)
    attend_s = p.attend_s[at, heads]
    starts_s = _attended(p, heads, shared, attend_s)
    ends_s = np.where(rows > 0, starts_s + p.rest_s[at, rows], attend_s)
    return whole_s(p, heads > 0, shared, ends_s, (heads > 0) | (rows > 0))


def whole_s(
    p: Problem, headed: Sets, rows: Rows, ends_s: PerDevice, works: Sets, leaves_s: PerDevice | None = None
) -> Times:
    """The run, from a layer's `ends_s`: x reaches who has heads, and the primary after every layer.

    Nobody waits for a primary that is none of who `works`: what it takes travels beside the next layer.
    `leaves_s` as for `held`.
    """
    leaves_s = ends_s if leaves_s is None else leaves_s
    needs = headed.copy()
    needs[:, p.primary] = True
    row_bytes = float(ITEMSIZE * p.sizes.hidden)
    held_s = held(p, row_bytes, rows, ends_s, needs, leaves_s)
    back_s = _back(p, row_bytes, rows)
    idle = ~works[:, p.primary]
    held_s[idle, p.primary] = back_s[idle].max(1)
    last_s = np.where(back_s > 0, leaves_s + back_s, ends_s).max(1)
    total_s: Times = _opened(p, needs, rows.each) + (p.sizes.n_layers - 1) * held_s.max(1) + last_s
    return total_s


def _opened(p: Problem, needs: Sets, rows: Counts) -> Times:
    """The primary sends x: whole to who `needs` it, own rows to the others."""
    n_bytes = ITEMSIZE * p.sizes.hidden * np.where(needs, p.sizes.rows, rows).astype(float)
    n_bytes[:, p.primary] = 0.0
    served = np.minimum(n_bytes[:, :, None], n_bytes[:, None, :]).sum(2)
    end_s = p.rtt_s[p.primary] + np.maximum(n_bytes / p.rate[p.primary], served / p.egress[p.primary])
    last_s: Times = np.where(n_bytes > 0, end_s, 0.0).max(1)
    return last_s


def _back(p: Problem, row_bytes: float, rows: Rows) -> PerDevice:
    """How long each device's rows take to the primary where nobody else wants them; its own take 0."""
    to = p.primary
    into = (rows.served - rows.fewer[:, :, to]) * row_bytes / p.ingress[to]
    back_s = p.rtt_s[:, to] + np.maximum(into, rows.each * row_bytes / p.rate[:, to])
    moves = rows.each > 0
    moves[:, to] = False
    return np.where(moves, back_s, 0.0)


def _attended(p: Problem, heads: Counts, rows: Rows, attend_s: PerDevice) -> PerDevice:
    """When each device holds the attended rows that it owns: everybody's heads of them."""
    unit = float(ITEMSIZE * p.sizes.head_dim)
    h, r = unit * heads, rows.each
    fewer = np.minimum(h[:, :, None], h[:, None, :])
    wait_s = (h / p.egress)[:, :, None] * (rows.served[:, None, :] - rows.fewer)
    into = (r / p.ingress)[:, None, :] * (fewer.sum(1)[:, :, None] - fewer)
    np.maximum(wait_s, into, out=wait_s)
    n_bytes = h[:, :, None] * r[:, None, :]
    n_bytes[:, np.arange(p.n), np.arange(p.n)] = 0.0
    np.maximum(wait_s, n_bytes / p.rate, out=wait_s)
    wait_s += attend_s[:, :, None] + p.rtt_s
    held_s: PerDevice = np.maximum(np.where(n_bytes > 0, wait_s, 0.0).max(1), attend_s)
    return held_s


def held(
    p: Problem, row_bytes: float, rows: Rows, ends_s: PerDevice, needs: Sets, leaves_s: PerDevice
) -> PerDevice:
    """When each device that `needs` them holds everybody's rows, ready at `ends_s`; others at `ends_s`.

    Rows go out at `leaves_s`: later than they are ready where an earlier exchange still fills the interface.
    """
    b = row_bytes * rows.each
    wait_s = (rows.served[:, :, None] - rows.fewer) * (row_bytes / p.ingress)
    n_to = needs.sum(1, keepdims=True) - needs
    np.maximum(wait_s, (b * n_to / p.egress)[:, :, None], out=wait_s)
    np.maximum(wait_s, b[:, :, None] / p.rate, out=wait_s)
    wait_s += leaves_s[:, :, None] + p.rtt_s
    moves = (b > 0)[:, :, None] & needs[:, None, :]
    moves[:, np.arange(p.n), np.arange(p.n)] = False
    held_s: PerDevice = np.maximum(np.where(moves, wait_s, 0.0).max(1), ends_s)
    return held_s
