"""The best rows and columns for given heads, as a linear program over `partition_cost`'s steps.

With fixed heads, eq. 5 to 7 are linear in rows and columns except for two terms, which are taken from a
nearby plan: the slope of a measured curve, and the order in which exchanges that share an interface end.
"""

from dataclasses import dataclass

import numpy as np

from pliant.arrays import Bool, Float, Int
from pliant.plan.linear_program import INFINITY, LinearProgram
from pliant.plan.partition.initial_plans import share_proportionally
from pliant.plan.partition.partition_cost import FlatPlans, device_weight_bytes
from pliant.plan.partition.problem import ITEMSIZE, PartitionProblem, TimeTable

Vector = Float[np.ndarray, " devices"]
DeviceCounts = Int[np.ndarray, " devices"]
DeviceSet = Bool[np.ndarray, " devices"]


def fit_shares(p: PartitionProblem, near: FlatPlans) -> FlatPlans:
    """Return `near` with its heads, and with integer rows (and columns) that are optimal near it.

    Devices that get no rows are excluded and the rest is solved again (Hepti 4.3).
    """
    able = _row_room(p, near)
    for _ in range(3):
        solved = _SharesProgram(p, near, able).solve()
        if solved is None:
            return near
        rows, columns = solved
        if near.mode == "1d":
            room = _column_room(p, near)
            whole = share_proportionally(columns[None], p.sizes.n_columns, room[None])
            near = FlatPlans(near.mode, near.heads, near.rows, whole)
        whole = share_proportionally(rows[None], p.sizes.rows)
        near = FlatPlans(near.mode, near.heads, whole, near.columns)
        if ((whole[0] > 0) == able).all():
            break
        able = whole[0] > 0
    return near


