"""What a simulated run takes place in."""

import numpy as np
import pytest

from pliant.errors import RouteError
from pliant.ir.curve import line
from pliant.ir.link import Link
from research.series import constant
from research.world import Device, Edge, SlowPeriod, World, draw, sample_times

LINK = constant(Link(0.1, 250e3))
A, B, C = (Device(name, line(0.0, 0.01, 50), 0.1) for name in "abc")


def test_ways_are_all_paths_from_the_source() -> None:
    """The oracle takes the best of them."""
    world = World((A, B, C), (Edge("a", "b", LINK), Edge("b", "c", LINK), Edge("a", "c", LINK)))
    names = [sorted("".join(edge.above for edge in way) for way in ways) for ways in world.ways()]
    assert names == [[""], ["b"], ["bc", "c"]]


@pytest.mark.parametrize(
    ("devices", "edges"),
    [
        ((), ()),
        ((A, A), ()),
        ((A, B), (Edge("a", "z", LINK),)),
        ((A, B, C), (Edge("a", "b", LINK), Edge("b", "c", LINK), Edge("c", "b", LINK))),
    ],
)
def test_what_is_no_acyclic_graph_of_named_devices_is_refused(
    devices: tuple[Device, ...], edges: tuple[Edge, ...]
) -> None:
    """CRIME 4.1: the topology is free but for circles."""
    with pytest.raises(RouteError):
        World(devices, edges)


def test_spells_that_overlap_or_run_backwards_are_refused() -> None:
    """A device is in one state at a time."""
    with pytest.raises(RouteError):
        SlowPeriod(0.5, 0.5, 2.0)
    with pytest.raises(RouteError):
        SlowPeriod(0.1, 0.5, 0.0)
    with pytest.raises(RouteError):
        Device("d", A.curve, spells=(SlowPeriod(0.0, 0.6, 2.0), SlowPeriod(0.5, 1.0)))
    with pytest.raises(RouteError):
        Device("d", A.curve, spread=-1.0)


def test_times_vary_about_the_curve_by_the_spread_and_are_the_same_for_a_seed() -> None:
    """Every policy meets the same times; a mean that moved would favour some."""
    world = World((A, B), (Edge("a", "b", LINK),))
    drawn = draw(world, [20] * 4000, seed=1)
    here, there = (np.array(s) for s in drawn.seconds)
    assert here.mean() == pytest.approx(0.2, rel=0.01)
    assert here.std() == pytest.approx(0.02, rel=0.05)
    assert abs(float(np.corrcoef(here, there)[0, 1])) < 0.1
    assert drawn == draw(world, [20] * 4000, seed=1) != draw(world, [20] * 4000, seed=2)
    assert drawn.max_n == 20
    with pytest.raises(RouteError):
        draw(world, [], seed=1)
    with pytest.raises(RouteError):
        draw(world, [3, -1], seed=1)


def test_measured_factors_are_drawn_as_they_are() -> None:
    """Spreads of a machine are no log-normal, and differ by length; they are resampled."""
    device = Device("d", A.curve, factors=((1, (0.5, 2.0)), (10, (0.9, 1.3))))
    (seconds,) = draw(World((device,), ()), [2, 8] * 50, seed=0).seconds
    assert {round(s, 9) for s in seconds} == {0.01, 0.04, 0.072, 0.104}
    assert all(n <= 5 for n, _ in sample_times(device, 5, seed=0))
