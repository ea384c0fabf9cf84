"""Tables 1 and 2 of CRIME, and the distribution over all RIPE Atlas series, as rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import checkout  # noqa: F401 - research and testbed lie there
from crime_devices import Devices
from crime_inputs import lengths
from crime_worlds import (
    BANDWIDTH_BPS,
    OURS,
    PAPERS,
    Outcome,
    artificial,
    by_spread,
    run,
    three_levels,
    traces,
    two_levels,
)
from research.series import Trace, Window

TESTS = ("SNLI", "SQuAD", "SNLI_200", "IMDB")
PAPER: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("artificial", "SNLI"): (25.66, 17.29, 0.28),
    ("artificial", "SQuAD"): (15.67, 25.99, 0.40),
    ("artificial", "SNLI_200"): (20.93, 7.84, 0.18),
    ("artificial", "IMDB"): (1.51, 23.47, 0.01),
    ("RIPE Atlas", "SNLI"): (21.35, 8.64, 0.24),
    ("RIPE Atlas", "SQuAD"): (8.06, 15.72, 0.28),
    ("RIPE Atlas", "SNLI_200"): (3.48, 36.51, 0.032),
    ("RIPE Atlas", "IMDB"): (0.12, 56.23, 0.002),
    ("B", "SNLI"): (35.57, 5.93, 25.33, 0.32),
    ("B", "SQuAD"): (26.40, 1.49, 31.92, 0.99),
    ("B", "SNLI_200"): (4.52, 20.22, 37.48, 0.85),
    ("B", "IMDB"): (-0.46, 68.49, 59.22, 0.46),
    ("C", "SNLI"): (35.56, 45.38, 26.11, 25.13, 0.72),
    ("C", "SQuAD"): (23.22, 35.12, 32.98, 29.51, 1.18),
    ("C", "SNLI_200"): (4.75, 50.87, 44.73, 37.69, 1.15),
    ("C", "IMDB"): (-0.70, 80.45, 64.35, 59.12, 0.71),
}
"""Percent saved of each device's time, then percent above the oracle, as printed in the paper."""
Row = dict[str, Any]


def row(devices: Devices, system: str, test: str, count: int) -> Row | None:
    """One row of Table 1 (`system` "artificial" or "RIPE Atlas") or 2 ("B", "C"); None without its data."""
    found = lengths(test.partition("_")[0], count)
    if found is None or (system != "artificial" and not traces()):
        return None
    if system in ("B", "C"):
        first, second = (window.series(BANDWIDTH_BPS) for window in by_spread(4)[:2])
        world = three_levels(devices, test, first, second if system == "C" else None)
    else:
        ripe = system == "RIPE Atlas"
        series = by_spread(3)[0].series(BANDWIDTH_BPS) if ripe else artificial()
        world = two_levels(devices, test, series)
    ours, plain = run(world, found, (OURS, PAPERS))
    return _numbers(ours, plain) | {"curves": devices.name, "system": system, "test": test}


def _numbers(ours: Outcome, plain: Outcome) -> Row:
    made = ours.run
    return {
        "saved": {name: ours.saved(name) for name in ours.alone_s},
        "oracle saves": {name: 100 * (1 - ours.best.seconds / t) for name, t in ours.alone_s.items()},
        "over": ours.over,
        "over own": ours.over_own,
        "noise": ours.noise,
        "right": ours.right,
        "lost": 100 * ours.verdict.lost_s / ours.verdict.least_s,
        "upkeep": 100 * made.upkeep_s / made.seconds,
        "pings": made.n_pings,
        "broadcasts": made.n_broadcasts,
        "probes": made.n_probes,
        "plain over": plain.over,
        "plain right": plain.right,
        "wall_s": made.wall_s,
        "mean_ms": 1e3 * made.seconds / len(made.targets),
    }


def shown(found: Row) -> dict[str, object]:
    """The row as printed: our value, with the paper's in brackets."""
    paper = PAPER[found["system"], found["test"]]
    cells: dict[str, object] = {"curves": found["curves"], "system": found["system"], "test": found["test"]}
    for (name, value), printed in zip(found["saved"].items(), paper, strict=False):
        cells[f"vs {name} [%]"] = f"{value:.2f} ({printed})"
    cells["over the oracle [%]"] = f"{found['over']:.3f} ({paper[-1]})"
    cells["at its own moments [%]"] = f"{found['over own']:.3f}"
    cells["of it noise [%]"] = f"{found['noise']:.3f}"
    cells["of it pings, words [%]"] = f"{found['upkeep']:.3f}"
    cells["right [%]"] = f"{found['right']:.1f}"
    cells["paper's policy: over, right [%]"] = f"{found['plain over']:.3f}, {found['plain right']:.1f}"
    return cells


def holds(found: Row) -> bool:
    """Whether one row meets [crime.oracle]."""
    beaten = all(saved > 0.0 for name, saved in found["saved"].items() if found["oracle saves"][name] > 1.0)
    return max(found["over"], found["over own"]) <= 1.0 and beaten


def widest(trace: Trace) -> Window:
    """The window of 3 hours of a series whose round trips differ most, lost probes allowed."""
    found = []
    first = 0
    while first < len(trace.times_s) and trace.times_s[first] + 3 * 3600.0 <= trace.times_s[-1]:
        end = int(np.searchsorted(trace.times_s, trace.times_s[first] + 3 * 3600.0))
        kept = [r for r in trace.rtts_s[first:end] if r is not None]
        if kept:
            found.append(Window(trace, first, 3 * 3600.0, max(kept) - min(kept)))
        first = max(end, first + 1)
    return max(found, key=lambda w: w.spread_s)


def series_row(devices: Devices, k: int, count: int) -> Row | None:
    """SNLI in system A over the widest 3 hours of series k."""
    found = lengths("SNLI", count)
    if found is None or k >= len(traces()):
        return None
    window = widest(traces()[k])
    world = two_levels(devices, "SNLI", window.series(BANDWIDTH_BPS))
    ours, plain = run(world, found, (OURS, PAPERS))
    rows = world.edges[0].series.links
    return _numbers(ours, plain) | {
        "series": window.trace.name,
        "spread_ms": 1e3 * window.spread_s,
        "lost_probes": sum(one is None for one in rows),
    }
