"""Requests with deadlines over three endpoints: a local session, a cluster of neighbours, a gateway, in
changing worlds.

[slo.attainment] the fraction of requests in time and at their accuracy floor, against each endpoint alone and
an oracle. [slo.ablation] the benefit of each part of the router. [slo.stable] the endpoints' shares of
answers under steady load. [slo.faults] an hour with failures of all endpoints. [slo.overhead] the cost of a
choice and of a hop (slo_overhead.py), which needs no testbed.

Worlds and seeds are files in bench/worlds, committed before the router was tuned: see there for the
arithmetic. Real processes on emulated devices (slo_rig.py), links by RIPE Atlas and Lumos5G series. `--seeds`
selects tuning seeds, each in every world; the part held_out runs the 20 held-out ones, each in one world, in
turn. `--at-once N` runs N jobs concurrently, on separate devices. `--keep DIR` resumes a stopped run.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import checkout  # noqa: F401 - research and testbed lie there
from report import ROOT, Report, options
from research.deadline_oracle import Decision, attained_share, bound, decide_with_hindsight, quickest
from research.deadline_world import Scenario, read_seeds
from slo_ablation import ablation
from slo_faults import faults
from slo_lab import FOLDER, Lab, jobs_of, open_lab, scenario_of, shortened
from slo_overhead import overhead
from slo_records import Record, shares, unused_share
from slo_stable import stable
from slo_ways import ROUTED, SINGLES

WORLDS = ("commuter", "office", "rush", "crowd", "neighbours", "drift")
KEPT, SINGLE, POINT, QUICKER = 0.95, 0.80, 0.01, 0.80
_QUICK_S = 6.0
_OVERHEAD = "overhead"


def attainment(report: Report, lab: Lab, scenarios: Sequence[Scenario], seeds: str) -> None:
    """[slo.attainment]: tables by world and seed, and the verdict for each routed way."""
    ways = (*SINGLES, *ROUTED)
    lab.fill(jobs_of(ways, scenarios))
    rows: list[dict[str, Any]] = []
    details: list[dict[str, Any]] = []
    verdicts: dict[str, list[Verdict]] = {way: [] for way in ROUTED}
    for scenario in scenarios:
        known = lab.known(scenario)
        whole = known.levels[-1].accuracy
        found = {way: lab.run(way, scenario)[0] for way in ways}
        best, most = decide_with_hindsight(scenario, known), bound(scenario, known)
        where = {"world": scenario.world, "seed": scenario.seed}
        for way, records in found.items():
            details.append(where | {"way": way} | _details(records, whole, best))
        singles = [found[way] for way in SINGLES]
        quickest_s = min(median_s(each, whole) for each in singles)
        of = {way: _verdict(found[way], singles, quickest_s, whole, best) for way in ROUTED}
        for way, verdict in of.items():
            verdicts[way].append(verdict)
        rows.append(
            where
            | {"requests": len(scenario.requests)}
            | {f"{way} [%]": 100 * _share(records, whole) for way, records in found.items()}
            | {"oracle [%]": 100 * attained_share(best), "bound [%]": 100 * attained_share(most)}
            | {f"{way}, of the best single way's time": verdict.time for way, verdict in of.items()}
            | {
                f"{name}, of that time": median(d.seconds for d in decisions) / quickest_s
                for name, decisions in (("oracle", best), ("no queue", quickest(scenario, known)))
            }
        )
    report.table(f"In time and at their floor, by world, {seeds} seeds", rows)
    report.table(f"Accuracy, time and shares of endpoints, by world, {seeds} seeds", details)
    for way, judged in verdicts.items():
        claim_attainment(report, f"{seeds} seeds, {way}", judged)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one scenario: attainment, that of the best single way, points to the oracle, time
    relative to the best single way's.
    """

    attained: float
    single: float
    points: float
    time: float


def _verdict(
    records: Sequence[Record],
    singles: Sequence[Sequence[Record]],
    quickest_s: float,
    whole: float,
    best: Sequence[Decision],
) -> Verdict:
    return Verdict(
        _share(records, whole),
        max(_share(each, whole) for each in singles),
        points_to_oracle(records, whole, best),
        median_s(records, whole) / quickest_s,
    )


def claim_attainment(report: Report, way: str, judged: Sequence[Verdict]) -> None:
    """The worst row of each figure, over worlds in which every single way alone stays below the bar."""
    counted = [v for v in judged if v.single < SINGLE]
    if not counted:
        report.claim("slo.attainment", "no world counts", "a world without a good single way", False)
        return
    least, points = min(v.attained for v in counted), min(v.points for v in counted)
    slowest = max(v.time for v in counted)
    report.claim(
        "slo.attainment",
        f"{100 * least:.1f} %, {100 * points:+.2f} points to the oracle, {slowest:.2f} of the time",
        f"{100 * KEPT:g} % where each single way stays below {100 * SINGLE:g} %, within {100 * POINT:g} "
        f"point of the oracle, median time at most {QUICKER:g} of the best single way's",
        least >= KEPT and points >= -POINT and slowest <= QUICKER,
        f"{way}; the worst of {len(counted)} runs, {len(judged) - len(counted)} left out where a single way "
        f"attains more; on average {100 * mean(v.attained for v in counted):.1f} %",
    )


