"""The optimal weight-stationary partition by eq. 1 to 11, as one integer program (HiGHS), for comparison.

T is the paper's sum of stages: the longest attention, first exchange, rest and gather of a layer. Unlike
`partition_cost`, it has no overlap, and no pairs slower than their interfaces. Head counts are one-hot, so
measured times are exact and the first exchange (rows times others' heads) becomes linear.
"""

from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float
from pliant.errors import BudgetError
from pliant.plan.linear_program import INFINITY, LinearProgram
from pliant.plan.partition.cost_ws import Times
from pliant.plan.partition.partition_cost import FlatPlans
from pliant.plan.partition.problem import ITEMSIZE, PartitionProblem, in_units_of


@dataclass(frozen=True, slots=True)
class ExactSolution:
    """A plan, its T by eq. 7, and a lower bound of T."""

    plan: FlatPlans
    staged_s: float
    bound_s: float


def staged_s(p: PartitionProblem, plans: FlatPlans) -> Times:
    """T of eq. 7 of weight-stationary plans, one stage after another; see the module."""
    h, r, at = plans.heads, plans.rows, np.arange(p.n)
    m, unit, row_bytes, latency_s = _units(p)
    other = at != p.primary
    needs = (h > 0) | ~other
    used = (h > 0) | (r > 0)
    is_far = (used & other).any(1)
    several = used.sum(1) > 1
    attend_s = p.attend_s[at, h].max(1)
    out, into = unit * h * (m - r) / p.egress, unit * r * (p.sizes.n_heads - h) / p.ingress
    first_s = np.maximum(out, into).max(1) + latency_s * several
    layer_s = attend_s + first_s + p.rest_s[at, r].max(1)
    n_to = needs.sum(1, keepdims=True) - needs
    gather = np.maximum(row_bytes * r * n_to / p.egress, row_bytes * (m - r) / p.ingress * needs)
    gather_s = gather.max(1) + latency_s * is_far
    sent, taken = row_bytes * r * other / p.egress, row_bytes * (m - r) * ~other / p.ingress
    last_s = np.maximum(sent, taken).max(1) + latency_s * ((r > 0) & other).any(1)
    entry = row_bytes * np.where(needs, m, r) * other
    opening = np.maximum(entry.sum(1) / p.egress[p.primary], (entry / p.ingress).max(1))
    outer_s = opening + latency_s * is_far + last_s
    total_s: Times = outer_s + p.sizes.n_layers * layer_s + (p.sizes.n_layers - 1) * gather_s
    return total_s


