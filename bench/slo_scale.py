"""[slo.scale] A thousand nodes in a tree of three tiers and a million requests under deadlines, simulated.

Every node uses the router of real nodes (research/simulate_fleet.py). It is compared with random, nearest and
power-of-two choices with the same knowledge and rules (research/fleet_policies.py): the same estimates,
levels, refusals, hedges and retries. The world is bench/worlds/tree.toml. Policies run in separate processes,
two at a time, with the same requests. A full run uses the first tuning seed.
"""

import argparse
import gc
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np

import checkout  # noqa: F401 - research lies there
from pliant.arrays import Bool
from pliant.route.router_settings import RouterSettings
from report import ROOT, Report, options
from research.deadline_world import read_seeds
from research.fleet_policies import POLICIES
from research.fleet_run import FleetRun
from research.fleet_world import Fleet, FleetWorld, draw_fleet, read_fleet
from research.simulate_fleet import simulate_fleet

FOLDER = ROOT / "bench" / "worlds"
N_REQUESTS, N_QUICK = 1_000_000, 10_000
MOST_S = 600.0


@dataclass(frozen=True, slots=True)
class Task:
    """One policy's run."""

    policy: str
    seed: int
    n_requests: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a run: in total, by kind of requests, and by answering tier."""

    task: Task
    attained: float
    wall_s: float
    row: dict[str, Any]
    by_kind: dict[str, Any]
    by_subtree: dict[str, Any]


def main() -> None:
    told = options(__doc__ or "", _more)
    n = told.requests or (N_QUICK if told.quick else N_REQUESTS)
    seeds = [int(seed) for seed in told.seeds.split(",")] if told.seeds else [_first_seed()]
    tasks = [Task(policy, seed, n) for seed in seeds for policy in POLICIES]
    with ProcessPoolExecutor(told.processes) as pool:
        found = list(pool.map(run, tasks))
    n_nodes = sum(tier.count for tier in _world().tiers)
    report = Report("slo_scale", f"{n_nodes} nodes, {n} requests, seeds {seeds}", told)
    report.table("In time and at their floor, by policy", [rows.row for rows in found])
    report.table("The same by kind of requests", [rows.by_kind for rows in found])
    report.table("The same by subtree of a gateway", [rows.by_subtree for rows in found])
    claim(report, found)
    report.finish()


def run(task: Task) -> Rows:
    """Run a task in a separate process."""
    world = _world()
    fleet = draw_fleet(world, task.n_requests, task.seed)
    settings = RouterSettings(world.words[1])
    gc.freeze()  # the fleet is long-lived; scanning it for cycles would cost time in every request
    gc.set_threshold(1_000_000, 20, 50)
    begun_s = process_time()
    made = simulate_fleet(fleet, settings, POLICIES[task.policy], task.seed)
    cpu_s = process_time() - begun_s
    where = {"policy": task.policy, "seed": task.seed}
    kept = attained(fleet, made)
    return Rows(
        task,
        float(kept.mean()),
        made.wall_s,
        where | _row(world, fleet, made, kept) | {"CPU s": cpu_s},
        where | _by_kind(fleet, made, kept),
        where | _by_subtree(world, fleet, made, kept),
    )


def attained(fleet: Fleet, made: FleetRun) -> Bool[np.ndarray, " m"]:
    """For each ended request, whether it was answered in time and at its accuracy floor."""
    kind = fleet.requests.kind[made.number]
    deadline_s = np.array([one.deadline_s for one in fleet.requests.kinds])[kind]
    floor = np.array([one.floor for one in fleet.requests.kinds])[kind]
    return np.asarray((made.seconds <= deadline_s) & (made.accuracy >= floor - 1e-9))


def claim(report: Report, found: Sequence[Rows]) -> None:
    """Attainment of the seed with the worst gap to the best simple policy, and the longest run."""
    seeds = sorted({rows.task.seed for rows in found})
    gaps = []
    for seed in seeds:
        of_seed = {rows.task.policy: rows.attained for rows in found if rows.task.seed == seed}
        best = max(share for policy, share in of_seed.items() if policy != "pliant")
        gaps.append((of_seed["pliant"] - best, of_seed["pliant"], best))
    gap, ours, best = min(gaps)
    longest_s = max(rows.wall_s for rows in found)
    report.claim(
        "slo.scale",
        f"{100 * ours:.2f} % beside {100 * best:.2f} %, {longest_s:.0f} s",
        f"every run ends in {MOST_S:g} s; attainment against the best of random, nearest and two choices",
        longest_s < MOST_S,
        f"{100 * gap:+.2f} points of attainment, the worst of {len(seeds)} seeds; see the table for accuracy",
    )


def _row(world: FleetWorld, fleet: Fleet, made: FleetRun, kept: np.ndarray) -> dict[str, Any]:
    answered = made.by >= 0
    tiers = np.array([node.tier for node in fleet.nodes])[made.by[answered]]
    shares = np.bincount(tiers, minlength=len(world.tiers)) / max(int(answered.sum()), 1)
    return {
        "attained [%]": 100 * float(kept.mean()),
        "refused [%]": 100 * float((~answered).mean()),
        "late [%]": 100 * float((answered & ~kept).mean()),
        "median ms": 1e3 * float(np.median(made.seconds[answered])),
        "accuracy": float(made.accuracy[kept].mean()),
        "by": ", ".join(f"{t.name} {100 * s:.0f} %" for t, s in zip(world.tiers, shares, strict=True)),
        "hedged [%]": 100 * made.n_doubled / len(kept),
        "unused hedges [% of computing]": 100 * made.unused_s / made.work_s,
        "pings": made.n_pings,
        "broadcasts": made.n_broadcasts,
        "wall s": made.wall_s,
    }


def _by_kind(fleet: Fleet, made: FleetRun, kept: np.ndarray) -> dict[str, Any]:
    kind = fleet.requests.kind[made.number]
    return {
        f"{1e3 * one.deadline_s:g} ms above {one.floor:g} [%]": 100 * float(kept[kind == k].mean())
        for k, one in enumerate(fleet.requests.kinds)
    }


def _by_subtree(world: FleetWorld, fleet: Fleet, made: FleetRun, kept: np.ndarray) -> dict[str, Any]:
    """The attainment of the worst gateway's devices, the 10th percentile, and the median."""
    gateway = np.array([node.ups[0][0] if node.ups else -1 for node in fleet.nodes])
    of = gateway[fleet.requests.source[made.number]]
    shares = [100 * float(kept[of == g].mean()) for g in np.unique(of)]
    tenth, middle = np.quantile(shares, [0.1, 0.5])
    return {"worst [%]": min(shares), "tenth part [%]": float(tenth), "median [%]": float(middle)}


def _world() -> FleetWorld:
    return read_fleet(FOLDER / "tree.toml")


def _first_seed() -> int:
    return read_seeds(FOLDER / "seeds.toml").tuning[0]


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, help=f"instead of {N_REQUESTS}")
    parser.add_argument("--seeds", help="instead of the first of the tuning seeds")
    parser.add_argument("--processes", type=int, default=2, help="runs at once")


if __name__ == "__main__":
    main()
