"""Seconds that no weight-stationary partition beats, by a linear relaxation (HiGHS). Finds no partition.

Heads and rows are continuous, the first exchange's product of both is relaxed by its McCormick envelope,
times are the least by the head or row that a device's table has. What a stage must at least wait for is kept
of `plan.pace_ws`; who has no share pays nothing, so the bound is no tight one.
"""

import numpy as np

from pliant.arrays import Float
from pliant.plan.linear import INFINITY, LinearProgram
from pliant.plan.problem import ITEMSIZE, Problem, Table


def bound_ws(p: Problem) -> float:
    """At most the predicted seconds of every weight-stationary partition that fits in memory."""
    s, n, one = p.sizes, p.n, np.ones(p.n)
    m, n_heads, others = float(s.rows), float(s.n_heads), np.arange(p.n) != p.primary
    unit_s = float((p.attend_s[:, -1] + p.rest_s[:, -1]).min())  # the solver's tolerances are absolute
    head_s, row_s = _least_slope(p.attend_s) / unit_s, _least_slope(p.rest_s) / unit_s
    out_s, into_s = 1.0 / (p.egress * unit_s), 1.0 / (p.ingress * unit_s)
    attended, x_row = float(ITEMSIZE * s.head_dim), float(ITEMSIZE * s.hidden)
    heads, rows, both = (k * n + np.arange(n) for k in range(3))
    layer, inner, last = (np.full(n, 3 * n + k) for k in range(3))
    cost = np.zeros(3 * n + 3)
    cost[-2:] = s.n_layers - 1.0, 1.0
    high = np.full(3 * n + 3, INFINITY)
    high[heads] = np.clip(p.memory / s.ws_head.each, 0.0, n_heads)
    high[rows] = m
    lp = LinearProgram(cost, np.zeros(3 * n + 3), high)
    lp.equal(np.array([n_heads]), (heads[None], np.ones(1)))
    lp.equal(np.array([m]), (rows[None], np.ones(1)))
    lp.at_most(np.zeros(n), (both, one), (rows, -n_heads * one))
    lp.at_most(np.zeros(n), (both, one), (heads, -m * one))
    # Own work; then what comes in, and the rows; then what goes out, which someone waits for.
    lp.at_most(np.zeros(n), (heads, head_s), (rows, row_s), (layer, -one))
    taken = attended * into_s
    lp.at_most(np.zeros(n), (rows, n_heads * taken + row_s), (both, -taken), (layer, -one))
    sent = attended * out_s
    lp.at_most(np.zeros(n), (heads, head_s + m * sent), (both, -sent), (layer, -one))
    to_primary = np.where(others, x_row * np.maximum(out_s, into_s[p.primary]), 0.0)
    for end in (inner, last):
        lp.at_most(np.zeros(n), (layer, one), (end, -one))
        lp.at_most(np.zeros(n), (heads, head_s), (rows, row_s + to_primary), (end, -one))
        primary = np.array([x_row * into_s[p.primary]])
        lp.at_most(-m * primary, (rows[p.primary : p.primary + 1], -primary), (end[:1], -np.ones(1)))
    solved = lp.solve()
    return 0.0 if solved is None else unit_s * solved.objective * (1 - 1e-6)


def _least_slope(times: Table) -> Float[np.ndarray, " devices"]:
    """Of each device the least seconds of a unit: no count takes less than that times the count."""
    slopes: Float[np.ndarray, " devices"] = (times[:, 1:] / np.arange(1, times.shape[1])).min(1)
    return slopes
