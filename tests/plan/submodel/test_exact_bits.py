"""The integer program against brute force at small size, and the heuristics against it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import BudgetError
from pliant.ir.bitwidths import BITS
from pliant.ir.link import Link
from pliant.plan.submodel.bit_rows import fill_rows
from pliant.plan.submodel.exact_bits import fill_exact
from pliant.plan.submodel.io_plan import (
    LLOYD_ERRORS,
    Ledger,
    fidelity,
    fill_by_importance,
    fill_floor,
    importance_weights,
)
from pliant.plan.submodel.shape import StoreShape


def ledger_of(rng: np.random.Generator, n: int, m: int, latency_s: float) -> Ledger:
    shape = StoreShape(n, m, (m,), 1, 16, (n,))
    budget_s = np.cumsum(rng.uniform(0.1, 1.5, n) * m) + 0.2 * m + 7 * n * latency_s
    held = rng.choice([0, 2, 3], (n, m))
    ledger = Ledger(shape, m, Link(latency_s, 10.0), budget_s.tolist(), held, is_anytime=False, full_chunk=m)
    fill_floor(ledger)
    return ledger


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), latency_s=st.sampled_from([0.0, 0.15]))
def test_no_assignment_of_bits_is_worth_more_than_the_exact_one(seed: int, latency_s: float) -> None:
    """The yardstick must be right: every assignment of a 1x3 or 3x1 submodel is tried."""
    rng = np.random.default_rng(seed)
    n, m = (1, 3) if rng.integers(2) else (3, 1)
    start = ledger_of(rng, n, m, latency_s)
    weights = importance_weights(rng.random((n, m)))
    best = -1.0
    for bits in itertools.product(BITS[1:], repeat=n * m):
        trial = start.copy()
        for i, b in enumerate(bits):
            k, s = divmod(i, m)
            if b > trial.bits[k][s]:
                trial.force([1 << s if j == k else 0 for j in range(n)], b)
        if trial.is_valid:
            best = max(best, fidelity(trial.bits, weights, LLOYD_ERRORS))
    fill_exact(start, weights, LLOYD_ERRORS)
    assert start.is_valid
    assert fidelity(start.bits, weights, LLOYD_ERRORS) == pytest.approx(best, abs=1e-6)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), latency_s=st.sampled_from([0.0, 0.05]), is_anytime=st.booleans())
def test_no_heuristic_beats_the_exact_allocation(seed: int, latency_s: float, is_anytime: bool) -> None:
    """Rows and the paper's order are measured against this: they can only lose."""
    rng = np.random.default_rng(seed)
    start = ledger_of(rng, 3, 3, latency_s)
    start.is_anytime = is_anytime
    weights = importance_weights(rng.random((3, 3)))
    exact, paper = start.copy(), start.copy()
    fill_exact(exact, weights, LLOYD_ERRORS)
    rows = fill_rows(start, weights, LLOYD_ERRORS)
    fill_by_importance(paper, weights)
    assert exact.is_valid
    assert not start.is_valid or rows.is_valid
    for other in (rows, paper):
        assert (
            fidelity(other.bits, weights, LLOYD_ERRORS) <= fidelity(exact.bits, weights, LLOYD_ERRORS) + 1e-5
        )


def test_overspent_budgets_are_refused() -> None:
    """There is no best allocation where even the lowest bits do not fit."""
    shape = StoreShape(1, 2, (2,), 1, 16, (1,))
    ledger = Ledger(shape, 2, Link(0.0, 10.0), [0.1], np.zeros((1, 2), int), is_anytime=False, full_chunk=2)
    assert not fill_floor(ledger)
    with pytest.raises(BudgetError, match="already overspend"):
        fill_exact(ledger, np.ones((1, 2)), LLOYD_ERRORS)
