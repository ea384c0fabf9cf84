"""The best bits under the AIBs, from a fixed set of rows for each layer (dynamic programming).

A *row* is the bits of one layer's slices. The rows of a layer depend neither on the AIBs nor on the memory.
More IO time, or more planes in memory, therefore only adds feasible assignments, and the best of them is
never worse. A greedy choice lacks this property: its first purchase may exclude a better one.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pliant.arrays import Bool, Float, Int
from pliant.ir.bitwidths import FULL_BITS, LOWEST_BITS, PLANES
from pliant.ir.program import FULL
from pliant.plan.submodel.io_plan import TOLERANCE_S, Ledger, fidelity, fill_uniform

BitRows = Int[np.ndarray, "n rows m"]
_N_QUANTA = 1152
"""The number of parts of IO time for six bits everywhere; a plane takes a whole number of them."""
_N_LATENCY = 64
"""Limit on the resolution, as parts of a read's latency: a slow disk of small shards would need millions."""


def fill_rows(ledger: Ledger, weights: Float[np.ndarray, "n m"], errors: Sequence[float]) -> Ledger:
    """Return `ledger`, at its lowest bits, raised to the bits of most fidelity that its AIBs afford.

    The rows of a layer are: uniform bits; one more bit for the leading slices, which are read together;
    planes in the order of weighted error; and full fidelity for the leading or the most important slices
    beside all planes. Costs are rounded up to a quantum that depends only on the submodel and the disk.

    Fidelity never decreases with larger AIBs, nor with more planes held if these make no row more expensive.
    """
    uniform = ledger.copy()
    planes, most = ledger.planes, ledger.ladder[-1]
    if fill_uniform(uniform, uniform.shards_below(most)) == most:
        return uniform
    table = np.zeros(FULL_BITS + 1)
    table[: PLANES + 1] = errors
    made = [uniform]
    n_quanta, least_s = _N_QUANTA / weights.size, ledger.latency_s / _N_LATENCY
    if min(map(min, uniform.bits)) < planes:
        quantum_s = max(ledger.plane_s / ceil(n_quanta / (PLANES - LOWEST_BITS)), least_s)
        made.append(_filled(ledger, _plane_rows(weights, errors[: planes + 1]), weights, table, quantum_s))
    # Full fidelity is expensive for its small gain: not before a layer can have all planes and more.
    planes_s = ledger.m * (planes - LOWEST_BITS) * ledger.plane_s
    if most == FULL_BITS and ledger.room_s(ledger.n - 1) >= ledger.full_s + planes_s:
        quantum_s = max(ledger.full_s / ceil(n_quanta), least_s)
        made.append(_filled(ledger, _full_rows(weights, planes), weights, table, quantum_s))
    return max(made, key=lambda x: fidelity(x.bits, weights, errors))


def _plane_rows(weights: Float[np.ndarray, "n m"], errors: Sequence[float]) -> BitRows:
    """Return rows of 2 bits to all planes, as many for every layer; `errors` are at 0 planes to all."""
    n, m = weights.shape
    drop = -np.diff(np.asarray(errors))[LOWEST_BITS:]
    count = np.arange(m * len(drop))[:, None]
    leading = count // m + (np.arange(m) < count % m)
    trailing = leading[:, ::-1]
    rows = [np.broadcast_to(grid, (n, *grid.shape)) for grid in (leading, trailing)]
    rows += [_by_gain(weights, drop[:most]) for most in range(1, len(drop) + 1)]
    made: BitRows = LOWEST_BITS + np.concatenate(rows, axis=1)
    return made


def _by_gain(weights: Float[np.ndarray, "n m"], drop: Float[np.ndarray, " planes"]) -> BitRows:
    """The planes of each slice if 0, 1, 2, ... are given in order of the weighted error they remove."""
    n, m = weights.shape
    n_steps = m * len(drop)
    order = np.argsort(-(weights[:, :, None] * drop).reshape(n, n_steps), axis=1, kind="stable")
    position = np.empty_like(order)
    np.put_along_axis(position, order, np.arange(n_steps)[None, :], axis=1)
    given = position.reshape(n, 1, m, len(drop)) < np.arange(n_steps + 1)[:, None, None]
    made: BitRows = given.sum(axis=3)
    return made


def _full_rows(weights: Float[np.ndarray, "n m"], planes: int) -> BitRows:
    """Return rows of `planes` bits and full fidelity, and of uniform bits."""
    n, m = weights.shape
    order = np.argsort(-weights, axis=1, kind="stable")
    position = np.empty_like(order)
    np.put_along_axis(position, order, np.arange(m)[None, :], axis=1)
    count = np.arange(m + 1)[:, None]
    by_gain = position[:, None, :] < count
    leading = np.broadcast_to(np.arange(m) < count, by_gain.shape)
    full = np.where(np.concatenate((by_gain, leading), axis=1), FULL_BITS, planes)
    between = np.arange(LOWEST_BITS + 1, planes)
    uniform = np.broadcast_to(between[:, None], (n, between.size, m))
    return np.concatenate((uniform, full), axis=1)


