"""What the shape of one input needs counts in the choice for it, and for no other."""

import pytest

from pliant.errors import BudgetError, DeadlineError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.times.timing import Timing
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.choice.input_needs import InputNeeds
from pliant.route.choice.objective import TIME
from pliant.route.choice.request_terms import Terms
from pliant.route.router import Router
from pliant.serve.answers.explain_choice import explain
from tests.route.routers import router

COMPILING = InputNeeds(Timing(2.0, 3.0))


def offering(*upstreams: str) -> Router:
    """It answers in 20 ms, 95 % of inputs in 30; the upstreams in 0.1 s and more."""
    node = router(*upstreams)
    node.offer((ServiceLevel(Curve(((0, 0.02),)), 0.8, Curve(((0, 0.03),))),))
    return node


def test_compiling_counts_for_the_input_whose_shape_is_not_ready() -> None:
    """The next one is compared without it, and no other node hears of it."""
    node = offering("up")
    advert = node.advertise(1.0)
    node.set_wait(0.0, 1.0, needs=COMPILING)
    assert node.choose(5, 1.0).target == "up"
    assert node.advertise(1.0) == advert
    (local,) = [option for option in node.options(5, 1.0) if option.name == LOCAL]
    assert (local.seconds, local.bound_s, local.compiling_s) == pytest.approx((2.02, 3.03, 2.0))
    node.set_wait(0.0, 1.0)
    choice = node.choose(5, 1.0)
    assert (choice.target, choice.option.compiling_s) == (LOCAL, 0.0)


def test_a_deadline_shorter_than_compiling_is_refused_with_its_time() -> None:
    """Where no other endpoint is in time; with more time left, it is chosen."""
    node = offering()
    node.set_wait(0.0, 1.0, needs=COMPILING)
    with pytest.raises(DeadlineError) as late:
        node.choose(5, 1.0, terms=Terms(1.0))
    assert late.value.soonest_s == pytest.approx(2.02)
    assert node.choose(5, 1.0, terms=Terms(4.0)).target == LOCAL


def test_compiling_is_explained() -> None:
    """As a part of the answer's time."""
    node = offering("up")
    node.set_wait(0.0, 1.0, needs=COMPILING)
    row = explain(node, 5, TIME, Terms(), 1.0).candidates[0]
    assert (row.compiling_s, row.answer_s, row.transfer_s) == pytest.approx((2.0, 2.02, 0.0))
    assert "2.02 s, 95 % within 3.03 s; compiling for this shape 2 s" in row.summary


def test_memory_of_a_shape_excludes_an_endpoint_for_it() -> None:
    """As memory for a length does, which levels tell; the shorter of both counts."""
    node = offering("up")
    node.set_wait(0.0, 1.0, needs=InputNeeds(most_n=8))
    assert [node.choose(n, 1.0).target for n in (8, 9)] == [LOCAL, "up"]
    row = explain(node, 9, TIME, Terms(), 1.0).candidates[0]
    assert (row.constraint, row.most_n, row.total_s) == ("memory", 8, None)
    (level,) = node.ways_here[0].levels
    for most_n in (4, 12):
        assert InputNeeds(Timing(1.0, 1.0), most_n).applied_to((level,))[0].most_n == min(most_n, 8)
    alone = offering()
    alone.set_wait(0.0, 1.0, needs=InputNeeds(most_n=8))
    with pytest.raises(BudgetError, match="up to 8"):
        alone.choose(9, 1.0)
