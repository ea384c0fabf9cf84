"""What requests ask of time and accuracy, and how that ages on its way."""

from math import inf, nan

import pytest

from pliant.errors import InputError
from pliant.ir.endpoint import Request
from pliant.route.choice.request_terms import Terms
from pliant.serve.protocol.pending_request import PendingRequest, read_terms

FIVE = Request(5, "five words")


@pytest.mark.parametrize(
    "bad",
    [
        {"deadline_s": 0},
        {"deadline_s": -1.0},
        {"deadline_s": inf},
        {"deadline_s": nan},
        {"deadline_s": "1"},
        {"deadline_s": True},
        {"deadline_s": []},
        {"deadline_s": None},
        {"deadline_s": 10**400},
        {"accuracy_floor": 1.01},
        {"accuracy_floor": -0.1},
        {"accuracy_floor": nan},
        {"accuracy_floor": {}},
        {"best_effort": 1},
        {"best_effort": None},
    ],
)
def test_terms_that_cannot_be_are_refused(bad: dict[str, object]) -> None:
    """By name, before anything is chosen by them."""
    with pytest.raises(InputError, match=next(iter(bad))):
        read_terms(bad)


@pytest.mark.parametrize("name", ["deadline", "Deadline_S", "deadline_ms", "latency", "floor", "best-effort"])
def test_a_misspelt_term_is_refused(name: str) -> None:
    """The request would run without its deadline or floor, and nobody would see it."""
    meant = {"floor": "accuracy_floor", "best-effort": "best_effort"}.get(name, "deadline_s")
    every = "deadline_s, accuracy_floor, best_effort, objective"
    with pytest.raises(InputError, match=f"'{name}' is unknown; give {meant}. The terms are {every}"):
        read_terms({name: 0.1})


def test_what_a_request_leaves_open_is_the_nodes() -> None:
    """One by one."""
    usual = Terms(0.05, 0.8)
    assert read_terms({"other": 1}).with_defaults(usual) == usual
    assert read_terms({"deadline_s": 1}).with_defaults(usual) == Terms(1.0, 0.8)
    assert read_terms({"accuracy_floor": 0}).with_defaults(usual) == Terms(0.05, 0.0)
    assert read_terms({"best_effort": False}).with_defaults(Terms(best_effort=True)) == Terms(
        best_effort=False
    )


def test_time_runs_from_the_arrival_on() -> None:
    """An endpoint is told what is left; another node that less its way; never nothing at all."""
    wish = PendingRequest(FIVE, due_s=10.0, floor=0.8)
    assert wish.at(9.5).deadline_s == pytest.approx(0.5)
    assert wish.at(9.5).accuracy_floor == 0.8
    assert wish.forwarded_terms(9.5, 0.2).deadline_s == pytest.approx(0.3)
    assert 0 < (wish.at(11.0).deadline_s or 0) < 1e-3
    assert 0 < (wish.forwarded_terms(9.5, 2.0).deadline_s or 0) < 1e-3


def test_work_is_bounded_where_others_depend_on_the_endpoint() -> None:
    """Else a session takes the most accurate level that is in time, and the next request waits for it."""
    wish = PendingRequest(FIVE, due_s=10.0, floor=0.8, most_s=0.1)
    assert wish.at(9.5).deadline_s == pytest.approx(0.1)
    assert wish.at(9.95).deadline_s == pytest.approx(0.05)
    assert wish.terms_at(9.5).deadline_s == pytest.approx(0.5), "it is due when it was"


def test_what_is_not_asked_is_left_open() -> None:
    """An endpoint then gives the best there is, or with a floor alone the soonest above it."""
    assert PendingRequest(FIVE).at(1.0) == FIVE
    assert PendingRequest(FIVE).has_no_terms
    assert PendingRequest(FIVE, floor=0.8).at(1.0) == Request(5, "five words", accuracy_floor=0.8)
    assert PendingRequest(FIVE, floor=0.8).forwarded_terms(1.0, 0.2) == Terms(None, 0.8)
