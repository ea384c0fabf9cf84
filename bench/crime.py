"""CRIME's evaluation in a simulator: routers under a virtual clock, against the oracle, single devices and
the paper.

    python bench/crime.py [--quick] [--kept DIR] [--workers N]

Data are read from PLIANT_DATA, traces from PLIANT_TRACES; rows with missing data are omitted. The times of
the three models on this machine are measured beforehand (`python bench/crime_measure.py DIR`; the latest
measurement counts) and stored in DIR; otherwise they are measured now.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import crime_figures as figures
import crime_tables as tables
from crime_devices import Devices, measured, reconstructed
from crime_draw import draw_by_length, draw_over_time, draw_pings, draw_reductions
from crime_inputs import pool
from crime_items import items
from crime_measure import FILE, measure
from crime_notes import notes
from crime_worlds import traces
from report import ROOT, Report, options
from stored_runs import StoredRuns, tree

BAR_S = 10.0
_SYNTHETIC = np.random.default_rng(0).lognormal(2.65, 0.42, 1000).astype(np.int64).clip(1, 64)


def main() -> None:
    opts = options(__doc__.splitlines()[0], _own_options)
    count = 3_000 if opts.quick else 100_000
    report = Report("crime", f"{count} inputs a row of a table and a point of a figure, simulated", opts)
    with TemporaryDirectory() as folder:
        times = _measured_times(Path(opts.kept or folder), opts.quick)
    snli = pool("SNLI")
    like = reconstructed(_SYNTHETIC if snli is None else snli, pool("IMDB"))
    sets = (like, measured(times, like))
    for note in notes(like, times):
        report.note(note)
    found: dict[str, Any] = {"figure 3": [figures.break_evens(one) for one in sets]}
    found["figure 6"] = figures.at_once(times)
    with TemporaryDirectory() as folder:
        rows = Path(opts.kept or folder) / ("rows-quick" if opts.quick else "rows")
        found |= _simulated(_work(sets, count), rows, opts.workers)
    for name in ("figure 10", "figure 11", "figure 13", "figure 14"):
        found[name] = [row for rows in found[name] for row in rows]
    (found["figure 12"],) = found["figure 12"] or (None,)
    found["speed"] = figures.speed(like, count) or []
    _print(report, found)
    _claims(report, found)
    if not (opts.quick or opts.no_results):
        _draw(report, found)
    report.table("Paper item, script, result or miss", items(found))
    report.finish()


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kept", metavar="DIR", help="the folder of this machine's measured times")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that simulate")


def _measured_times(folder: Path, quick: bool) -> dict[str, Any]:
    """Measured times are reused across commits: they depend on the kernels, not on the simulator."""
    path = folder / FILE
    if path.exists():
        return dict(json.loads(path.read_text()))
    return dict(json.loads(json.dumps(measure(quick))))


def _simulated(
    work: Mapping[str, Sequence[Callable[[], Any]]], folder: Path, workers: int
) -> dict[str, list[Any]]:
    """Each part's results, without parts that lack data; earlier results of this source tree are cached in
    `folder`.
    """
    now, before = StoredRuns(folder, tree()), StoredRuns(folder, tree(), ("none",))
    found: dict[str, list[Any]] = {}
    with ProcessPoolExecutor(max(workers, 1)) as processes:
        waiting = {
            processes.submit(run): (part, str(i))
            for part, runs in work.items()
            for i, run in enumerate(runs)
            if before.get(part, str(i), dict) is None
        }
        for future in as_completed(waiting):
            now.get(*waiting[future], future.result)
    for part, runs in work.items():
        results = [before.get(part, str(i), dict) for i in range(len(runs))]
        found[part] = [result for result in results if result is not None]
    return found


def _work(sets: tuple[Devices, ...], count: int) -> dict[str, list[Callable[[], Any]]]:
    """The simulations of each part."""
    like = sets[0]
    return {
        "tables": [
            partial(tables.row, devices, system, test, count)
            for devices in sets
            for system in ("artificial", "RIPE Atlas", "B", "C")
            for test in tables.TESTS
        ],
        "figure 10": [partial(figures.reductions, d, panel, count) for d in sets for panel in figures.PANELS],
        "figure 11": [partial(figures.by_length, devices, count) for devices in sets],
        "figure 12": [partial(figures.over_time, like, count)],
        "figure 13": [partial(figures.pings, like, count, (t,)) for t in figures.PINGS_S],
        "figure 14": [partial(figures.energies, d, test, count) for d in sets for test in ("SNLI", "SQuAD")],
        "series": [partial(tables.series_row, like, k, count) for k in range(len(traces()))],
    }


def _print(report: Report, found: dict[str, Any]) -> None:
    report.table(
        "Figure 3: lines, round trips and break-evens", [r for rows in found["figure 3"] for r in rows]
    )
    report.table("Figure 6: inferences at once on this machine, CoVe-300", found["figure 6"])
    report.table("Figure 8: power models, the paper's watts", figures.power())
    for title, systems in (
        ("Table 1: a varying link, system A", ("artificial", "RIPE Atlas")),
        ("Table 2: three levels (B)", ("B",)),
        ("Table 2: three levels and two clouds, a load from half-time on (C)", ("C",)),
    ):
        kept = [tables.shown(row) for row in found["tables"] if row["system"] in systems]
        report.table(f"{title}; ours (paper)", kept)
    report.table(
        "All RIPE Atlas series, each one's widest 3 hours; system A, SNLI, reconstructed",
        _series(found["series"]),
    )
    report.table("Figure 10: saved at fixed round trips, system A", _rounded(found["figure 10"]))
    report.table(
        "Figure 11: where inputs of each length go, %, system B, SQuAD", _rounded(found["figure 11"])
    )
    report.table("Figure 13: T_ping, system C, SNLI", _rounded(found["figure 13"]))
    report.table("Figure 14: joules saved at fixed round trips, system A", _rounded(found["figure 14"]))
    report.table("Routers and virtual clock, system C, SNLI", _rounded(found["speed"]))


def _series(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Quantiles over the series, ours and the paper's policy."""
    shown: list[dict[str, object]] = []
    for name, key in (
        ("ours", "over"),
        ("ours, at its own moments", "over own"),
        ("paper's policy", "plain over"),
    ):
        if rows:
            values = sorted(row[key] for row in rows)
            worst = max(rows, key=lambda row: row[key])
            cells = {f"{q:g} %": float(np.quantile(values, q / 100)) for q in (0, 25, 50, 75, 90, 100)}
            about = f"{worst['series']}: {worst['spread_ms']:.0f} ms wide, {worst['lost_probes']} lost"
            shown.append({"over the oracle [%]": name, "series": len(rows), **cells, "the worst": about})
    return _rounded(shown)


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    return [
        {k: f"{v:.2f}" if isinstance(v, float) and k != "T_ping [s]" else v for k, v in r.items()}
        for r in rows
    ]


