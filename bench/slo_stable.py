"""[slo.stable] The endpoints' shares of answers under steady load, window by window."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from report import Report
from research.deadline_world import Scenario
from slo_lab import Lab, jobs_of
from slo_records import Record, shares
from slo_rig import play_closed
from slo_ways import ROUTED

CLIENTS = (8, 32)
SETTLED_S, WINDOW_S = 60.0, 15.0
MOST_SWING = 0.10
_MOST_AT_ONCE = 2
"""The most ways that run concurrently: devices under load compute more of the time."""


def stable(report: Report, lab: Lab, scenarios: Sequence[Scenario]) -> None:
    """One row for each routed way, number of clients and seed; the claim uses the worst of them."""
    rows: list[dict[str, Any]] = []
    players = {n: (partial(play_closed, n_clients=n), f"-{n}-clients") for n in CLIENTS}
    for way in ROUTED:
        worst = 0.0
        jobs = [job for scenario in scenarios for job in jobs_of([way], [scenario])]
        loads = [replace(job, player=player, more=more) for player, more in players.values() for job in jobs]
        lab.fill(loads, _MOST_AT_ONCE)
        for n_clients, how in players.items():
            for scenario in scenarios:
                records, _ = lab.run(way, scenario, *how)
                whole = lab.known(scenario).levels[-1].accuracy
                worst = max(worst, swing(records, SETTLED_S, WINDOW_S))
                rows.append({"way": way, "clients": n_clients, "seed": scenario.seed} | _row(records, whole))
        report.claim(
            "slo.stable",
            f"{100 * worst:.1f} points",
            f"no share changes by more than {100 * MOST_SWING:g} points between windows of {WINDOW_S:g} s "
            f"after {SETTLED_S:g} s",
            worst <= MOST_SWING,
            f"{way}; the worst of {len(CLIENTS) * len(scenarios)} runs",
        )
    report.table("Steady load: shares of endpoints", rows)


def swing(records: Sequence[Record], settled_s: float, window_s: float) -> float:
    """The largest difference of an endpoint's share of answers between two windows.

    Windows are consecutive from `settled_s` on; an incomplete last one is omitted.
    """
    end_s = max((r.at_s for r in records), default=0.0)
    windows = []
    first_s = settled_s
    while first_s + window_s <= end_s + 1.0:
        windows.append(shares([r for r in records if first_s <= r.at_s < first_s + window_s]))
        first_s += window_s
    names = {name for window in windows for name in window}
    by_name = [[window.get(name, 0.0) for window in windows] for name in names]
    return max((max(values) - min(values) for values in by_name), default=0.0)


def _row(records: Sequence[Record], whole: float) -> dict[str, Any]:
    settled = [r for r in records if r.at_s >= SETTLED_S]
    took_s = max(r.at_s for r in settled) - SETTLED_S
    return {
        "answers/s": len(settled) / took_s,
        "attained [%]": 100 * sum(r.attained(whole) for r in settled) / len(settled),
        "by": ", ".join(f"{name} {100 * part:.0f} %" for name, part in shares(settled).items()),
        "largest change [points]": 100 * swing(records, SETTLED_S, WINDOW_S),
    }
