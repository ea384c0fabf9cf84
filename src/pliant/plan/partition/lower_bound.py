"""A lower bound on the time of a mode's partitions, by a linear or integer relaxation (HiGHS).

Every row is a wait that `partition_cost` imposes on each plan: all heads before any row, the traffic in or
out of one interface, own work. Times are the line through a device's first head, row or column that lies
below its table. Which devices have heads and columns at all is binary: relaxed, a fraction costs almost
nothing, which is fast and loose; with `time_limit_s` the binaries are branched on, which is tighter.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from pliant.arrays import Float, Int
from pliant.ir.partition import Mode
from pliant.plan.linear_program import INFINITY, LinearProgram
from pliant.plan.partition.problem import ITEMSIZE, PartitionProblem, TimeTable, in_units_of

Term = tuple[np.ndarray, np.ndarray]
Vector = Float[np.ndarray, " devices"]
Index = Int[np.ndarray, " devices"]


def bound_s(p: PartitionProblem, mode: Mode, time_limit_s: float = 0.0) -> float:
    """Return a lower bound on the predicted seconds of all partitions of `mode` that fit in memory.

    Without a time limit, by the linear relaxation alone; with one, the best bound of a branching search
    within it.
    """
    return p.ends_s + _relaxed_s(p, mode, _PhaseCounts(1.0, p.sizes.n_layers - 1.0, 1.0), time_limit_s)


def layer_bound_s(p: PartitionProblem) -> float:
    """Return a lower bound on an inner layer's time over all partitions of all modes, ignoring memory.

    It holds for simulated layers too: `simulate` imposes the same waits as the rows.
    """
    free = replace(p, memory=np.full(p.n, np.finfo(float).max))
    modes: tuple[Mode, ...] = ("ws", "1d", "2d")
    return min(_relaxed_s(free, mode, _PhaseCounts(0.0, 1.0, 0.0)) for mode in modes)


@dataclass(frozen=True, slots=True)
class _PhaseCounts:
    """How often a run's seconds count the input's distribution, an inner layer and the last one."""

    opening: float
    inner: float
    last: float


def _relaxed_s(p: PartitionProblem, mode: Mode, times: _PhaseCounts, time_limit_s: float = 0.0) -> float:
    unit_s = float((p.attend_s[:, -1] + p.rest_s[:, -1]).min())  # the solver's tolerances are absolute
    pose = {"ws": _weight_stationary, "1d": _tiled, "2d": _gridded}[mode]
    model = pose(_Relaxation(in_units_of(p, unit_s), times))
    found = [one.bound for one in (model.program(False).solve(),) if one is not None]
    if time_limit_s > 0 and found:
        solved = model.program(True).solve(time_limit_s, 1e-3)
        found += [] if solved is None else [solved.bound]
    return unit_s * max(found, default=0.0) * (1 - 1e-6)


@dataclass(slots=True)
class _Relaxation:
    """The variables and rows of a model under construction."""

    p: PartitionProblem
    times: _PhaseCounts
    cost: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[np.ndarray, bool, tuple[Term, ...]]] = field(default_factory=list)

    def new(self, *shape: int, high: float = INFINITY, whole: bool = False, cost: float = 0.0) -> np.ndarray:
        """Return the numbers of new variables, each from 0 to `high`."""
        first, n = len(self.cost), int(np.prod(shape))
        self.cost += [cost] * n
        self.high += [high] * n
        self.whole += [whole] * n
        return np.arange(first, first + n).reshape(shape)

    def at_most(self, limit: np.ndarray, *terms: Term) -> None:
        if len(limit):
            self.rows.append((limit, False, terms))

    def equal(self, to: np.ndarray, *terms: Term) -> None:
        self.rows.append((to, True, terms))

    def later(self, end: np.ndarray, *terms: Term, fixed: np.ndarray | float = 0.0) -> None:
        """Constrain each of `end` to be at least the sum of its terms and `fixed`."""
        one = np.ones(len(end))
        self.at_most(-fixed * one, *terms, (end, -one))

    def program(self, is_whole: bool) -> LinearProgram:
        high = np.array(self.high)
        made = LinearProgram(np.array(self.cost), np.zeros(len(high)), high, self.whole if is_whole else None)
        for limit, is_equal, terms in self.rows:
            (made.equal if is_equal else made.at_most)(limit, *terms)
        return made

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the end variables of an inner layer and of the last one, repeated per device."""
        n, inner, last = self.p.n, self.new(1, cost=self.times.inner), self.new(1, cost=self.times.last)
        return inner.repeat(n), last.repeat(n)

    def products(self, rows: Index, some: Index) -> np.ndarray:
        """Return variables for the rows of each device (first axis) if the other one is in `some`, else 0."""
        n, m = len(rows), float(self.p.sizes.rows)
        made = self.new(n, n, high=m)
        i, j = (x.ravel() for x in np.indices((n, n)))
        ones = np.ones(n * n)
        self.at_most(m * ones, (rows[i], ones), (some[j], m * ones), (made[i, j], -ones))
        return made

    def scattered(
        self, f: int, ready: Index, rows: Index, has: Index, some: Index, products: np.ndarray
    ) -> tuple[Index, Index]:
        """When each device has its rows of sum `f`, and when one of them does: terms come from `some`."""
        p, n, done, passed = self.p, self.p.n, self.new(self.p.n), self.new(1).repeat(self.p.n)
        b, m, one = float(ITEMSIZE * p.sizes.inner), float(p.sizes.rows), np.ones(n)
        call, slope = _line_below(p.reduce_s(f, 1))
        j, i = _other_pairs(n)
        into = np.where(np.eye(n, dtype=bool), 0.0, (b / p.ingress)[:, None])
        self.later(done, (ready, one), (rows, slope), (has, call))
        self.later(
            done[j],
            (ready[i], np.ones(len(i))),
            (products[j], into[j]),
            (rows[j], slope[j]),
            (has[j], call[j]),
        )
        self.later(passed, (ready, one), (some, m * b / p.egress), (rows, -b / p.egress))
        self.later(passed, (ready, one))
        return done, passed

    def gather(
        self, ends: tuple[Index, Index], done: Index, rows: Index, sent: np.ndarray, has: Index
    ) -> None:
        """Constrain x's way after a layer: `sent` rows to each other device; after the last, to the primary.

        If the primary has no rows, its receives overlap the next layer.
        """
        p, n = self.p, self.p.n
        row_bytes, to, one = float(ITEMSIZE * p.sizes.hidden), np.arange(n) != p.primary, np.ones(n)
        latency_s = np.where(to, p.latency_s[:, p.primary], 0.0)
        off = np.where(np.eye(n, dtype=bool), 0.0, (row_bytes / p.egress)[:, None])
        here = np.full(n, has[p.primary])
        self.later(ends[0], (done, one), (sent, off), (has, latency_s), (here, latency_s), fixed=-latency_s)
        self.later(ends[0], (rows, np.where(to, row_bytes / p.egress, 0.0)), (has, latency_s))
        self.later(ends[1], (done, one), (rows, np.where(to, row_bytes / p.egress, 0.0)), (has, latency_s))


