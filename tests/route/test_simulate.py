"""Routers under a virtual clock: sums by hand, seeds, links and gateways that come and go, load."""

import numpy as np
import pytest

from pliant.errors import RouteError
from pliant.ir.curve import Curve, line
from pliant.ir.link import Link
from pliant.route.choice.energy import A53_COVE, LTE
from pliant.route.choice.objective import ENERGY
from pliant.route.router_settings import RouterSettings, paper_settings
from research.oracle import alone, judge, oracle
from research.series import LinkSeries, constant, steps
from research.simulate import Run, simulate
from research.world import Device, Edge, Inputs, Sizes, SlowPeriod, World, draw

RATE = 1e9
NOTHING = Sizes(0, 0, 0, 0)
SETTINGS = RouterSettings(50)
END, GATEWAY, CLOUD = line(0.0, 0.016, 50), line(0.0, 0.007, 50), line(0.0, 0.0004, 50)
LENGTHS = np.random.default_rng(5).integers(1, 50, 2000)


def two(series: LinkSeries, spread: float = 0.03, **options: object) -> World:
    devices = Device("end", END, spread), Device("cloud", CLOUD, spread)
    return World(devices, (Edge("end", "cloud", series),), **options)  # type: ignore[arg-type]


def three(gateway: tuple[SlowPeriod, ...] = (), spread: float = 0.03) -> World:
    devices = (
        Device("end", END, spread),
        Device("gateway", GATEWAY, spread, gateway),
        Device("cloud", CLOUD, spread),
    )
    edges = (
        Edge("end", "gateway", constant(Link(0.04, RATE))),
        Edge("gateway", "cloud", constant(Link(0.12, RATE))),
    )
    return World(devices, edges)


def where(run: Run, first: float, last: float) -> set[int]:
    count = len(run.targets)
    return set(run.targets[round(first * count) : round(last * count)].tolist())


def test_three_inputs_by_hand() -> None:
    """A ping of 200 ms, 5 words here (80 ms), 20 words away (200 + 8 ms), 5 words here."""
    run = simulate(
        two(constant(Link(0.2, RATE)), 0.0, sizes=NOTHING),
        Inputs((5, 20, 5), ((0.08, 0.32, 0.08), (0.002, 0.008, 0.002))),
        SETTINGS,
    )
    assert run.targets.tolist() == [0, 1, 0]
    assert run.starts_s.tolist() == pytest.approx([0.2, 0.28, 0.488])
    assert run.seconds == pytest.approx(0.568)
    assert (run.n_pings, run.upkeep_s) == (1, pytest.approx(0.2))


def test_bytes_take_their_time_both_ways() -> None:
    """Equation 2: 60 bytes there, 16 and two points of 8 back, at 1 kB/s."""
    made = two(constant(Link(0.1, 1e3)), 0.0)
    run = simulate(made, draw(made, [5], 0), SETTINGS, seed=1)
    assert run.targets.tolist() == [0]
    slow = World((Device("end", line(9.0, 0.0, 50)), *made.devices[1:]), made.edges)
    away = simulate(slow, draw(slow, [5], 0), SETTINGS)
    assert away.seconds - away.upkeep_s == pytest.approx(0.1 + (60 + 32) / 1e3 + 0.002)


def test_a_run_is_the_same_for_the_same_seed() -> None:
    """Rows of a table can be made again."""
    made = three()
    inputs = draw(made, LENGTHS, 3)
    first, again = (simulate(made, inputs, SETTINGS) for _ in range(2))
    assert first.seconds == again.seconds
    assert first.targets.tolist() == again.targets.tolist()
    other = simulate(made, draw(made, LENGTHS, 4), SETTINGS)
    assert first.seconds != other.seconds


@pytest.mark.parametrize("settings", [SETTINGS, paper_settings(50)])
def test_steady_devices_are_used_about_as_the_oracle_would(settings: RouterSettings) -> None:
    """And below every single device; by the paper's settings too."""
    made = three()
    inputs = draw(made, LENGTHS, 3)
    run, best = simulate(made, inputs, settings), oracle(made, inputs)
    assert set(run.targets.tolist()) == {0, 1, 2}
    assert best.seconds <= run.seconds <= 1.005 * best.seconds
    assert all(run.seconds < alone(made, inputs, name).seconds for name in ("end", "gateway", "cloud"))


