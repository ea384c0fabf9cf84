"""Capabilities, links and the cost of a cluster's steps, against numbers worked out by hand."""

from dataclasses import replace

import pytest

from pliant.errors import ProfileError
from pliant.ir.capability import (
    Capability,
    ClusterCost,
    Interface,
    Links,
    MessageOverhead,
    ObservedStage,
    StageTimes,
    refresh_capability,
    refresh_links,
)
from pliant.ir.cost import latency, simulate
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.program import Compute, Exchange, Program, Segment, Step

SLOW = Capability(2.0, 1e9, 1000)
CURVE = StageTimes("rest", ((10.0, 2.0), (20.0, 3.0), (40.0, 7.0)))
NET = Links({"a": Interface(100.0, 50.0), "b": Interface(80.0, 200.0), "c": Interface(100.0, 100.0)}, 0.5)


def test_an_unmeasured_stage_takes_rho_flops_over_f() -> None:
    """Equation 5 is the price where nothing better is known."""
    assert SLOW.seconds("attend", 5e8) == pytest.approx(1.0)
    assert Capability(2.0, 1e9, 0, call_s=0.25).seconds("attend", 5e8) == pytest.approx(1.25)
    assert SLOW.seconds("attend", 0.0) == 0.0


def test_a_measured_stage_lies_on_its_curve() -> None:
    """Small shares cost more per FLOP than eq. 5 says; a device's own times show by how much."""
    device = Capability(2.0, 1e9, 0, call_s=1.0, curves=(CURVE,), dilation=Dilation(2.0))
    times = {flops: device.seconds("rest", flops) / 2 for flops in (5.0, 10.0, 15.0, 30.0, 40.0, 50.0)}
    assert times == pytest.approx({5: 1.5, 10: 2.0, 15: 2.5, 30: 5.0, 40: 7.0, 50: 9.0})
    assert device.seconds("attend", 1e9) == pytest.approx(2 * 3.0)


def test_a_falling_measurement_does_not_fall_on() -> None:
    """Noise can make a long stage measure shorter than a short one; the line beyond must not reach 0."""
    device = Capability(1.0, 1.0, 0, call_s=1.0, curves=(StageTimes("rest", ((10.0, 3.0), (20.0, 2.0))),))
    assert device.seconds("rest", 1000.0) == 2.0


@pytest.mark.parametrize(
    "points", [(), ((0.0, 1.0),), ((2.0, 1.0), (2.0, 3.0)), ((1.0, 0.0),), ((1.0, float("nan")),)]
)
def test_times_that_cannot_be_are_refused(points: tuple[tuple[float, float], ...]) -> None:
    """A broken profile must fail where it is read, not as a strange partition."""
    with pytest.raises(ProfileError, match="measure again"):
        StageTimes("rest", points)


def test_a_link_is_no_faster_than_the_interfaces_at_its_ends() -> None:
    """A network behind a switch is told by its interfaces alone."""
    assert NET.link("a", "b") == Link(0.5, 100.0)
    assert NET.link("b", "a") == Link(0.5, 50.0)
    named = Links(NET.interfaces, 0.5, {("a", "b"): Link(0.1, 1e9), ("a", "c"): Link(0.1, 10.0)})
    assert named.link("a", "b") == Link(0.1, 100.0)
    assert named.link("a", "c") == Link(0.1, 10.0)
    with pytest.raises(ProfileError, match="not on the network"):
        NET.link("a", "z")


def test_exchanges_that_leave_one_device_share_its_interface() -> None:
    """Two at a time from `a` take as long as one after the other, but for the round trip."""
    cost = ClusterCost({}, NET, lambda work: 0.0)
    one = [Step("net:a->b", Exchange("x", 200, "a", "b"))]
    two = [*one, Step("net:a->c", Exchange("x", 200, "a", "c"))]
    assert latency(simulate(Program((Segment(tuple(one)),), (), ()), cost)) == pytest.approx(0.5 + 2.0)
    assert latency(simulate(Program((Segment(tuple(two)),), (), ()), cost)) == pytest.approx(0.5 + 4.0)