def _weight_stationary(model: _Relaxation) -> _Relaxation:
    p = model.p
    s, n, counts = p.sizes, p.n, p.sizes.n_heads + 1
    m, unit, row_bytes = float(s.rows), float(ITEMSIZE * s.head_dim), float(ITEMSIZE * s.hidden)
    one, k, to, others = np.ones(n), np.arange(counts), np.arange(n) != p.primary, max(1, n - 1)
    z, y = model.new(n, counts, high=1.0, whole=True), model.new(n, counts, high=m)
    rows, has, sent = model.new(n, high=m), model.new(n, high=1.0, whole=True), model.new(n, n, high=m)
    attended, done, opening = (
        model.new(1).repeat(n),
        model.new(n),
        model.new(1, cost=model.times.opening).repeat(n),
    )
    ends = model.ends()
    none = z[:, 0]
    model.equal(one, (z, np.ones(1)))
    model.equal(np.zeros(n), (y, np.ones(1)), (rows, -one))
    model.at_most(np.zeros(y.size), (y.ravel(), np.ones(y.size)), (z.ravel(), np.full(y.size, -m)))
    model.equal(np.array([float(s.n_heads)]), (z.reshape(1, -1), np.tile(k.astype(float), n)[None]))
    model.equal(np.array([m]), (rows[None], np.ones(1)))
    model.at_most(np.zeros(n), (rows, one), (has, -m * one))
    held = np.where(k > 0, s.ws_head.fixed + s.ws_head.each * k, 0.0)
    model.at_most(p.memory, (z, np.broadcast_to(held, z.shape)), (has, s.ws_row * one))
    # All heads come before any rows; a device's rows come after it receives the others' heads.
    call, slope = _line_below(p.rest_s)
    rest = (rows, slope), (has, call)
    model.later(attended, (z, p.attend_s))
    model.later(done, (attended, one), *rest)
    least_s = _least(p.attend_s) / others
    taken = (unit / p.ingress)[:, None] * (s.n_heads - k)
    model.later(done, (z, -least_s[:, None] * k), (y, taken), *rest, fixed=s.n_heads * least_s)
    # The device with most rows among the others waits for a device's sends.
    rest_s = _least(p.rest_s) / others
    out = (unit / p.egress)[:, None] * k
    for end in ends:
        model.later(end, (done, one))
        model.later(end, (z, p.attend_s + m * out), (y, -out), (rows, -rest_s), fixed=m * rest_s)
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    each = np.full(len(i), -m)  # a device with heads takes every row, as does a primary with rows
    model.at_most(
        np.zeros(len(i)), (rows[i], np.ones(len(i))), (sent[i, j], -np.ones(len(i))), (none[j], each)
    )
    i = np.nonzero(to)[0]
    back, here = sent[i, p.primary], np.full(len(i), has[p.primary])
    model.at_most(m * one[i], (rows[i], one[i]), (back, -one[i]), (here, m * one[i]))
    model.gather(ends, done, rows, sent, has)
    into = row_bytes / p.ingress
    model.later(
        ends[0],
        (attended, one),
        (rows, -rest_s - into),
        (none, -m * into),
        (y[:, 0], into),
        fixed=m * (rest_s + into),
    )
    only = into[p.primary] + rest_s[p.primary]
    first = slice(p.primary, p.primary + 1)
    model.later(ends[1][:1], (attended[:1], one[:1]), (rows[first], np.array([-only])), fixed=m * only)
    entry = np.where(to, row_bytes / p.egress[p.primary], 0.0)
    model.later(
        opening[:1], (none[None], -(m * entry)[None]), (y[:, 0][None], entry[None]), fixed=(m * entry).sum()
    )
    return model


