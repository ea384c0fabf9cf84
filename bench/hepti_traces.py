"""Figure 7's systems on real bandwidth: 5G walking and driving (Lumos5G), one sample per second, on both
links.

Hepti adapts; CoEdge keeps its choice of the trace's first second; each replays the same seconds. Local
inference, which needs no network, is the reference without a cluster. The shaper has no rate of 0; 8 kbit/s
is used instead.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

import numpy as np

from hepti_adapt import AMPLE, Change, World, describe, layer_seconds, opened_bed
from hepti_beds import Network
from hepti_rig import PRIMARY, SECONDARY
from pliant.cluster.session.cluster_details import ClusterDetails
from pliant.cluster.session.cluster_session import ClusterSession
from report import ROOT

TRACES = {"walking": ("5g/5g_trace_101_walking", 36), "driving": ("5g/5g_trace_77_driving", 0)}
"""A trace, and the second at which the replay starts: with high bandwidth, before it falls."""
SECONDS = 30
_LEAST_BPS = 1e3
_FOLDER = Path(os.environ.get("PLIANT_TRACES") or ROOT.parent / "shared" / "traces") / "lumos5g"


def measure(quick: bool) -> list[dict[str, Any]]:
    """One row per trace and system; empty if the traces are not available."""
    rows: list[dict[str, Any]] = []
    if not _FOLDER.is_dir():
        return rows
    seconds = 8 if quick else SECONDS
    with opened_bed(4 if quick else 8) as world:
        world.bed.cluster.close()
        for name, (path, first) in TRACES.items():
            mbits = read_trace(_FOLDER / path)[first : first + seconds]
            for system, options in _SYSTEMS.items():
                world.become(Change("first second", f"{mbits[0]}Mbit", AMPLE))
                with world.opened(**options) as session:
                    found = _replayed(world, session, mbits, is_alone=system == "local")
                rows.append({"trace": name, "system": system} | found)
    return rows


_SYSTEMS: Mapping[str, dict[str, Any]] = {
    "Hepti": {},
    "CoEdge": {"shares": "coedge", "adapt": False},
    "local": {"adapt": False},
}


def read_trace(path: Path) -> list[float]:
    """Mbit/s of each second. Raises ValueError for a line that is not two numbers."""
    lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
    return [float(mbit) for _, mbit in lines]


def _replayed(
    world: World, session: ClusterSession, mbits: Sequence[float], *, is_alone: bool
) -> dict[str, Any]:
    """Repeat runs for the duration of the trace."""
    for _ in range(2):
        world.run(session, is_alone=is_alone)
    runs: list[ClusterDetails] = []
    with _replaying(world.bed.network, mbits) as ended:
        while not ended.is_set():
            runs.append(world.run(session, is_alone=is_alone))
    layers = [1e3 * seconds for run in runs for seconds in layer_seconds(run)]
    return {
        "Mbit/s, median (least to most)": f"{median(mbits):.0f} ({min(mbits):.0f} to {max(mbits):.0f})",
        "runs": len(runs),
        "run, median [s]": median(run.run_s for run in runs),
        "run, worst [s]": max(run.run_s for run in runs),
        "layer, median [ms]": median(layers),
        "layer, mean [ms]": float(np.mean(layers)),
        "layer, 95th percentile [ms]": float(np.quantile(layers, 0.95)),
        "new plans in runs": sum(len(run.switches) for run in runs),
        "faults": sum(len(run.faults) for run in runs),
        "plans": "; ".join(dict.fromkeys(describe(p) for run in runs for p in run.partitions)),
    }


@contextmanager
def _replaying(network: Network, mbits: Sequence[float]) -> Iterator[Event]:
    """Change the bandwidth every second; the event is set after the last second."""
    ended, stopped = Event(), Event()

    def replay() -> None:
        for mbit in mbits:
            for name in (PRIMARY, SECONDARY):
                network.set_bandwidth(name, max(_LEAST_BPS, mbit * 1e6 / 8))
            if stopped.wait(1.0):
                return
        ended.set()

    thread = Thread(target=replay)
    thread.start()
    try:
        yield ended
    finally:
        stopped.set()
        thread.join()
