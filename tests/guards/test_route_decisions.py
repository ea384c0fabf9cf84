"""Guard: every decision of seeded routers under a virtual clock, and of one endpoint's level selector.

Protects `Router`, its fits, links, words, pings, probes and queues, `simulate`, `LevelSelector` and
`AdaptiveBound`: moving or renaming code must not change one golden file of this guard. A log has a line for
each decision: number, device, length of the input, time, where it goes ("here" is the device itself) and what
that takes, then what the others would take; seconds and joules have six digits. The first 50 lines are in
clear, then each 100 decisions are one digest, so that the first digest that differs shows where a change
begins: print `Log.lines` of those decisions before and after it. The last line holds the run's totals.

Update with `pytest tests/guards/test_route_decisions.py --update-golden`, and say in the commit what changed
them. Worlds, loads and links are written below; nothing is measured.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from pliant.ir.curve import line
from pliant.ir.link import Link
from pliant.ir.times.level_selector import Level, LevelSelector
from pliant.ir.times.timing import Timing
from pliant.route.choice.choose_endpoint import LOCAL, Choice
from pliant.route.choice.energy import A53_COVE, LTE
from pliant.route.choice.objective import ENERGY, Objective
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings, paper_settings
from research.oracle import judge, oracle
from research.series import LinkSeries, bluetooth, constant, steps
from research.simulate import Run, simulate
from research.world import Device, Edge, Inputs, SlowPeriod, World, draw
from tests.guards.texts import digest
from tests.route.closed_loop import ClosedLoop

CLEAR, BLOCK = 50, 100
MAX_N = 50
SETTINGS = RouterSettings(MAX_N)
RATE = 250e3
END, GATEWAY, CLOUD = line(0.002, 0.016, MAX_N), line(0.004, 0.007, MAX_N), line(0.006, 0.0004, MAX_N)
LENGTHS = np.random.default_rng(5).integers(1, MAX_N, 800)


class Log:
    """A line for each decision of every `Router` while the fixture below is active."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def chosen(self, device: str, n: int, now_s: float, choice: Choice) -> None:
        others = "".join(f"; {_named(o.name)} {o.seconds:.6g}" for o in choice.runners_up)
        target = _named(choice.target)
        takes = f"{choice.seconds:.6g} s {choice.energy_j:.6g} J"
        self.lines.append(f"{len(self.lines)} {device} {n} at {now_s:.6g}: {target} {takes}{others}")

    def text(self, totals: str) -> str:
        """The first lines in clear, every block by digest, the totals."""
        starts = range(0, len(self.lines), BLOCK)
        blocks = [(i, "\n".join(self.lines[i : i + BLOCK])) for i in starts]
        hashed = [f"{i}..{min(i + BLOCK, len(self.lines)) - 1} {digest(text)}" for i, text in blocks]
        return "\n".join([*self.lines[:CLEAR], *hashed, totals]) + "\n"


def _named(target: str) -> str:
    return "here" if target == LOCAL else target


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Decisions of routers are written down as they are made."""
    made, choose = Log(), Router.choose

    def written(router: Router, n: int, now_s: float, *how: Any, **options: Any) -> Choice:
        choice = choose(router, n, now_s, *how, **options)
        made.chosen(router.name, n, now_s, choice)
        return choice

    monkeypatch.setattr(Router, "choose", written)
    return made


def link(rtt_s: float) -> Link:
    return Link(rtt_s, RATE)


def three(**options: Any) -> World:
    """CRIME's Figure 9, B: Bluetooth to a gateway that is slow, then dead; a cloud ever farther away."""
    spells = (SlowPeriod(0.3, 0.45, 6.0), SlowPeriod(0.6, 0.7))
    devices = Device("end", END, 0.05), Device("gateway", GATEWAY, 0.08, spells), Device("cloud", CLOUD, 0.03)
    far = steps([link(0.1), link(0.2), link(0.05)], "inputs")
    near = bluetooth(0.045, 60.0, seed=2)
    return World(devices, (Edge("end", "gateway", near), Edge("gateway", "cloud", far)), **options)


def two(objective: Objective) -> World:
    """Figure 9, A, with what a radio and a processor spend."""
    devices = Device("end", END, 0.05), Device("cloud", CLOUD, 0.05)
    up = steps([link(0.1), link(0.35), link(0.15)], "inputs")
    return World(devices, (Edge("end", "cloud", up),), power=A53_COVE, radio=LTE, objective=objective)


def diamond() -> World:
    """Two clouds above one gateway; the link to one of them is down for a while, again and again."""
    devices = (
        Device("end", END, 0.05),
        Device("gateway", line(0.02, 0.02, MAX_N), 0.05, (SlowPeriod(0.5, 0.8, 2.0),)),
        Device("a", CLOUD, 0.1),
        Device("b", CLOUD, 0.02, (SlowPeriod(0.2, 0.4, 30.0),)),
    )
    edges = (
        Edge("end", "gateway", constant(link(0.01))),
        Edge("gateway", "a", LinkSeries((0.0, 20.0, 35.0), (link(0.05), None, link(0.25)), period_s=50.0)),
        Edge("gateway", "b", steps([link(0.2), link(0.08)], "inputs")),
        Edge("end", "b", constant(link(0.3))),
    )
    return World(devices, edges)


def seldom() -> World:
    """A cloud that is worth asking a third of the time, and pings that mostly find nothing.

    The end node is a little slower, then much slower, for parts of the run.
    """
    spells = (SlowPeriod(0.15, 0.3, 1.4), SlowPeriod(0.5, 0.6, 4.0))
    up = LinkSeries((0.0, 12.0, 40.0, 41.0), (link(0.2), link(0.75), None, link(0.6)), period_s=60.0)
    devices = Device("end", END, 0.1, spells), Device("cloud", CLOUD, 0.3, (SlowPeriod(0.4, 0.45),))
    return World(devices, (Edge("end", "cloud", up),))