def chord(times: TimeTable, counts: DeviceCounts) -> tuple[Vector, Vector]:
    """Return (fixed, slope) of the line through each device's times at about half and twice its count."""
    most, at = times.shape[1] - 1, np.arange(len(times))
    if most < 2:
        return np.zeros(len(times)), times[:, most].copy()
    low = np.clip(counts // 2, 1, most - 1)
    high = np.clip(2 * counts + 1, low + 1, most)
    slope = np.maximum((times[at, high] - times[at, low]) / (high - low), 0.0)
    return np.maximum(times[at, low] - slope * low, 0.0), slope


def _row_room(p: PartitionProblem, plan: FlatPlans) -> DeviceSet:
    """Return which devices have enough memory left for a row."""
    held = device_weight_bytes(p, FlatPlans(plan.mode, plan.heads, np.zeros_like(plan.rows), plan.columns))[0]
    able: DeviceSet = p.memory - held >= (p.sizes.ws_row if plan.mode == "ws" else p.sizes.tiled_row)
    return able


def _column_room(p: PartitionProblem, plan: FlatPlans) -> Vector:
    """Return how many columns fit in each device's memory."""
    held = device_weight_bytes(p, FlatPlans(plan.mode, plan.heads, plan.rows, np.zeros_like(plan.columns)))[0]
    room: Vector = np.maximum(p.memory - held, 0.0) // p.sizes.tiled_column
    return room


@dataclass(frozen=True, slots=True)
class _ReadyTimes:
    """Ready times of some devices, [devices]: `fixed` seconds plus slopes times variables (`terms`)."""

    fixed: Vector
    terms: tuple[tuple[DeviceCounts, Vector], ...] = ()

    def at(self, i: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        return tuple((columns[i], slopes[i]) for columns, slopes in self.terms)


class _SharesProgram:
    """Variables: rows, columns, a block of [devices] start times per exchange, and two end times."""

    def __init__(self, p: PartitionProblem, near: FlatPlans, able: DeviceSet) -> None:
        self.p, self.near, self.able = p, near, able
        self.r0 = near.rows[0].astype(float)
        n, s = p.n, p.sizes
        n_blocks = 1 if near.mode == "ws" else 1 + 2 * s.n_forwards
        self.rows, self.columns = np.arange(n), n + np.arange(n)
        self.blocks = [(2 + b) * n + np.arange(n) for b in range(n_blocks)]
        size = (2 + n_blocks) * n
        self.end, self.last = np.full(n, size), np.full(n, size + 1)
        cut = near.columns[0] > 0
        high = np.full(size + 2, INFINITY)
        high[:n] = np.where(able, s.rows, 0.0)
        high[n : 2 * n] = np.where(cut, _column_room(p, near), 0.0) if near.mode == "1d" else 0.0
        cost = np.zeros(size + 2)
        cost[-2:] = s.n_layers - 1.0, 1.0
        self.lp = LinearProgram(cost, np.zeros(size + 2), high)
        self.lp.equal(np.array([float(s.rows)]), (self.rows[None], np.ones(1)))
        if near.mode == "1d":
            self.lp.equal(np.array([float(s.n_columns)]), (self.columns[None], np.ones(1)))

    def solve(self) -> tuple[Vector, Vector] | None:
        """Return (rows, columns), not rounded; None if infeasible."""
        if self.near.mode == "ws":
            self._weight_stationary()
        else:
            self._tiled()
        solved = self.lp.solve()
        if solved is None:
            return None
        values = np.maximum(solved.values, 0.0)
        return values[self.rows], values[self.columns]

    def _weight_stationary(self) -> None:
        p, s, h = self.p, self.p.sizes, self.near.heads[0]
        (start,) = self.blocks
        attend = _ReadyTimes(p.attend_s[np.arange(p.n), h])
        self._scatter(attend, float(ITEMSIZE * s.head_dim) * h, start)
        done = self._after(start, chord(p.rest_s, self.near.rows[0]), self.rows)
        self._ends(done, h > 0)

    def _tiled(self) -> None:
        p, s, h = self.p, self.p.sizes, self.near.heads[0]
        headed, cut = h > 0, self.near.columns[0] > 0
        inner_bytes = float(ITEMSIZE * s.inner)
        start, *blocks = self.blocks
        self._scatter(_ReadyTimes(p.mixed_s[np.arange(p.n), h]), inner_bytes * headed, start)
        n_terms = int(headed.sum())
        for f in range(s.n_forwards):
            entry, following = blocks[2 * f], blocks[2 * f + 1]
            reduced = self._after(start, chord(p.reduce_s(f, n_terms), self.near.rows[0]), self.rows)
            self._gather(reduced, cut, inner_bytes, entry)
            worked = self._after(entry, chord(p.forward_s[f], self.near.columns[0]), self.columns)
            self._scatter(worked, inner_bytes * cut, following)
            start, n_terms = following, int(cut.sum())
        done = self._after(start, chord(p.reduce_s(s.n_forwards, n_terms), self.near.rows[0]), self.rows)
        self._ends(done, headed)

    def _after(self, start: DeviceCounts, line: tuple[Vector, Vector], share: DeviceCounts) -> _ReadyTimes:
        """Return the end of a share that starts at `start`, by the line of its device."""
        return _ReadyTimes(line[0], ((start, np.ones(self.p.n)), (share, line[1])))

    def _ends(self, done: _ReadyTimes, headed: DeviceSet) -> None:
        needs, alone = headed.copy(), np.zeros(self.p.n, dtype=bool)
        needs[self.p.primary] = alone[self.p.primary] = True
        row_bytes = float(ITEMSIZE * self.p.sizes.hidden)
        self._gather(done, needs, row_bytes, self.end)
        self._gather(done, alone, row_bytes, self.last)

    def _scatter(self, ready: _ReadyTimes, row_bytes: Vector, start: DeviceCounts) -> None:
        """Devices with `row_bytes` send that many bytes of each row to its owner, which may then `start`."""
        p, m, r0 = self.p, float(self.p.sizes.rows), self.r0
        own = np.nonzero((row_bytes > 0) & self.able)[0]
        self._later(ready, own, start[own])
        i, j = _pairs(row_bytes > 0, self.able)
        if not len(i):
            return
        both = np.minimum(row_bytes[:, None], row_bytes[None, :])
        into = (both.sum(1)[i] - both[i, j]) / p.ingress[j]
        self._later(
            ready,
            i,
            start[j],
            p.latency_s[i, j],
            (self.rows[j], np.maximum(into, row_bytes[i] / p.rate[i, j])),
        )
        share = (_received(r0)[j] - np.minimum(r0[i], r0[j])) / np.maximum(m - r0[i], 1.0)
        sent = row_bytes[i] / p.egress[i] * np.minimum(share, 1.0)
        self._later(ready, i, start[j], p.latency_s[i, j] + sent * m, (self.rows[i], -sent))

    def _gather(self, ready: _ReadyTimes, needs: DeviceSet, row_bytes: float, start: DeviceCounts) -> None:
        """All devices' rows reach the devices in `needs`, which may then `start`."""
        p, m, r0 = self.p, float(self.p.sizes.rows), self.r0
        own = np.nonzero(self.able)[0] if start[0] == start[-1] else np.nonzero(self.able & needs)[0]
        self._later(ready, own, start[own])
        i, j = _pairs(self.able, needs)
        if not len(i):
            return
        n_to = needs.sum() - needs[i]
        sent = row_bytes * np.maximum(n_to / p.egress[i], 1.0 / p.rate[i, j])
        self._later(ready, i, start[j], p.latency_s[i, j], (self.rows[i], sent))
        share = (_received(r0)[i] - np.minimum(r0[i], r0[j])) / np.maximum(m - r0[j], 1.0)
        taken = row_bytes / p.ingress[j] * np.minimum(share, 1.0)
        self._later(ready, i, start[j], p.latency_s[i, j] + taken * m, (self.rows[j], -taken))

    def _later(
        self,
        ready: _ReadyTimes,
        i: np.ndarray,
        start: np.ndarray,
        more_s: np.ndarray | float = 0.0,
        *terms: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Constrain `start` to be after device i is ready, plus `more_s` and the terms."""
        if len(i):
            self.lp.at_most(-(ready.fixed[i] + more_s), *ready.at(i), *terms, (start, np.full(len(i), -1.0)))


def _pairs(src: DeviceSet, dst: DeviceSet) -> tuple[np.ndarray, np.ndarray]:
    i, j = np.nonzero(src[:, None] & dst[None, :])
    return i[i != j], j[i != j]


def _received(r: Vector) -> Vector:
    """Return the total received by all devices when the exchange of r[i] ends."""
    both: Vector = np.minimum(r[:, None], r[None, :]).sum(0)
    return both
