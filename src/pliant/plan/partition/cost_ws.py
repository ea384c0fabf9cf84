"""Predicted time of the weight-stationary mode, for many partitions at once.

The steps of `plan.split` in closed form. Concurrent exchanges of a device share its interface evenly, so the
k-th smallest of them ends when each has received as much as it has. A device's thread sends its messages one
after another, and receives them likewise.
"""

from dataclasses import dataclass

import numpy as np

from pliant.arrays import Bool, Float, Int
from pliant.plan.partition.problem import ITEMSIZE, PartitionProblem

Counts = Int[np.ndarray, "plans devices"]
Times = Float[np.ndarray, " plans"]
PerDevice = Float[np.ndarray, "plans devices"]
Sets = Bool[np.ndarray, "plans devices"]
Pairs = Float[np.ndarray, "plans devices devices"]


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows of each plan's devices, and the minimum of every pair: [plans, devices, devices] and its sum."""

    each: Counts
    fewer: Float[np.ndarray, "plans devices devices"]
    served: PerDevice


def row_counts(rows: Counts) -> RowCounts:
    """`served` is the total number of rows received by all when the exchange of each one's rows ends."""
    r = rows.astype(float)
    fewer = np.minimum(r[:, :, None], r[:, None, :])
    return RowCounts(rows, fewer, fewer.sum(1))


def ws_seconds(p: PartitionProblem, heads: Counts, rows: Counts) -> Times:
    """Return the predicted seconds from input to answer of each plan; shares are assumed to add up."""
    at = np.arange(p.n)
    shared = row_counts(rows)
    attend_s = p.attend_s[at, heads]
    starts_s = _attended_s(p, heads, shared, attend_s)
    ends_s = np.where(rows > 0, starts_s + p.rest_s[at, rows], starts_s)
    return run_s(p, heads > 0, shared, ends_s, (heads > 0) | (rows > 0))


def run_s(
    p: PartitionProblem,
    headed: Sets,
    rows: RowCounts,
    ends_s: PerDevice,
    works: Sets,
    leaves_s: PerDevice | None = None,
) -> Times:
    """Return the time of the run, from a layer's `ends_s`: x reaches devices with heads and the primary.

    If the primary is not in `works`, its receives overlap the next layer. `leaves_s` as for `gather_s`.
    """
    leaves_s = ends_s if leaves_s is None else leaves_s
    needs = headed.copy()
    needs[:, p.primary] = True
    row_bytes = float(ITEMSIZE * p.sizes.hidden)
    held_s = gather_s(p, row_bytes, rows, ends_s, needs, leaves_s)
    back_s = _return_s(p, row_bytes, rows)
    idle = ~works[:, p.primary]
    held_s[idle, p.primary] = back_s[idle].max(1)
    n_bytes = row_bytes * rows.each * (back_s > 0)
    last_s = _last_exchange_s(p, n_bytes, back_s, ends_s, leaves_s)
    layers_s = (p.sizes.n_layers - 1) * held_s.max(1) + last_s
    total_s: Times = p.ends_s + _input_s(p, needs, rows.each) + layers_s
    return total_s


def _last_exchange_s(
    p: PartitionProblem, n_bytes: PerDevice, back_s: PerDevice, ends_s: PerDevice, leaves_s: PerDevice
) -> Times:
    """End of the last layer: devices with rows send them, `n_bytes` in `back_s`, to the primary."""
    moves = n_bytes > 0
    n_in = moves.sum(1)
    arrive_s = np.maximum(leaves_s, ends_s + _overhead_s(p.send, moves, n_bytes)) + back_s
    take_s = _overhead_s(p.take, n_in[:, None], n_bytes.sum(1)[:, None])[:, p.primary]
    first_s = np.maximum(np.where(moves, arrive_s, np.inf).min(1), ends_s[:, p.primary])
    last_s = np.where(moves, arrive_s, ends_s).max(1) + take_s / np.maximum(n_in, 1)
    returned_s: Times = np.maximum(last_s, np.where(n_in > 0, first_s + take_s, 0.0))
    return returned_s


def _input_s(p: PartitionProblem, needs: Sets, rows: Counts) -> Times:
    """Return the time of the input: the primary sends all of x to devices in `needs`, own rows to others."""
    n_bytes = ITEMSIZE * p.sizes.hidden * np.where(needs, p.sizes.rows, rows).astype(float)
    n_bytes[:, p.primary] = 0.0
    served = np.minimum(n_bytes[:, :, None], n_bytes[:, None, :]).sum(2)
    n_out = (n_bytes > 0).sum(1)[:, None]
    sent_s = _overhead_s(p.send, n_out, n_bytes.sum(1)[:, None])[:, p.primary][:, None]
    end_s = p.latency_s[p.primary] + np.maximum(
        n_bytes / p.rate[p.primary] + sent_s, served / p.egress[p.primary] + sent_s / np.maximum(n_out, 1)
    )
    end_s += _overhead_s(p.take, n_bytes > 0, n_bytes)
    last_s: Times = np.where(n_bytes > 0, end_s, 0.0).max(1)
    return last_s