def _tiled(model: _Relaxation) -> _Relaxation:
    p, s, n = model.p, model.p.sizes, model.p.n
    m, to, one = float(s.rows), np.arange(n) != p.primary, np.ones(n)
    totals = [float(total) for total in (s.n_heads, s.rows, s.n_columns)]
    heads, rows, columns = (model.new(n, high=total) for total in totals)
    headed, has, cut = (model.new(n, high=1.0, whole=True) for _ in range(3))
    for share, some, total in zip((heads, rows, columns), (headed, has, cut), totals, strict=True):
        model.equal(np.array([total]), (share[None], np.ones(1)))
        model.at_most(np.zeros(n), (share, one), (some, -total * one))
    tiled = (headed, s.tiled_head.fixed * one), (heads, s.tiled_head.each * one)
    model.at_most(p.memory, *tiled, (columns, s.tiled_column * one), (has, s.tiled_row * one))
    to_headed, to_cut = model.products(rows, headed), model.products(rows, cut)
    ready = model.new(n)
    call, slope = _line_below(p.mixed_s)
    model.later(ready, (heads, slope), (headed, call))
    done, passed = model.scattered(0, ready, rows, has, headed, to_headed)
    i, j = _other_pairs(n)
    each = np.ones(len(i))
    into, off = float(ITEMSIZE * s.inner) / p.ingress, float(ITEMSIZE * s.inner) / p.egress
    off_diagonal = np.where(np.eye(n, dtype=bool), 0.0, off[:, None])
    for f in range(s.n_forwards):
        start, following = model.new(n), model.new(n)
        model.later(start, (done, one))
        model.later(start, (passed, one))
        model.later(start[j], (done[i], each), (to_cut[i], off_diagonal[i]))
        model.later(start[j], (ready[i], each), (cut[j], m * into[j]), (rows[j], -into[j]))
        call, slope = _line_below(p.forward_s[f])
        model.later(following, (start, one), (columns, slope), (cut, call))
        done, passed = model.scattered(f + 1, following, rows, has, cut, to_cut)
        ready = following
    ends = model.ends()
    for end in ends:
        model.later(end, (done, one))
        model.later(end, (passed, one))
    model.gather(ends, done, rows, to_headed, has)
    into = float(ITEMSIZE * s.hidden) / p.ingress
    model.later(ends[0][j], (ready[i], each), (headed[j], m * into[j]), (rows[j], -into[j]))
    here = np.full(n, rows[p.primary])
    model.later(ends[1], (ready, one), (here, -into[p.primary] * one), fixed=m * into[p.primary])
    entry = np.where(to, ITEMSIZE * s.hidden * m / p.egress[p.primary], 0.0)
    model.later(model.new(1, cost=model.times.opening), (headed[None], entry[None]))
    return model