Simulation = tuple[World, RouterSettings]
SIMULATIONS: dict[str, Simulation] = {
    "three": (three(), SETTINGS),
    "three_paper": (three(), paper_settings(MAX_N, ping_after_s=5.0)),
    "three_told_nothing": (three(), replace(SETTINGS, threshold_s=1e6)),  # no curve moves by that much
    "three_often": (three(failure_s=0.3), replace(SETTINGS, adapts_pings=False, ping_after_s=2.0, degree=2)),
    "diamond": (diamond(), SETTINGS),
    "seldom": (seldom(), replace(SETTINGS, ping_after_s=3.0, probe_after_s=8.0)),
    "energy": (two(ENERGY), SETTINGS),
    "seconds_and_joules": (two(Objective(1.0, 0.4)), SETTINGS),
}


def totals(world: World, inputs: Inputs, run: Run) -> str:
    """All that a run counted, real time apart, and the oracle's run of the same inputs."""
    by_device = "/".join(map(str, np.bincount(run.targets).tolist()))
    times = f"{run.seconds:.6g} s, upkeep {run.upkeep_s:.6g} s, failures {run.failures_s:.6g} s"
    counts = f"pings {run.n_pings} broadcasts {run.n_broadcasts} probes {run.n_probes}"
    best = oracle(world, inputs)
    verdict = judge(world, inputs, run)
    known = f"oracle {best.seconds:.6g} s, {digest(str(best.targets.tolist()))}, right {verdict.right.sum()}"
    counted = f"{times}, {run.joules:.6g} J; {counts} failures {run.n_failures}"
    return f"by device {by_device}; {counted}; {known}, lost {verdict.lost_s:.6g} s"


@pytest.mark.parametrize("name", SIMULATIONS)
def test_a_simulated_run_decides_as_the_golden_log_has_it(
    golden: Callable[[str, str], None], log: Log, name: str
) -> None:
    """By time and by energy, under loads and changing links, with broadcasts and without."""
    world, settings = SIMULATIONS[name]
    inputs = draw(world, LENGTHS, seed=3)
    run = simulate(world, inputs, settings, seed=7)
    golden(f"guards/route_{name}.txt", log.text(totals(world, inputs, run)))


@pytest.mark.parametrize(
    ("name", "loop"),
    [
        ("queues", partial(ClosedLoop, 8, 0.01, slower=3.0, way_s=4e-3, others=3, n_servers=2, told_s=0.008)),
        ("crowd", partial(ClosedLoop, 24, 0.02, slower=8.0, n_servers=4)),
        ("liar", partial(ClosedLoop, 4, 0.05, slower=1.5, told_s=0.005)),
    ],
)
def test_clients_that_queue_are_sent_as_the_golden_log_has_it(
    golden: Callable[[str, str], None], log: Log, name: str, loop: Callable[[], ClosedLoop]
) -> None:
    """Inputs that wait, here or above, are part of every estimate; one above may take more than it tells."""
    made = loop().run(2.0)
    counts = f"above {made.n_above} here {made.n_here} others {made.n_others}"
    golden(f"guards/route_{name}.txt", log.text(f"{counts} most in flight {made.most_in_flight}"))


def levels() -> Iterator[Level]:
    """Six ways in each of three ranges of lengths: the slower, the better, and one that never pays."""
    for first, last in ((0, 8), (9, 24), (25, 60)):
        for i, accuracy in enumerate((0.61, 0.74, 0.83, 0.88, 0.91, 0.86)):
            low_s, high_s = (1e-3 * (1 + i) * (1 + 0.05 * n) for n in (first, last))
            ends = (Timing(low_s, low_s * (1.1 + 0.05 * i)), Timing(high_s, high_s * (1.1 + 0.05 * i)))
            yield Level(first, last, f"way {i}", accuracy, accuracy, ends)


def traded(count: int, seed: int) -> Iterator[str]:
    """Requests of random length, floor and deadline; another job slows the device for a third of them."""
    rng, trade = np.random.default_rng(seed), LevelSelector(levels())
    floors: Sequence[float | None] = (None, 0.0, 0.7, 0.85, 0.9)
    for i in range(count):
        n = int(rng.integers(0, 70))
        floor = floors[int(rng.integers(len(floors)))]
        deadline_s = None if rng.random() < 0.3 else float(rng.uniform(1e-3, 0.03))
        pick = trade.pick(n, floor, deadline_s)
        load = 2.5 if count // 3 <= i < 2 * count // 3 else 1.0
        seconds = pick.level.at(n).median_s * load * float(rng.lognormal(0.0, 0.1))
        trade.observe(pick.level, n, seconds)
        asked = f"floor {floor} deadline {'none' if deadline_s is None else f'{deadline_s:.6g}'}"
        answer = f"{pick.level.key} {pick.time.median_s:.6g} s{'' if pick.is_met else ' late'}"
        yield f"{i} {n} {asked}: {answer}; pace {trade.bound.pace:.6g} factor {trade.bound.factor():.6g}"


def test_floors_and_deadlines_get_what_the_golden_log_has(golden: Callable[[str, str], None]) -> None:
    """The most accurate way that is in time, by bounds that follow the answers."""
    made = Log()
    made.lines += traded(900, seed=11)
    golden("guards/route_trade.txt", made.text(f"best {LevelSelector(levels()).best}"))