def solve_exactly(p: PartitionProblem, time_limit_s: float = 60.0, gap: float = 1e-6) -> ExactSolution:
    """The best plan by eq. 7, within `gap`, or the best found in the time. Raises BudgetError if none
    fits.
    """
    true, unit_s = p, float(p.attend_s[:, -1].max() + p.rest_s[:, -1].max())
    p = in_units_of(p, unit_s)  # the solver's tolerances are absolute
    s, n, counts = p.sizes, p.n, p.sizes.n_heads + 1
    m, unit, row_bytes, latency_s = _units(p)
    z = np.arange(n * counts).reshape(n, counts)
    y, rows = z + n * counts, 2 * n * counts + np.arange(n)
    has, used = rows + n, rows + 2 * n
    sent = rows[0] + 3 * n + np.arange(n * n).reshape(n, n)
    several, far, opening, attend, first, rest, gather, last = range(
        int(sent[-1, -1]) + 1, int(sent[-1, -1]) + 9
    )
    size = last + 1
    cost, high, whole = np.zeros(size), np.full(size, INFINITY), np.zeros(size, dtype=bool)
    cost[[attend, first, rest]], cost[gather], cost[[opening, last]] = s.n_layers, s.n_layers - 1.0, 1.0
    for binary in (z.ravel(), has, used, np.array([several, far])):
        high[binary], whole[binary] = 1.0, True
    high[rows], whole[rows] = m, True
    lp = LinearProgram(cost, np.zeros(size), high, whole.tolist())
    one, k, to = np.ones(n), np.arange(counts), np.arange(n) != p.primary
    none = z[:, 0]

    def late(stage: int, *terms: tuple[np.ndarray, np.ndarray], over: np.ndarray | float = 0.0) -> None:
        lp.at_most(-over * one, *terms, (np.full(n, stage), -one))

    lp.equal(one, (z, np.ones(1)))
    lp.equal(np.zeros(n), (y, np.ones(1)), (rows, -one))
    lp.at_most(np.zeros(n * counts), (y.ravel(), np.ones(n * counts)), (z.ravel(), np.full(n * counts, -m)))
    lp.equal(np.array([float(s.n_heads)]), (z.reshape(1, -1), np.tile(k.astype(float), n)[None]))
    lp.equal(np.array([m]), (rows[None], np.ones(1)))
    lp.at_most(np.zeros(n), (rows, one), (has, -m * one))
    lp.at_most(np.zeros(n), (has, one), (used, -one))
    lp.at_most(-one, (none, -one), (used, -one))
    lp.at_most(np.ones(1), (used[None], np.ones(1)), (np.array([several]), np.array([1.0 - max(n, 2)])))
    lp.at_most(np.zeros(n), (used, to.astype(float)), (np.full(n, far), -one))
    held = np.where(k > 0, s.ws_head.fixed + s.ws_head.each * k, 0.0)
    lp.at_most(p.memory, (z, np.broadcast_to(held, z.shape)), (has, s.ws_row * one))
    late(attend, (z, p.attend_s))
    slope, call = _line(p)
    late(rest, (rows, slope), (has, call))
    out = (unit / p.egress)[:, None] * k
    late(first, (z, m * out), (y, -out), (np.full(n, several), latency_s * one))
    into = (unit / p.ingress)[:, None] * k
    late(first, (rows, unit * s.n_heads / p.ingress), (y, -into), (np.full(n, several), latency_s * one))
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    each = np.where(to[j], -m, 0.0)  # the primary gets every row, the others if they have heads
    lp.at_most(np.zeros(len(i)), (rows[i], np.ones(len(i))), (sent[i, j], -np.ones(len(i))), (none[j], each))
    off = np.where(np.eye(n, dtype=bool), 0.0, (row_bytes / p.egress)[:, None])
    late(gather, (sent, off), (np.full(n, far), latency_s * one))
    taken = row_bytes / p.ingress
    late(
        gather,
        (rows, -taken),
        (none, np.where(to, -m * taken, 0.0)),
        (np.full(n, far), latency_s * one),
        over=m * taken,
    )
    late(last, (rows, np.where(to, row_bytes / p.egress, 0.0)), (has, np.where(to, latency_s, 0.0)))
    here = np.full(n, rows[p.primary])
    late(
        last, (here, -taken[p.primary] * one), (has, np.where(to, latency_s, 0.0)), over=m * taken[p.primary]
    )
    entry = np.where(to, taken, 0.0)
    late(opening, (none, -m * entry), (y[:, 0], entry), (np.full(n, far), latency_s * one), over=m * entry)
    per_row = row_bytes / p.egress[p.primary]
    own = np.where(to, per_row, 0.0)
    lp.at_most(
        np.array([-(to * m * per_row).sum()]),
        (none[None], -(m * own)[None]),
        (y[:, 0][None], own[None]),
        (np.array([far]), np.array([latency_s])),
        (np.array([opening]), np.array([-1.0])),
    )
    solved = lp.solve(time_limit_s, gap)
    if solved is None:
        raise BudgetError(
            f"no weight-stationary partition fits in memory, or none was found in {time_limit_s:g} s."
        )
    heads = (solved.values[z].round() @ k).astype(np.int64)
    found = solved.values[rows].round().astype(np.int64)
    plan = FlatPlans("ws", heads[None], found[None], np.zeros((1, n), dtype=np.int64))
    return ExactSolution(plan, float(staged_s(true, plan)[0]), solved.bound * unit_s)


def _units(p: PartitionProblem) -> tuple[float, float, float, float]:
    """Rows, bytes of a head's row, bytes of a row of x, and the longest round trip."""
    s = p.sizes
    return float(s.rows), float(ITEMSIZE * s.head_dim), float(ITEMSIZE * s.hidden), float(p.latency_s.max())


def _line(p: PartitionProblem) -> tuple[Float[np.ndarray, " devices"], Float[np.ndarray, " devices"]]:
    """(slope, constant) of the time of `rest` by rows: the line through the times of one row and of all
    rows.
    """
    m = p.sizes.rows
    slope = (p.rest_s[:, -1] - p.rest_s[:, 1]) / max(1, m - 1)
    return slope, p.rest_s[:, 1] - slope