def exchange_s(
    p: PartitionProblem, n_bytes: Pairs, wait_s: Pairs, ready_s: PerDevice, leaves_s: PerDevice | None = None
) -> PerDevice:
    """Return when each device has sent its part of `n_bytes` from i to j and received its own.

    `wait_s` is the transfer time, `ready_s` the start of sending, `leaves_s` when the interface is free;
    without `leaves_s`, `wait_s` need not include the time of a pair's own link.
    """
    moves, way_s = n_bytes > 0, n_bytes / p.rate
    if not p.has_message_cost:
        np.maximum(way_s, wait_s, out=way_s)
        _to_arrival_times(p, way_s, wait_s, ready_s, leaves_s)
        met: PerDevice = np.maximum(np.where(moves, way_s, 0.0).max(1), ready_s)
        return met
    n_out, n_in = (moves.view(np.int8).sum(axis, dtype=np.int16) for axis in (2, 1))
    out_s, in_s = _overhead_s(p.send, n_out, n_bytes.sum(2)), _overhead_s(p.take, n_in, n_bytes.sum(1))
    way_s += out_s[:, :, None]
    np.maximum(way_s, wait_s + (out_s / np.maximum(n_out, 1))[:, :, None], out=way_s)
    _to_arrival_times(p, way_s, wait_s, ready_s, leaves_s)
    first_s = np.where(moves, way_s, np.inf).min(1, initial=np.inf)
    last_s = np.where(moves, way_s, 0.0).max(1) + in_s / np.maximum(n_in, 1)
    sent_s = ready_s + out_s
    taken_s: PerDevice = np.maximum(last_s, np.maximum(np.where(n_in > 0, first_s, 0.0), sent_s) + in_s)
    return taken_s


def _to_arrival_times(
    p: PartitionProblem, way_s: Pairs, wait_s: Pairs, ready_s: PerDevice, leaves_s: PerDevice | None
) -> None:
    """Turn transfer times into arrival times, in place."""
    way_s += ready_s[:, :, None] + p.latency_s
    if leaves_s is not None:
        np.maximum(way_s, wait_s + (leaves_s[:, :, None] + p.latency_s), out=way_s)


def _overhead_s(of: tuple[np.ndarray, np.ndarray], n_messages: np.ndarray, n_bytes: np.ndarray) -> PerDevice:
    message_s, byte_s = of
    seconds: PerDevice = message_s * n_messages + byte_s * n_bytes
    return seconds


def _return_s(p: PartitionProblem, row_bytes: float, rows: RowCounts) -> PerDevice:
    """Return the time of each device's rows to the primary if no other device wants them; 0 for its own."""
    to = p.primary
    into = (rows.served - rows.fewer[:, :, to]) * row_bytes / p.ingress[to]
    back_s = p.latency_s[:, to] + np.maximum(into, rows.each * row_bytes / p.rate[:, to])
    moves = rows.each > 0
    moves[:, to] = False
    return np.where(moves, back_s, 0.0)


def _attended_s(p: PartitionProblem, heads: Counts, rows: RowCounts, attend_s: PerDevice) -> PerDevice:
    """Return when each device has the attended rows that it owns, with all devices' heads."""
    unit = float(ITEMSIZE * p.sizes.head_dim)
    h, r = unit * heads, rows.each
    fewer = np.minimum(h[:, :, None], h[:, None, :])
    wait_s = (h / p.egress)[:, :, None] * (rows.served[:, None, :] - rows.fewer)
    into = (r / p.ingress)[:, None, :] * (fewer.sum(1)[:, :, None] - fewer)
    np.maximum(wait_s, into, out=wait_s)
    n_bytes = h[:, :, None] * r[:, None, :]
    n_bytes[:, np.arange(p.n), np.arange(p.n)] = 0.0
    np.maximum(wait_s, n_bytes / p.rate, out=wait_s)
    return exchange_s(p, n_bytes, wait_s, attend_s)


def gather_s(
    p: PartitionProblem,
    row_bytes: float,
    rows: RowCounts,
    ends_s: PerDevice,
    needs: Sets,
    leaves_s: PerDevice,
) -> PerDevice:
    """Return when each device in `needs` has all rows, ready at `ends_s`; other devices: when they have sent.

    Rows are sent at `leaves_s`, later than they are ready if an earlier exchange still occupies the
    interface.
    """
    b = row_bytes * rows.each
    wait_s = (rows.served[:, :, None] - rows.fewer) * (row_bytes / p.ingress)
    n_to = needs.sum(1, keepdims=True) - needs
    np.maximum(wait_s, (b * n_to / p.egress)[:, :, None], out=wait_s)
    np.maximum(wait_s, b[:, :, None] / p.rate, out=wait_s)
    n_bytes = b[:, :, None] * needs[:, None, :]
    n_bytes[:, np.arange(p.n), np.arange(p.n)] = 0.0
    return exchange_s(p, n_bytes, wait_s, ends_s, leaves_s)