def _filled(
    ledger: Ledger,
    rows: BitRows,
    weights: Float[np.ndarray, "n m"],
    table: Float[np.ndarray, " bits"],
    quantum_s: float,
) -> Ledger:
    """Return `ledger` raised to the best of `rows` for each layer."""
    floor = np.array(ledger.bits)[:, None, :]
    rows = np.concatenate((floor, np.maximum(rows, floor)), axis=1)
    cost_s, is_within = _costs(ledger, rows)
    extra_s = cost_s - np.array(ledger.load_s)[:, None]
    room_s = np.minimum.accumulate(np.array(ledger.spare_s)[::-1])[::-1]
    values = (weights[:, None, :] * (table[floor] - table[rows])).sum(axis=2)
    costs = np.ceil(np.maximum(extra_s, 0.0) / quantum_s - 1e-6).astype(np.int64)
    costs[~is_within] = np.iinfo(np.int64).max // 2
    costs[:, 0] = 0
    room = np.floor((room_s + TOLERANCE_S) / quantum_s + 1e-6).astype(np.int64)
    chosen = _best(costs, values, np.maximum(room, 0))
    made = ledger.copy()
    made.force_bits(rows[np.arange(ledger.n), chosen].tolist())
    return made


def _best(
    costs: Int[np.ndarray, "n rows"], values: Float[np.ndarray, "n rows"], room: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """The row of each layer with the highest total value such that rows 0..k cost at most `room[k]`."""
    candidates = [_undominated(c, v, int(most)) for c, v, most in zip(costs, values, room, strict=True)]
    size = min(int(room[-1]), sum(int(costs[k, rows[-1]]) for k, rows in enumerate(candidates))) + 1
    worths = [np.zeros(size)]  # of the layers before each, for each number of quanta
    for k, rows in enumerate(candidates):
        pad = int(costs[k, rows[-1]])
        before = sliding_window_view(np.concatenate((np.full(pad, -np.inf), worths[-1])), size)
        worth = (before[pad - costs[k, rows]] + values[k, rows][:, None]).max(axis=0)
        worth[room[k] :] = worth[min(int(room[k]), size - 1)]
        worths.append(worth)
    chosen = np.empty(len(candidates), np.int64)
    left = size - 1
    for k in reversed(range(len(candidates))):
        left = min(left, int(room[k]))
        rows = candidates[k][costs[k, candidates[k]] <= left]
        chosen[k] = rows[np.argmax(worths[k][left - costs[k, rows]] + values[k, rows])]
        left -= int(costs[k, chosen[k]])
    return chosen


def _undominated(
    costs: Int[np.ndarray, " rows"], values: Float[np.ndarray, " rows"], most: int
) -> Int[np.ndarray, " kept"]:
    """Return the Pareto-optimal rows that cost at most `most`, by cost."""
    order = np.lexsort((-values, costs))
    order = order[costs[order] <= most]
    before = np.concatenate(([-np.inf], np.maximum.accumulate(values[order])[:-1]))
    return order[values[order] > before]


def _costs(ledger: Ledger, rows: BitRows) -> tuple[Float[np.ndarray, "n rows"], Bool[np.ndarray, "n rows"]]:
    """Return the seconds of each row's reads, as in `Ledger.price`, and whether they fit the limit."""
    need = _need(ledger, rows)
    planes, full = need[..., :PLANES, :], need[..., FULL, :]
    n_planes, n_full = planes.sum(axis=(2, 3)), full.sum(axis=2)
    reads = (planes & ~_follows(ledger, need)[..., :PLANES, :]).sum(axis=(2, 3))
    if ledger.is_anytime:
        reads = reads + _pieces(full, ledger.full_chunk)
    else:
        reads = reads + (full & ~_follows(ledger, need)[..., FULL, :]).sum(axis=2)
    seconds = n_planes * ledger.plane_s + n_full * ledger.full_s + reads * ledger.latency_s
    if ledger.limit_bytes is None:
        return seconds, np.ones(seconds.shape, np.bool_)
    n_bytes = n_planes * ledger.plane_bytes + n_full * ledger.full_bytes
    return seconds, n_bytes <= ledger.limit_bytes


def _need(ledger: Ledger, rows: BitRows) -> Bool[np.ndarray, "n rows parts m"]:
    """Return the parts that each row reads beside the held ones."""
    base = LOWEST_BITS if ledger.is_anytime else 0
    part = np.arange(FULL + 1)[:, None]
    is_full = (rows == FULL_BITS)[:, :, None, :]
    wanted = np.where(is_full, (part < base) | (part == FULL), part < np.minimum(rows, PLANES)[:, :, None, :])
    held = np.array(ledger.held)[:, None, None, :]
    has = np.where(held == FULL_BITS, True, part < held)
    need: Bool[np.ndarray, "n rows parts m"] = wanted & ~has
    return need


def _follows(ledger: Ledger, need: Bool[np.ndarray, "n rows parts m"]) -> Bool[np.ndarray, "n rows parts m"]:
    """Return whether the part that precedes a slice's part in the file is in the same read."""
    parts, slices = (np.zeros((FULL + 1, ledger.m), np.int64) for _ in range(2))
    is_first = np.ones((FULL + 1, ledger.m), np.bool_)
    for here, last in ledger.before.items():
        (parts[here], slices[here]), is_first[here] = last, False
    return need[..., parts, slices] & ~is_first


def _pieces(full: Bool[np.ndarray, "n rows m"], size: int) -> Int[np.ndarray, "n rows"]:
    """Return how many reads of at most `size` slices cover each row's full fidelity."""
    reads = np.zeros(full.shape[:2], np.int64)
    length = np.zeros(full.shape[:2], np.int64)
    for s in range(full.shape[2]):
        length = (length + 1) * full[..., s]
        reads += (length % size == 1) if size > 1 else full[..., s]
    return reads