def _gridded(model: _Relaxation) -> _Relaxation:
    """Model work, weights and incoming x: tiles of any shape, heads on any device, sums at no cost."""
    p, s, n = model.p, model.p.sizes, model.p.n
    m, to, one = float(s.rows), np.arange(n) != p.primary, np.ones(n)
    heads, rows = model.new(n, high=float(s.n_heads)), model.new(n, high=m)
    headed = model.new(n, high=1.0, whole=True)
    tiles = [model.new(n, high=1.0) for _ in range(1 + s.n_forwards)]
    for share, total in ((heads, s.n_heads), (rows, m), *((tile, 1.0) for tile in tiles)):
        model.equal(np.array([float(total)]), (share[None], np.ones(1)))
    model.at_most(np.zeros(n), (heads, one), (headed, -float(s.n_heads) * one))
    mixed, cut = float(s.n_heads * s.head_dim * s.inner), float(s.inner * s.n_columns)
    held = [mixed, *(2 * cut for _ in range(s.n_forwards))]
    n_bytes = s.tile_weight * s.n_layers
    weights = [(tile, n_bytes * size * one) for tile, size in zip(tiles, held, strict=True)]
    model.at_most(p.memory, (heads, s.ws_head.each * one), *weights)
    barrier = model.new(1).repeat(n)
    call, slope = _line_below(p.attend_s)
    work = (tiles[0], 2.0 * m * mixed * _least_rate(p, "mix", 2.0 * m * mixed))
    model.later(barrier, (heads, slope), (headed, call), work)
    for f, tile in enumerate(tiles[1:]):
        following = model.new(1).repeat(n)
        up_s, down_s = (_least_rate(p, f"{kind}.{f}", 2.0 * m * cut) for kind in ("up", "down"))
        model.later(following, (barrier, one), (tile, 2.0 * m * cut * (up_s + down_s)))
        barrier = following
    ends, into = model.ends(), float(ITEMSIZE * s.hidden) / p.ingress
    model.later(ends[0], (barrier, one), (headed, m * into), (rows, -into))
    model.later(ends[0], (barrier, one))
    here = np.full(n, rows[p.primary])
    model.later(ends[1], (barrier, one), (here, -into[p.primary] * one), fixed=m * into[p.primary])
    model.later(
        model.new(1, cost=model.times.opening),
        (headed[None], (to * ITEMSIZE * s.hidden * m / p.egress[p.primary])[None]),
    )
    return model


def _other_pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (i, j) of all ordered pairs of different devices."""
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    return i, j


def _line_below(times: TimeTable) -> tuple[Vector, Vector]:
    """(fixed, slope) of the steepest line from each device's first unit that is nowhere above its table."""
    if times.shape[1] < 3:
        return np.zeros(len(times)), times[:, -1].copy()
    rise = (times[:, 2:] - times[:, 1:2]) / np.arange(1, times.shape[1] - 1)
    slope = np.maximum(np.minimum(rise.min(1), times[:, 1]), 0.0)
    return np.maximum(times[:, 1] - slope, 0.0), slope


def _least(times: TimeTable) -> Vector:
    """Return the least seconds of a unit on any other device."""
    slopes = (times[:, 1:] / np.arange(1, times.shape[1])).min(1)
    each = np.where(np.eye(len(slopes), dtype=bool), np.inf, slopes)
    least: Vector = np.where(len(slopes) > 1, each.min(1), 0.0)
    return least


def _least_rate(p: PartitionProblem, kind: str, most_ops: float) -> Vector:
    """Return the least seconds per operation in stages of up to `most_ops`: a curve's point if measured."""
    curves = [c for device in p.times.devices for c in device.curves if c.kind == kind]
    points = {most_ops} | {x for c in curves for x, _ in c.points}
    ops = np.array(sorted(x for x in points if 0 < x <= most_ops))
    times = p.times.seconds(kind, np.repeat(ops[:, None], p.n, 1))
    rates: Vector = (times / ops[:, None]).min(0)
    return rates
