"""Figures 3, 6, 8, 10 to 14 of CRIME, as rows of numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crime_devices import LEVELS, MAX_WORDS, Devices
from crime_inputs import lengths
from crime_worlds import (
    BANDWIDTH_BPS,
    OURS,
    Policy,
    by_spread,
    fixed,
    run,
    three_levels,
    traces,
    two_levels,
)
from pliant.ir.curve import Curve
from pliant.route.choice.energy import A53_COVE, A53_IMDB
from pliant.route.choice.objective import ENERGY

Rows = list[dict[str, Any]]
PANELS = {"a": "SNLI", "b": "SQuAD", "c": "SNLI_200", "d": "IMDB"}
RTTS_MS = {"IMDB": (5, 10, 20, 40, 60, 80, 100, 150, 200)}
_RTTS_MS = (25, 50, 75, 100, 125, 150, 200, 250, 300, 350, 400)
PINGS_S = (1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 7200.0)


def break_evens(devices: Devices) -> Rows:
    """Figure 3: each device's line as seen by the end node, and the break-even lengths."""
    cove = devices.curves["CoVe-300"]
    ways = {"end": 0.0, "gateway": devices.near_s, "cloud": devices.near_s + devices.far_s}
    rows: Rows = []
    for level in LEVELS:
        slope, constant, r2 = _fit(cove[level])
        rows.append(
            {
                "curves": devices.name,
                "device": level,
                "ms a word": 1e3 * slope,
                "constant [ms]": 1e3 * constant,
                "round trips [ms]": 1e3 * ways[level],
                "R² (paper)": f"{r2:.4f} ({ {'end': 0.997, 'gateway': 0.998, 'cloud': 0.985}[level] })",
                "quickest from (paper)": _from(cove, ways, level),
            }
        )
    return rows


def _from(cove: Mapping[str, Curve], ways: Mapping[str, float], level: str) -> str:
    paper = {"end": 1, "gateway": 4, "cloud": 11}
    best = [min(LEVELS, key=lambda k: cove[k].at(n) + ways[k]) for n in range(1, MAX_WORDS["CoVe-300"] + 1)]
    first = best.index(level) + 1 if level in best else None
    return f"{first} words ({paper[level]})"


def _fit(curve: Curve) -> tuple[float, float, float]:
    n = np.arange(1, MAX_WORDS["CoVe-300"] + 1, dtype=float)
    t = np.array([curve.at(int(m)) for m in n])
    slope, constant = np.polyfit(n, t, 1)
    off = t - slope * n - constant
    return float(slope), float(constant), 1.0 - float((off**2).sum() / ((t - t.mean()) ** 2).sum())


def at_once(found: Mapping[str, Any]) -> Rows:
    """Figure 6: CoVe-300's line with 1, 4 and 8 concurrent inferences, on this machine."""
    paper = {"1": 1.0, "4": (1.48e-4 / 5.71e-5) ** 0.5, "8": (6.96e-4 / 5.71e-5) ** 0.5}
    rows: Rows = []
    for count, measured in found["at once"].items():
        n = np.array([m for m, _ in measured], float)
        means = np.array([np.mean(times) for _, times in measured])
        slope, constant = np.polyfit(n, means, 1)
        off = means - slope * n - constant
        rows.append(
            {
                "inferences at once": count,
                "ms a word": 1e3 * float(slope),
                "constant [ms]": 1e3 * float(constant),
                "R² of means (paper: 0.998)": f"{1 - (off**2).mean() / means.var():.4f}",
                "times one (paper, from its MSE)": f"{float(slope) / _slope(found):.2f} ({paper[count]:.2f})",
            }
        )
    return rows


def _slope(found: Mapping[str, Any]) -> float:
    rows = found["at once"]["1"]
    return float(np.polyfit([n for n, _ in rows], [np.mean(t) for _, t in rows], 1)[0])


def power() -> Rows:
    """Figure 8: the power models that eq. 8 uses."""
    return [
        {
            "model": name,
            "idle [W]": power.idle_W,
            "increment at every length [W]": power.compute_W,
            "as a part of idle": f"{power.compute_W / power.idle_W:.0%}",
        }
        for name, power in (("CoVe", A53_COVE), ("IMDB", A53_IMDB))
    ]


def reductions(devices: Devices, panel: str, count: int) -> Rows | None:
    """Figure 10: time saved against end node and cloud at fixed round trips."""
    test = PANELS[panel]
    found = lengths(test.partition("_")[0], count)
    if found is None:
        return None
    rows: Rows = []
    for rtt_ms in RTTS_MS.get(test, _RTTS_MS):
        (one,) = run(two_levels(devices, test, fixed(rtt_ms / 1e3)), found)
        rows.append(
            {
                "curves": devices.name,
                "panel": f"{panel}, {test}",
                "round trip [ms]": rtt_ms,
                "vs end [%]": one.saved("end"),
                "vs cloud [%]": one.saved("cloud"),
                "over the oracle [%]": one.over,
            }
        )
    return rows


