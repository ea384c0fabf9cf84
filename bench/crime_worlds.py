"""Figure 9's systems A, B and C with their links, and policies' runs compared with the oracle and single
devices.

Windows of RIPE Atlas series are chosen by rule: of all consecutive windows of 3 hours (4 for the two links of
Table 2) from each series' start, without a lost probe and with all round trips within 100 to 245 ms, the one
with the largest spread of round trips; for Table 2 the first one and the next one of another series. They are
played in real time, and repeat if a run takes longer.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import checkout  # noqa: F401 - research and testbed lie there
from crime_devices import MODELS, Devices
from pliant.ir.link import Link
from pliant.route.choice.energy import A53_COVE, A53_IMDB, LTE
from pliant.route.choice.objective import TIME, Objective
from pliant.route.router_settings import RouterSettings, paper_settings
from report import ROOT
from research.oracle import Verdict, alone, judge, oracle
from research.series import LinkSeries, Trace, Window, bluetooth, constant, read_ripe, steps, windows
from research.simulate import Run, simulate
from research.world import Edge, Inputs, World, draw

BANDWIDTH_BPS = 250e3
"""2 Mbit/s, the paper's."""
LOW_S, HIGH_S = 0.100, 0.245
_FOLDER = Path(os.environ.get("PLIANT_TRACES") or ROOT.parent / "shared" / "traces") / "ripe_atlas"
_SEED = 1


def link(rtt_s: float) -> Link:
    return Link(rtt_s, BANDWIDTH_BPS)


def two_levels(devices: Devices, test: str, series: LinkSeries, objective: Objective = TIME) -> World:
    """Figure 9, A: the end node and a cloud."""
    ends = tuple(devices.device(MODELS[test], level) for level in ("end", "cloud"))
    power = A53_IMDB if MODELS[test] == "IMDB" else A53_COVE
    return World(ends, (Edge("end", "cloud", series),), power=power, radio=LTE, objective=objective)


def three_levels(devices: Devices, test: str, far: LinkSeries, other: LinkSeries | None = None) -> World:
    """Figure 9, B; with `other`, C: a second cloud, and load on the gateway from half of the inputs on."""
    model = MODELS[test]
    made = [
        devices.device(model, "end"),
        devices.device(model, "gateway", is_loaded=other is not None),
        devices.device(model, "cloud", "cloud" if other is None else "cloud-1"),
    ]
    near = bluetooth(devices.ble_s, 900.0, seed=_SEED)
    edges = [Edge("end", "gateway", near), Edge("gateway", made[2].name, far)]
    if other is not None:
        made.append(devices.device(model, "cloud", "cloud-2"))
        edges.append(Edge("gateway", "cloud-2", other))
    return World(tuple(made), tuple(edges))


def artificial() -> LinkSeries:
    """100, 200, 300 ms, a third of the inputs each (5.2.2)."""
    return steps([link(0.1), link(0.2), link(0.3)], "inputs")


def fixed(rtt_s: float) -> LinkSeries:
    return constant(link(rtt_s))


@cache
def traces() -> tuple[Trace, ...]:
    """All series; none if the folder is not available."""
    return tuple(read_ripe(path.read_text(), path.stem) for path in sorted(_FOLDER.glob("*.csv")))


@cache
def by_spread(hours: int) -> tuple[Window, ...]:
    """The windows allowed by the rule, largest spread first, one per series."""
    found: dict[str, Window] = {}
    for trace in traces():
        for window in windows(trace, hours * 3600.0, LOW_S, HIGH_S):
            if trace.name not in found or window.spread_s > found[trace.name].spread_s:
                found[trace.name] = window
    return tuple(sorted(found.values(), key=lambda w: -w.spread_s))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy's run of a world, with its references."""

    run: Run
    best: Run
    verdict: Verdict
    noise: float
    """The part of it that cannot be avoided, in percent: `foreseeable`."""
    alone_s: Mapping[str, float]
    alone_j: Mapping[str, float]

    @property
    def over(self) -> float:
        """Above the oracle, in percent: of a run of its own."""
        return 100.0 * (self.run.seconds / self.best.seconds - 1.0)

    @property
    def over_own(self) -> float:
        """Above what the best device would have taken at each of this run's own moments, in percent."""
        return 100.0 * (self.run.seconds / self.verdict.least_s - 1.0)

    def saved(self, device: str) -> float:
        """Of the time of `device` alone, in percent."""
        return 100.0 * (1.0 - self.run.seconds / self.alone_s[device])

    @property
    def right(self) -> float:
        return 100.0 * float(self.verdict.right.mean())


@dataclass(frozen=True, slots=True)
class Policy:
    """A router's settings, for lengths as they come."""

    name: str
    is_paper: bool = False
    ping_after_s: float = 60.0

    def settings(self, max_n: int) -> RouterSettings:
        if self.is_paper:
            return paper_settings(max_n, ping_after_s=self.ping_after_s)
        return RouterSettings(max_n, ping_after_s=self.ping_after_s)


OURS, PAPERS = Policy("ours"), Policy("paper's", is_paper=True)


def foreseeable(world: World, inputs: Inputs) -> float:
    """The loss in percent of a policy that knows all links and the mean time of each length.

    No policy without knowledge of the noise can avoid this loss; the rest of a router's loss is its own.
    """
    lengths = np.array(inputs.lengths)
    means = [np.array([d.curve.at(n) for n in range(inputs.max_n + 1)])[lengths] for d in world.devices]
    informed = oracle(world, Inputs(inputs.lengths, tuple(tuple(each.tolist()) for each in means)))
    verdict = judge(world, inputs, informed)
    return 100.0 * verdict.lost_s / verdict.least_s


def run(world: World, lengths: np.ndarray, policies: tuple[Policy, ...] = (OURS,)) -> list[Outcome]:
    """Each policy's outcome, on the same inputs with the same times."""
    inputs = draw(world, lengths, _SEED)
    best = oracle(world, inputs)
    singles = {device.name: alone(world, inputs, device.name) for device in world.devices}
    noise = foreseeable(world, inputs)
    return [_outcome(world, inputs, policy, best, noise, singles) for policy in policies]


def _outcome(
    world: World, inputs: Inputs, policy: Policy, best: Run, noise: float, singles: Mapping[str, Run]
) -> Outcome:
    made = simulate(world, inputs, policy.settings(inputs.max_n), _SEED)
    return Outcome(
        made,
        best,
        judge(world, inputs, made),
        noise,
        {name: single.seconds for name, single in singles.items()},
        {name: single.joules for name, single in singles.items()},
    )