def _claims(report: Report, found: dict[str, Any]) -> None:
    rows = found["tables"]
    if rows:
        short = [f"{r['curves']} {r['system']} {r['test']}" for r in rows if not tables.holds(r)]
        worst = max(max(row["over"], row["over own"]) for row in rows)
        lost = [
            f"{r['curves']} {r['system']} {r['test']} against {name}"
            for r in rows
            for name, saved in r["saved"].items()
            if saved <= 0.0 and r["oracle saves"][name] > 1.0
        ]
        report.claim(
            "crime.oracle",
            worst,
            "% over the oracle, <= 1.0 in every row of Tables 1 and 2, both against a run of its own and at "
            "this run's moments; below each device that the oracle beats by more than 1 %",
            not short,
            f"{len(rows)} rows; "
            + (f"missed in {', '.join(short)}" if short else "none is above")
            + (f"; not below: {', '.join(lost)}" if lost else "; below every such device"),
        )
    if found["speed"]:
        middle = median(row["wall [s]"] for row in found["speed"])
        report.claim(
            "crime.simulator",
            middle,
            f"{found['speed'][0]['inputs']} inputs through C in < {BAR_S:g} s",
            middle < BAR_S,
            "median of three",
        )


def _draw(report: Report, found: dict[str, Any]) -> None:
    folder = ROOT / "docs" / "results"
    pictures: list[tuple[str, str, Callable[[Path], None]]] = [
        ("Figure 10", "crime-reductions", lambda p: draw_reductions(found["figure 10"], p, "panel")),
        ("Figure 11", "crime-lengths", lambda p: draw_by_length(found["figure 11"], p)),
        ("Figure 13", "crime-pings", lambda p: draw_pings(found["figure 13"], p)),
        ("Figure 14", "crime-energy", lambda p: draw_reductions(found["figure 14"], p, "test")),
    ]
    if found["figure 12"]:
        pictures.append(("Figure 12", "crime-time", lambda p: draw_over_time(found["figure 12"], p)))
    for title, name, draw in pictures:
        draw(folder / f"{name}.svg")
        report.note(f"![{title}]({name}.svg)")


if __name__ == "__main__":
    main()
