"""What an explanation says to people: one line an endpoint, and the rule or refusal that decided."""

from dataclasses import replace

import pytest

from pliant.errors import BudgetError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel, unreachable_level
from pliant.route.choice.energy import LTE, PowerModel
from pliant.route.choice.objective import ENERGY, TIME
from pliant.route.choice.request_terms import Terms
from pliant.serve.answers.explain_choice import explain
from tests.route.routers import SETTINGS, router


def test_each_endpoint_has_a_line_and_the_last_one_says_why() -> None:
    """`print(session.explain(40))` is what users try first; the command prints the same."""
    node = router("http://up:1", "http://other:1")  # 0.1 s away
    node.offer((ServiceLevel(Curve(((0, 0.02),)), 0.8), ServiceLevel(Curve(((0, 0.3),)), 0.9)))
    node.record_failure("http://other:1", 0.0, "no answer in 2 s")
    found = str(explain(node, 5, TIME, Terms(deadline_s=0.05), 1.0)).splitlines()
    assert found[0] == "me, an input of length 5 within 50 ms:"
    assert found[1].startswith("-> local")
    assert "0.8000  20 ms, 95 % within 20 ms" in found[1]
    assert found[2].startswith("   http://up:1")
    assert "round trip 100 ms" in found[2]
    assert found[2].endswith("is later than the deadline")
    assert found[3].endswith("does not answer; pinged again with back-off (no answer in 2 s)")
    assert found[4] == "local: the least time within 0.25 points of the most accurate in time."


def test_a_round_trip_without_a_measurement_is_not_printed_as_a_time() -> None:
    """ "0 µs" was printed for one that its bytes explain, and the first guess for one never measured."""
    node = router("http://up:1")
    row = explain(node, 5, TIME, Terms(), 1.0).candidates[-1]
    assert "too short to measure" in replace(row, rtt_s=0.0, age_s=0.5).summary
    assert "round trip not measured yet" in replace(row, rtt_s=0.05, age_s=None).summary


def test_joules_that_are_not_counted_are_said_to_be_none() -> None:
    """An upstream was chosen for "the least energy", and no energy was shown."""
    power = PowerModel("here", 0.0, 4.0, "assumed")
    settings = {"power": power}, {"radio": LTE}, {"power": power, "radio": LTE}, {}
    for given, here, above in zip(
        settings,
        ("J;", "0 J (no --power)", "J;", None),
        ("0 J (no --radio)", "J;", "J;", None),
        strict=True,
    ):
        node = router("http://up:1", settings=replace(SETTINGS, **given))  # type: ignore[arg-type]
        rows = explain(node, 5, ENERGY, Terms(), 1.0).candidates
        for row, shown in zip(rows, (here, above), strict=True):
            assert (" J" in row.summary) is (shown is not None)
            assert shown is None or shown in f"{row.summary};"


def test_a_refusal_says_what_there_is() -> None:
    node = router()
    node.offer((ServiceLevel(Curve(((0, 0.02),)), 0.8),))
    found = str(explain(node, 5, TIME, Terms(accuracy_floor=0.9), 1.0)).splitlines()
    assert found[0].endswith("at an accuracy of 0.9 or more:")
    assert found[1].startswith("   local")
    assert "less accurate than the floor" in found[1]
    assert "0.8000" in found[2]
    assert "lower the floor" in found[2]


def test_memory_is_explained() -> None:
    """An endpoint without memory for the length is no choice, and has no time at it."""
    node = router("http://up:1")
    node.offer((ServiceLevel(Curve(((0, 0.02),)), 0.8).limited(40),))
    short, long = (explain(node, n, TIME, Terms(), 1.0) for n in (40, 41))
    assert (short.target, long.target) == ("local", "http://up:1")
    assert "memory for lengths up to 40" in str(short).splitlines()[1]
    row = long.candidates[0]
    assert (row.constraint, row.most_n, row.total_s, row.bound_s, row.energy_j) == (
        "memory",
        40,
        None,
        None,
        None,
    )
    assert (
        str(long)
        .splitlines()[1]
        .endswith("0.8000  memory for lengths up to 40; has no memory for this length")
    )
    node.record_failure("http://up:1", 1.0)
    assert "up to 40. Give a shorter input" in str(explain(node, 41, TIME, Terms(), 1.0))


def test_an_endpoint_that_can_answer_nothing_says_why() -> None:
    """It is no choice, and changes nothing that other nodes are told; alone, its reason is the error."""
    node, told = router(), (ServiceLevel(Curve(((0, 0.02),)), 0.8),)
    node.add_endpoint("cluster")
    node.offer((unreachable_level("its workers left"),), "cluster")
    node.offer(told)
    for terms in (Terms(), Terms(deadline_s=0.5), Terms(accuracy_floor=0.7)):
        found = explain(node, 5, TIME, terms, 1.0)
        assert found.target == "local"
        assert str(found).splitlines()[2] == "   cluster          its workers left"
        row = found.candidates[1]
        assert (row.constraint, row.total_s, row.most_n, row.accuracy) == (None, None, None, None)
    (advert,) = node.advertise(1.0).levels
    assert (advert.accuracy, advert.curve.at(5)) == (0.8, 0.02)
    node.offer((unreachable_level("its memory is gone"),))
    assert explain(node, 5, TIME, Terms(), 1.0).target is None
    with pytest.raises(BudgetError, match="its memory is gone"):
        node.choose(5, 1.0)
    assert node.advertise(1.0).levels[-1].answered_points == ()
    node.offer(told, "cluster")
    assert explain(node, 5, TIME, Terms(), 1.0).target == "cluster"
