"""The worlds of bench/slo.py, simulated: the same routers, worlds and seeds, without the machine's noise.

Every world is simulated for the tuning seeds and for twenty others, with pliant's router and with random,
nearest and power-of-two choices with the same knowledge and rules (research/fleet_policies.py), and compared
with the oracle, which knows the whole world. Times of model and network are in bench/worlds/known.toml,
measured by bench/slo.py; works and ways vary by 5 % each. It takes two minutes and needs no testbed, so
router settings are tried here first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

import checkout  # noqa: F401 - research lies there
from pliant.route.router_settings import RouterSettings
from report import Report, options
from research.deadline_fleet import DEVICE, scenario_fleet
from research.deadline_oracle import Decision, attained_share, decide_with_hindsight, read_oracle_inputs
from research.deadline_world import Scenario, read_seeds
from research.fleet_policies import POLICIES, Policy
from research.simulate_fleet import simulate_fleet
from slo_lab import FOLDER, scenario_of

WORLDS = ("commuter", "office", "rush", "crowd", "neighbours", "drift")
_MAX_WORDS = 64
_SMALL = 1e-9


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one way in a scenario: the attained fraction of requests, and the mean accuracy above the
    oracle's over requests that both attain. `unused` is the fraction of computing on hedges not used.
    """

    attained: float
    points: float
    unused: float


def main() -> None:
    told = options(__doc__ or "")
    seeds = read_seeds(FOLDER / "seeds.toml")
    groups: dict[str, Sequence[int]] = {"tuning": seeds.tuning[:1] if told.quick else seeds.tuning}
    if not told.quick:
        groups["twenty other"] = seeds.simulated
    every = [seed for group in groups.values() for seed in group]
    report = Report("slo_simulated", f"6 worlds, {len(every)} seeds, works and ways that vary by 5 %", told)
    for name, chosen in groups.items():
        report.table(f"In time and at their floor, {name} seeds", [_row(world, chosen) for world in WORLDS])
    report.finish()


def _row(world: str, seeds: Sequence[int]) -> dict[str, Any]:
    found: dict[str, list[Outcome]] = {name: [] for name in POLICIES}
    oracle = []
    for seed in seeds:
        scenario, known = scenario_of(world, seed), read_oracle_inputs(FOLDER / "known.toml")
        best = decide_with_hindsight(scenario, known)
        oracle.append(attained_share(best))
        for name, policy in POLICIES.items():
            found[name].append(played(scenario, policy, best))
    ours = found["pliant"]
    return (
        {"world": world}
        | {f"{name} [%]": 100 * mean(one.attained for one in of) for name, of in found.items()}
        | {"pliant, worst seed [%]": 100 * min(one.attained for one in ours)}
        | {"oracle [%]": 100 * mean(oracle), "points to the oracle": 100 * mean(one.points for one in ours)}
        | {"unused hedges [% of computing]": 100 * mean(one.unused for one in ours)}
    )


def played(scenario: Scenario, policy: Policy, best: Sequence[Decision]) -> Outcome:
    """Simulate one way in a scenario, and compare it with the oracle's decisions."""
    known = read_oracle_inputs(FOLDER / "known.toml")
    fleet = scenario_fleet(scenario, known, seed=scenario.seed)
    made = simulate_fleet(fleet, RouterSettings(_MAX_WORDS), policy, scenario.seed)
    requests = fleet.requests
    own = np.flatnonzero(requests.source == DEVICE)  # in the order of the scenario's
    place = {int(number): i for i, number in enumerate(made.number)}
    kept, gaps = [], []
    for request, number, decision in zip(scenario.requests, own, best, strict=True):
        i = place[int(number)]
        is_kept = made.seconds[i] <= request.deadline_s and made.accuracy[i] >= request.floor - _SMALL
        kept.append(bool(is_kept))
        if is_kept and decision.way is not None:
            gaps.append(float(made.accuracy[i]) - decision.accuracy)
    return Outcome(mean(kept), mean(gaps) if gaps else float("nan"), made.unused_s / made.work_s)


if __name__ == "__main__":
    main()
