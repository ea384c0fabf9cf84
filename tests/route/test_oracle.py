"""The oracle against brute force, single devices by hand, verdicts."""

from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import RouteError
from pliant.ir.curve import line
from pliant.ir.link import Link
from pliant.route.choice.energy import A53_COVE, LTE
from pliant.route.choice.objective import ENERGY
from pliant.route.router_settings import RouterSettings
from research.oracle import alone, judge, oracle
from research.series import LinkSeries, constant, steps
from research.simulate import simulate
from research.world import Device, Edge, Inputs, Sizes, SlowPeriod, World, draw

RATE = 1e9
NOTHING = Sizes(0, 0, 0, 0)
END = Device("end", line(0.0, 0.016, 50), 0.05)
GATEWAY = Device("gateway", line(0.0, 0.007, 50), 0.05)
CLOUD = Device("cloud", line(0.0, 0.0004, 50), 0.05)


def world(below: LinkSeries, above: LinkSeries, **options: object) -> World:
    edges = (Edge("end", "gateway", below), Edge("gateway", "cloud", above))
    return World((END, GATEWAY, CLOUD), edges, NOTHING, **options)  # type: ignore[arg-type]


rtts = st.lists(st.floats(0.0, 0.3), min_size=1, max_size=3)


@given(rtts, rtts, st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_no_mapping_of_the_inputs_takes_less_than_the_oracle(
    below: list[float], above: list[float], lengths: list[int], seed: int
) -> None:
    """Against all 3^m mappings, where links change with the inputs."""
    up, top = ([Link(rtt, RATE) for rtt in r] for r in (below, above))
    made = world(steps(up, "inputs"), steps(top, "inputs"))
    inputs = draw(made, lengths, seed)
    m = len(lengths)

    def seconds(targets: tuple[int, ...]) -> float:
        total = 0.0
        for i, k in enumerate(targets):
            ways = (up[i * len(up) // m], top[i * len(top) // m])
            total += inputs.seconds[k][i] + sum(link.latency_s for link in ways[:k])
        return total

    least = min(seconds(targets) for targets in product(range(3), repeat=m))
    assert oracle(made, inputs).seconds == pytest.approx(least, rel=1e-9)


def test_each_device_alone_takes_what_its_way_and_its_work_take() -> None:
    """By hand: 10 and 20 words; 100 ms to the gateway, 200 ms more to the cloud, 2 bytes a word at 1 kB/s."""
    slow = LinkSeries((0.0,), (Link(0.1, 1e3),))
    plain = [Device(d.name, d.curve) for d in (END, GATEWAY, CLOUD)]
    made = World(
        tuple(plain),
        (Edge("end", "gateway", slow), Edge("gateway", "cloud", constant(Link(0.2, RATE)))),
        Sizes(10, 2, 20, 8),
    )
    inputs = draw(made, [10, 20], 0)
    assert alone(made, inputs, "end").seconds == pytest.approx(0.48)
    assert alone(made, inputs, "gateway").seconds == pytest.approx(2 * 0.1 + 30 * 0.007 + (50 + 70) / 1e3)
    assert alone(made, inputs, "cloud").seconds == pytest.approx(2 * 0.3 + 30 * 0.0004 + (50 + 70) / 1e3)
    with pytest.raises(RouteError):
        alone(made, inputs, "moon")


def test_a_device_alone_waits_while_its_link_is_down() -> None:
    """A user of the cloud alone would; the oracle answers at home."""
    link = LinkSeries((0.0, 5.0), (None, Link(0.1, RATE)))
    made = World(
        (Device("end", line(0.3, 0.0, 9)), Device("cloud", line(0.0, 0.0, 9))), (Edge("end", "cloud", link),)
    )
    inputs = draw(made, [1, 1], 0)
    assert alone(made, inputs, "cloud").seconds == pytest.approx(5.2, abs=1e-3)
    assert alone(made, inputs, "cloud").starts_s[0] == 5.0
    assert oracle(made, inputs).seconds == pytest.approx(0.6)


def test_waiting_for_a_device_that_is_dead_never_ends() -> None:
    """It comes back with later inputs, which wait too."""
    dies = Device("cloud", CLOUD.curve, spells=(SlowPeriod(0.5, 0.75),))
    made = World((END, dies), (Edge("end", "cloud", constant(Link(0.1, RATE))),))
    inputs = draw(made, [40] * 4, 0)
    assert alone(made, inputs, "cloud").seconds == inf
    assert oracle(made, inputs).targets.tolist() == [1, 1, 0, 1]


def test_by_energy_the_oracle_spends_least() -> None:
    """Equations 8 and 9 at the source: the time of waiting costs more than that of computing."""
    link = constant(Link(0.1, 250e3))
    options = {"power": A53_COVE, "radio": LTE}
    devices, edges = (END, CLOUD), (Edge("end", "cloud", link),)
    by_time = World(devices, edges, **options)  # type: ignore[arg-type]
    by_energy = World(devices, edges, objective=ENERGY, **options)  # type: ignore[arg-type]
    inputs = draw(by_time, range(1, 51), 0)
    thrifty, quick = oracle(by_energy, inputs), oracle(by_time, inputs)
    assert thrifty.joules < quick.joules
    assert thrifty.seconds > quick.seconds
    assert thrifty.joules <= min(alone(by_energy, inputs, d.name).joules for d in devices)
    here = alone(by_energy, inputs, "end")
    assert here.joules == pytest.approx(1.00 * here.seconds)


def test_a_run_is_judged_at_its_own_moments() -> None:
    """What it lost by its choices, apart from what pings took."""
    made = world(constant(Link(0.05, RATE)), constant(Link(0.1, RATE)))
    inputs = draw(made, [1, 30, 50] * 30, 2)
    run = simulate(made, inputs, RouterSettings(50))
    verdict = judge(made, inputs, run)
    assert verdict.best.tolist() == oracle(made, inputs).targets.tolist()
    assert verdict.right.mean() > 0.9
    assert run.seconds == pytest.approx(verdict.least_s + verdict.lost_s + run.upkeep_s, rel=1e-9)
    perfect = judge(made, inputs, oracle(made, inputs))
    assert perfect.right.all()
    assert perfect.lost_s == 0.0


def test_inputs_are_those_that_were_drawn() -> None:
    """A mapping is judged by the times of its own inputs."""
    inputs = Inputs((1,), ((0.5,), (0.1,)))
    made = World((END, CLOUD), (Edge("end", "cloud", constant(Link(0.1, RATE))),), NOTHING)
    assert oracle(made, inputs).seconds == pytest.approx(0.2)