def energies(devices: Devices, test: str, count: int) -> Rows | None:
    """Figure 14: joules of the end node by eq. 8 and 9 saved against either device, with Figure 10's
    times.
    """
    found = lengths(test, count)
    if found is None:
        return None
    rows: Rows = []
    for rtt_ms in _RTTS_MS:
        (one,) = run(two_levels(devices, test, fixed(rtt_ms / 1e3), ENERGY), found)
        rows.append(
            {
                "curves": devices.name,
                "test": test,
                "round trip [ms]": rtt_ms,
                "vs end [%]": 100 * (1 - one.run.joules / one.alone_j["end"]),
                "vs cloud [%]": 100 * (1 - one.run.joules / one.alone_j["cloud"]),
                "over the oracle [%]": 100 * (one.run.joules / one.best.joules - 1),
                "sent [%]": 100 * float((one.run.targets > 0).mean()),
            }
        )
    return rows


def by_length(devices: Devices, count: int) -> Rows | None:
    """Figure 11: the devices of inputs by length, system B, SQuAD."""
    found = lengths("SQuAD", count)
    if found is None or not traces():
        return None
    (one,) = run(three_levels(devices, "SQuAD", by_spread(4)[0].series(BANDWIDTH_BPS)), found)
    rows: Rows = []
    for n in sorted(set(found.tolist())):
        there = np.bincount(one.run.targets[found == n], minlength=len(LEVELS))
        shares = {level: 100 * float(there[k]) / float(there.sum()) for k, level in enumerate(LEVELS)}
        rows.append({"curves": devices.name, "words": n, "inputs": int(there.sum()), **shares})
    return rows


def over_time(devices: Devices, count: int, slot_s: float = 60.0) -> dict[str, Any] | None:
    """Figure 12: system C, SNLI: shares of devices by time, ours and the oracle's, and the round trips."""
    found = lengths("SNLI", count)
    if found is None or not traces():
        return None
    first, second = (window.series(BANDWIDTH_BPS) for window in by_spread(4)[:2])
    world = three_levels(devices, "SNLI", first, second)
    (one,) = run(world, found)
    slots = (one.run.starts_s // slot_s).astype(int)
    shares: dict[str, list[list[float]]] = {"ours": [], "oracle": []}
    for slot in range(int(slots.max()) + 1):
        here = slots == slot
        for name, targets in (("ours", one.run.targets), ("oracle", one.verdict.best)):
            there = np.bincount(targets[here], minlength=len(world.devices))
            shares[name].append((100.0 * there / max(int(there.sum()), 1)).tolist())
    moments = np.arange(len(shares["ours"])) * slot_s
    links = {f"{e.below} to {e.above}": e.series for e in world.edges}
    trips = {
        name: [None if (at := series.at(float(t), 0.0)) is None else 1e3 * at.latency_s for t in moments]
        for name, series in links.items()
    }
    return {
        "curves": devices.name,
        "slot_s": slot_s,
        "devices": [device.name for device in world.devices],
        "shares": shares,
        "rtts_ms": trips,
        "loaded_from_s": float(one.run.starts_s[len(found) // 2]),
        "right": one.right,
        "over": one.over,
    }


def pings(devices: Devices, count: int, values_s: Sequence[float] = PINGS_S) -> Rows | None:
    """Figure 13: T_ping against right choices and time above the oracle, system C, SNLI; both policies."""
    found = lengths("SNLI", count)
    if found is None or not traces():
        return None
    first, second = (window.series(BANDWIDTH_BPS) for window in by_spread(4)[:2])
    world = three_levels(devices, "SNLI", first, second)
    policies = tuple(Policy(str(t), is_paper, t) for t in values_s for is_paper in (True, False))
    outcomes = dict(zip(policies, run(world, found, policies), strict=True))
    rows: Rows = []
    for t in values_s:
        plain, ours = (
            next(o for p, o in outcomes.items() if p.ping_after_s == t and p.is_paper is w)
            for w in (True, False)
        )
        rows.append(
            {
                "curves": devices.name,
                "T_ping [s]": t,
                "paper's policy: over the oracle [%]": plain.over,
                "right [%]": plain.right,
                "pings": plain.run.n_pings,
                "ours: over the oracle [%]": ours.over,
                "ours: right [%]": ours.right,
                "ours: pings": ours.run.n_pings,
            }
        )
    return rows


def speed(devices: Devices, count: int) -> Rows | None:
    """Wall time of routers and virtual clock alone: system C, SNLI; three times."""
    from time import process_time

    from research.simulate import simulate
    from research.world import draw

    found = lengths("SNLI", count)
    if found is None or not traces():
        return None
    first, second = (window.series(BANDWIDTH_BPS) for window in by_spread(4)[:2])
    world = three_levels(devices, "SNLI", first, second)
    inputs = draw(world, found, 1)
    rows: Rows = []
    for _ in range(3):
        begun_s = process_time()
        made = simulate(world, inputs, OURS.settings(inputs.max_n))
        rows.append({"inputs": count, "wall [s]": made.wall_s, "of it CPU [s]": process_time() - begun_s})
    return rows