def test_a_link_that_goes_down_is_given_up_and_taken_up_again() -> None:
    """A failure costs its time-out, not every input's; a ping says when it is back."""
    link = Link(0.1, RATE)
    made = two(LinkSeries((0.0, 60.0, 120.0), (link, None, link)))
    run = simulate(made, draw(made, LENGTHS, 3), SETTINGS)
    during = (run.starts_s > 61.0) & (run.starts_s < 120.0)
    after = run.starts_s > 125.0
    assert set(run.targets[during].tolist()) == {0}
    assert (run.targets[after] == 1).mean() > 0.5
    assert run.n_failures == 1
    assert run.failures_s == 1.0


def test_a_gateway_that_dies_and_returns_is_used_again() -> None:
    """It starts with nothing but its upstream's name, and nobody below is restarted."""
    made = three((SlowPeriod(0.3, 0.6),))
    inputs = draw(made, LENGTHS, 3)
    run = simulate(made, inputs, SETTINGS)
    assert where(run, 0.1, 0.3) == {0, 1, 2}
    assert where(run, 0.31, 0.6) == {0}
    assert where(run, 0.8, 1.0) == {0, 1, 2}
    assert run.n_failures <= 3
    assert judge(made, inputs, run).right.mean() > 0.95


def test_the_source_cannot_die() -> None:
    """Nobody would send the inputs."""
    made = World((Device("end", END, spells=(SlowPeriod(0.1, 0.2),)),), ())
    with pytest.raises(RouteError):
        simulate(made, draw(made, [1, 2], 0), SETTINGS)


def test_a_gateway_under_load_is_left_until_it_is_quick_again() -> None:
    """Its curve rises and comes down again, by broadcasts and probes, as nothing else would tell."""
    made = three((SlowPeriod(0.3, 0.6, 6.0),))
    inputs = draw(made, LENGTHS, 3)
    run = simulate(made, inputs, SETTINGS)
    assert 1 in where(run, 0.1, 0.3)
    assert 1 not in where(run, 0.4, 0.6)
    assert 1 in where(run, 0.9, 1.0)
    assert run.n_probes > 0
    assert run.n_broadcasts > 0
    assert run.seconds < 1.03 * oracle(made, inputs).seconds


def test_a_round_trip_that_falls_while_nobody_sends_is_found_by_a_ping() -> None:
    """CRIME 4.3.1: without pings the link would be given up for good."""
    made = two(steps([Link(2.0, RATE), Link(0.05, RATE)], "inputs"))
    inputs = draw(made, LENGTHS, 3)
    run = simulate(made, inputs, SETTINGS)
    assert where(run, 0.0, 0.5) == {0}
    assert (run.targets[-500:] == 1).mean() > 0.5


def test_by_energy_less_is_sent() -> None:
    """CRIME 5.4: with a radio that costs more than computing, savings shift to the left."""
    link = constant(Link(0.15, 250e3))
    by_time, by_energy = (
        two(link, power=A53_COVE, radio=LTE),
        two(link, power=A53_COVE, radio=LTE, objective=ENERGY),
    )
    inputs = draw(by_time, LENGTHS, 3)
    quick, thrifty = simulate(by_time, inputs, SETTINGS), simulate(by_energy, inputs, SETTINGS)
    assert thrifty.joules < quick.joules
    assert thrifty.targets.sum() < quick.targets.sum()
    assert thrifty.joules <= 1.01 * oracle(by_energy, inputs).joules


def test_two_ways_up_are_chosen_by_their_link() -> None:
    """DAG C: the nearer of two clouds, whichever it is now."""
    devices = (
        Device("end", END),
        Device("gateway", Curve(((0, 5.0),))),
        Device("a", CLOUD),
        Device("b", CLOUD),
    )
    near, far = Link(0.05, RATE), Link(0.25, RATE)
    edges = (
        Edge("end", "gateway", constant(Link(0.01, RATE))),
        Edge("gateway", "a", steps([near, far], "inputs")),
        Edge("gateway", "b", steps([far, near], "inputs")),
    )
    made = World(devices, edges)
    run = simulate(made, draw(made, [40] * 3000, 3), SETTINGS)
    assert where(run, 0.1, 0.5) == {2}
    assert where(run, 0.9, 1.0) == {3}
