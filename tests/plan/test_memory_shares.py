"""One budget of memory divided among models, against every division there is."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import BudgetError
from pliant.plan.memory_shares import MemoryDemand, MemoryOption, cost_s, divide


@st.composite
def demands(draw: st.DrawFn) -> tuple[MemoryDemand, ...]:
    """Up to 4 models of up to 4 holdings, by rising bytes; seconds are eighths, so that sums are exact."""
    found = []
    for i in range(draw(st.integers(1, 4))):
        sizes = sorted(draw(st.lists(st.integers(0, 12), min_size=1, max_size=4)))
        times = [draw(st.integers(0, 40)) / 8 for _ in sizes]
        holdings = tuple(map(MemoryOption, sizes, times))
        found.append(MemoryDemand(f"model{i}", holdings, draw(st.integers(0, 8)) / 4))
    return tuple(found)


@given(demands(), st.integers(0, 50))
def test_no_division_that_fits_is_better(asked: tuple[MemoryDemand, ...], budget: int) -> None:
    """Against brute force: within the budget, the least weighted seconds, and of equals the fewest bytes."""
    every = product(*(demand.holdings for demand in asked))
    fitting = [one for one in every if sum(h.n_bytes for h in one) <= budget]
    if not fitting:
        least = sum(demand.holdings[0].n_bytes for demand in asked)
        with pytest.raises(BudgetError, match=f"Give at least {least} bytes"):
            divide(asked, budget)
        return
    found = divide(asked, budget)
    assert all(one in demand.holdings for one, demand in zip(found, asked, strict=True))
    best = min((cost_s(asked, one), sum(h.n_bytes for h in one)) for one in fitting)
    assert (cost_s(asked, found), sum(h.n_bytes for h in found)) == best


@given(demands(), st.integers(0, 50), st.integers(0, 20))
def test_more_memory_is_never_worse(asked: tuple[MemoryDemand, ...], budget: int, more: int) -> None:
    """A larger bound of memory must not make answers slower."""
    if budget >= sum(demand.least_bytes for demand in asked):
        assert cost_s(asked, divide(asked, budget + more)) <= cost_s(asked, divide(asked, budget))


def test_what_saves_least_for_its_bytes_is_let_go_of_first() -> None:
    """Two models of one size: the one that is asked more often keeps what it holds."""
    halves = (MemoryOption(1, 2.0), MemoryOption(2, 1.0), MemoryOption(3, 0.0))
    often, seldom = MemoryDemand("often", halves, 5.0), MemoryDemand("seldom", halves, 1.0)
    for budget, shares in ((6, (3, 3)), (5, (3, 2)), (4, (3, 1)), (3, (2, 1)), (2, (1, 1))):
        assert tuple(one.n_bytes for one in divide((often, seldom), budget)) == shares
        assert tuple(one.n_bytes for one in divide((seldom, often), budget)) == shares[::-1]


def test_a_model_that_is_asked_gets_what_it_cannot_do_without() -> None:
    """However seldom it is asked: the others let go of what saves least."""
    often = MemoryDemand("often", (MemoryOption(1, 9.0), MemoryOption(4, 1.0), MemoryOption(6, 0.0)), 100.0)
    seldom = MemoryDemand("seldom", (MemoryOption(0, 1.0), MemoryOption(5, 0.0)), 0.0)
    assert [one.n_bytes for one in divide((often, seldom), 9)] == [6, 0]
    assert [one.n_bytes for one in divide((often, seldom.at_least(5)), 9)] == [4, 5]
    assert [one.n_bytes for one in divide((often.at_most(5), seldom), 20)] == [4, 0]
    with pytest.raises(BudgetError, match=r"at least 12 \(often 1, seldom 11\)"):
        divide((often, seldom.at_least(11)), 9)
