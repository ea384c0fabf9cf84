"""[slo.stable] in simulation: under steady load each endpoint keeps its share of the answers."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pliant.ir.link import Link
from pliant.route.router_settings import RouterSettings
from research.deadline_world import read_world
from research.fleet_run import FleetRun
from research.fleet_world import ElasticLevel, steady_fleet
from research.simulate_fleet import simulate_fleet

FOLDER = Path(__file__).parents[2] / "bench" / "worlds"
LEVELS = (ElasticLevel(0.85, 0.25), ElasticLevel(0.8835, 0.45), ElasticLevel(0.8896, 1.0))
CLUSTER_S, UP = 0.1, Link(0.045, 1e6)
"""By the world's arithmetic: 10 answers a second of the cluster; round trips of the series' window."""
SETTLED_S, WINDOW_S, MOST = 60.0, 15.0, 0.10


def shares(run: FleetRun, first_s: float) -> dict[tuple[int, str | None], float]:
    """Of the answers to requests asked in a window, by node and endpoint."""
    inside = (run.at_s >= first_s) & (run.at_s < first_s + WINDOW_S) & (run.by >= 0)
    counts = Counter((int(run.by[i]), run.endpoint[i]) for i in np.flatnonzero(inside))
    total = sum(counts.values())
    return {name: n / total for name, n in counts.items()}


def swing(run: FleetRun, end_s: float) -> float:
    windows = [shares(run, s) for s in np.arange(SETTLED_S, end_s - WINDOW_S + 1.0, WINDOW_S)]
    names = {name for window in windows for name in window}
    by_name = [[window.get(name, 0.0) for window in windows] for name in names]
    return max(max(values) - min(values) for values in by_name)


@pytest.mark.slow
@pytest.mark.parametrize("n_clients", [8, 32])
def test_shares_of_endpoints_do_not_oscillate_under_steady_load(n_clients: int) -> None:
    """Three seeds; clients that each ask again at once, a device, a cluster and a gateway."""
    world = read_world(FOLDER / "steady.toml")
    worst = []
    for seed in (1, 2, 3):
        fleet = steady_fleet(world, CLUSTER_S, UP, LEVELS, 20_000, seed)
        run = simulate_fleet(fleet, RouterSettings(48), seed=seed, clients=(n_clients, world.duration_s))
        worst.append(swing(run, world.duration_s))
    assert max(worst) <= MOST, worst