def test_exchanges_that_reach_one_device_share_its_interface() -> None:
    """A gather is bounded by what the gathering device can take in."""
    cost = ClusterCost({}, NET, lambda work: 0.0)
    steps = [Step(f"net:{src}->a", Exchange("x", 100, src, "a")) for src in ("b", "c")]
    assert latency(simulate(Program((Segment(tuple(steps)),), (), ()), cost)) == pytest.approx(0.5 + 4.0)


def test_a_thread_hands_over_its_messages_one_after_another() -> None:
    """`a` sends two, 0.25 s each; the second leaves while the first travels; `b` and `c` take 1 s to take."""
    costly = {
        "a": replace(SLOW, send=MessageOverhead(0.05, 1e-3)),
        "b": replace(SLOW, take=MessageOverhead(1.0)),
        "c": replace(SLOW, take=MessageOverhead(1.0)),
    }
    links = Links({name: Interface(200.0, 200.0) for name in "abc"}, 0.5)
    steps = (
        Step("net:a->b", Exchange("x", 200, "a", "b")),
        Step("net:a->c", Exchange("x", 200, "a", "c")),
        Step("b/cpu", Compute("rest", 0, rows=4, device="b"), (0,)),
        Step("c/cpu", Compute("rest", 0, rows=4, device="c"), (1,)),
    )
    cost = ClusterCost(costly, links, lambda work: 0.0)
    spans = simulate(Program((Segment(steps),), (), ()), cost)
    assert [(s.step, s.lane) for s in spans] == [(i, step.lane) for i, step in enumerate(steps)]
    assert [s.start_s for s in spans[:2]] == pytest.approx([0.0, 0.25])
    assert spans[0].end_s > 0.25 + 0.5 + 1.0, "they share the interface"
    assert [s.start_s for s in spans[2:]] == pytest.approx([s.end_s + 1.0 for s in spans[:2]])


def test_compute_is_priced_on_its_own_device() -> None:
    """Unequal devices are the point; a stranger is named."""
    cost = ClusterCost({"a": SLOW, "b": Capability(1.0, 1e9, 0)}, NET, lambda work: 1e9)
    assert cost.seconds(Compute("rest", 0, rows=4, device="a")) == pytest.approx(2.0)
    assert cost.seconds(Compute("rest", 0, rows=4, device="b")) == pytest.approx(1.0)
    with pytest.raises(ProfileError, match="'z'"):
        cost.seconds(Compute("rest", 0, rows=4, device="z"))


def test_a_refreshed_device_takes_what_was_seen() -> None:
    """A device that turned three times slower is planned as such, kind by kind."""
    device = refresh_capability(SLOW, [ObservedStage("rest", 1e9, 6.0), ObservedStage("rest", 5e8, 3.0)])
    assert device.seconds("rest", 1e9) == pytest.approx(6.0)
    assert device.seconds("attend", 1e9) == SLOW.seconds("attend", 1e9)
    again = refresh_capability(device, [ObservedStage("rest", 1e9, 6.0)])
    assert again.seconds("rest", 1e9) == pytest.approx(6.0)


def test_refreshed_links_blame_what_is_common() -> None:
    """All of a sender's exchanges slower: its egress. All of a receiver's: its ingress. One: the pair."""
    even = Links({name: Interface(100.0, 100.0) for name in "abc"})
    pairs = [(s, d) for s in "abc" for d in "abc" if s != d]
    out = refresh_links(even, {(s, d): 2.0 if s == "a" else 1.0 for s, d in pairs})
    assert out.interfaces["a"] == Interface(50.0, 100.0)
    assert not out.pairs
    into = refresh_links(even, {(s, d): 2.0 if d == "a" else 1.0 for s, d in pairs})
    assert into.interfaces["a"] == Interface(100.0, 50.0)
    assert not into.pairs
    one = refresh_links(even, {(s, d): 2.0 if (s, d) == ("a", "b") else 1.0 for s, d in pairs})
    assert one.interfaces == even.interfaces
    assert one.link("a", "b") == Link(0.0, 50.0)
    again = refresh_links(one, {("a", "b"): 0.5})
    assert again.link("a", "b") == Link(0.0, 100.0)