def _share(records: Sequence[Record], whole: float) -> float:
    return mean(r.attained(whole) for r in records)


def median_s(records: Sequence[Record], whole: float) -> float:
    """The median over all requests; requests that are not attained count as infinite."""
    return median(r.seconds if r.attained(whole) else float("inf") for r in records)


def points_to_oracle(records: Sequence[Record], whole: float, best: Sequence[Decision]) -> float:
    """Mean accuracy above the oracle's, over requests that both attain."""
    gaps = [
        (whole if r.accuracy is None else r.accuracy) - decision.accuracy
        for r, decision in zip(records, best, strict=True)
        if r.attained(whole) and decision.way is not None
    ]
    return mean(gaps) if gaps else float("nan")


def _details(records: Sequence[Record], whole: float, best: Sequence[Decision]) -> dict[str, Any]:
    answered = [r for r in records if r.label is not None]
    seconds = [r.seconds for r in answered]
    return {
        "answered": len(answered),
        "late": sum(not r.in_time for r in answered),
        "refused": len(records) - len(answered),
        "median ms": 1e3 * median(seconds) if seconds else "",
        "accuracy expected": mean(whole if r.accuracy is None else r.accuracy for r in answered)
        if answered
        else "",
        "points to the oracle": 100 * points_to_oracle(records, whole, best),
        "right [%]": 100 * mean(r.label == r.right for r in answered) if answered else "",
        "by": ", ".join(f"{name} {100 * part:.0f} %" for name, part in shares(records).items()),
        "unused hedges [% of computing]": 100 * unused_share(records),
    }


def main() -> None:
    told = options(__doc__ or "", _more)
    seeds = read_seeds(FOLDER / "seeds.toml")
    chosen = tuple(int(seed) for seed in told.seeds.split(",")) if told.seeds else seeds.tuning
    worlds = tuple(told.worlds.split(",")) if told.worlds else WORLDS
    part_s = _QUICK_S if told.quick else told.seconds

    def made(names: Sequence[str], seeds: Sequence[int]) -> list[Scenario]:
        return cut([scenario_of(name, seed) for seed in seeds for name in names])

    def cut(found: list[Scenario]) -> list[Scenario]:
        return found if part_s is None else [shortened(one, part_s * one.speed) for one in found]

    scenarios = made(worlds[:1], chosen[:1]) if told.quick else made(worlds, chosen)
    others = cut([scenario_of(worlds[i % len(worlds)], seed) for i, seed in enumerate(seeds.held_out)])
    workload = f"sst2 on one thread of each device, {len(scenarios)} scenarios of SST-2's sentences"
    report = Report("slo", workload, told)
    is_drawn = not (told.quick or told.no_results)
    picture = ROOT / "docs" / "results" / "slo-ablation.svg" if is_drawn else None
    parts: Mapping[str, Callable[[Lab], None]] = {
        "attainment": lambda lab: attainment(report, lab, scenarios, "tuning"),
        "held_out": lambda lab: attainment(report, lab, others, "held-out"),
        "stable": lambda lab: stable(report, lab, made(["steady"], seeds.tuning)),
        "ablation": lambda lab: ablation(report, lab, scenarios, picture),
        "faults": lambda lab: faults(report, lab, made(["hour"], chosen[:1])),
    }
    every = [_OVERHEAD, *parts]
    wanted = told.parts.split(",") if told.parts else [_OVERHEAD, "attainment"] if told.quick else every
    if _OVERHEAD in wanted:
        overhead(report, told.quick)
        wanted.remove(_OVERHEAD)
    if wanted:
        with TemporaryDirectory() as name, open_lab(told.keep or Path(name), told.old, told.at_once) as lab:
            for part in wanted:
                parts[part](lab)
    report.finish()


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--worlds", help=f"of {', '.join(WORLDS)}; all of them by default")
    parser.add_argument("--seeds", help="instead of the tuning seeds")
    parser.add_argument("--seconds", type=float, help="the first so many of each world alone, by the clock")
    parser.add_argument(
        "--parts", help="of overhead, attainment, held_out, stable, ablation, faults; all of them by default"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="jobs that run concurrently")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="store runs there, to resume a stopped bench"
    )
    parser.add_argument("--old", action="store_true", help="also use runs of other source trees")


if __name__ == "__main__":
    main()
