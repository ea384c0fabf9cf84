"""Hepti's evaluation (sections 3, 5) on emulated devices: modes, bounds, predictions, bytes, offloading.

Needs root (see testbed). Results are stored in DIR part by part, so a stopped run can be resumed; `--only`
measures some parts and uses stored results for the others.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hepti_adapt
import hepti_adapt_tables
import hepti_bytes
import hepti_compact
import hepti_faults
import hepti_modes
import hepti_never_slower
import hepti_products
import hepti_traces
from hepti_beds import check_bed
from hepti_items import items
from hepti_modes import MODELS
from hepti_rig import PAPER_SLOWER, SLOWER, TOKENS
from hepti_tables import explained, figure_claims, figure_rows, sweep_claims, sweep_rows
from report import ROOT, Report, options
from stored_runs import StoredRuns, tree

NOTES = (
    "Devices are namespaces joined by veth and shaped by `tc tbf`; each is a process (`pliant worker`, and "
    "the primary) with one compute thread, and connections are encrypted. All devices share this CPU, each "
    "on a separate core if there are two; a slower one rests after each stage in proportion to its CPU time. "
    f"The primary is {SLOWER:g} times slower than its secondary: balanced shares then mean 87.5 % offloaded, "
    f"the paper's share at 940 Mbit/s. The paper's devices differ by {PAPER_SLOWER:g} (Figure 3), at which "
    "87.5 % cannot be the fastest. Figure 6 is measured at both ratios, with the secondary alone as a row.",
    "Weights are random (seeded). BERT-Large's layers have its dimensions (hidden 1024, 16 heads, feed "
    "forward 4096), but there are fewer: 4 of 24 (2 with --quick); MobileBERT has 12 of 24 (4). Every layer "
    "of a model takes the same time, so ratios carry over; absolute times are of the layers that ran. "
    "Serial execution is the primary alone, in the same program.",
    "Prediction: the devices as `cluster.member.measure_member` profiles them in this process, the links as "
    "`measure_links` measures them between the two devices, priced by the one cost model. The times of the "
    "input and head stages are predicted, but not compared.",
    "Why the paper's gains differ: with its devices' ratio of 2.9, 7/8 of its 333 ms layer take 100 ms on "
    "the secondary; so 70, 125 and 167 of its 170, 225 and 267 ms per layer (WS, 1D, 2D) are exchange, "
    "at 16 to 34 MB/s on a link of 117. The table of layers shows how close ours come to the link's "
    "bandwidth. WS can save at most the 7/8 of serial time that it moves off the primary.",
    f"Random sets (`never_slower`): seeds from {hepti_never_slower.FIRST_SEED} on; the margin of a split was "
    "chosen on seeds 0 to 49. A plan that is the single device itself runs once for both, so its ratio is 1.",
    "2D on two devices is one group of two columns, as in pliant: attended heads are gathered, the output "
    "product is split by its columns, and the feed forward as in 1D.",
)


def main() -> None:
    opts = options(__doc__ or "", _own_options)
    check_bed()
    report = Report("hepti", f"batch 1, {TOKENS} tokens, two devices, one thread each, fp32", opts)
    for note in NOTES:
        report.note(note)
    parts = _parts(opts.quick)
    with TemporaryDirectory() as name:
        folder = Path(opts.kept or name).absolute()
        only = tuple(opts.only.split(",")) if opts.only else ()
        subjects = dict.fromkeys(part.subject for part in parts)
        unknown = sorted(set(only) - subjects.keys())
        if unknown:
            raise SystemExit(f"there are no {unknown}; known are {', '.join(subjects)}.")
        kept = StoredRuns(folder / ("rows-quick" if opts.quick else "rows"), tree(), only, opts.older)
        found: dict[str, Any] = {}
        took: list[dict[str, object]] = []
        for part in parts:
            one = kept.get(part.name, part.subject, partial(_timed, part, found))
            if one is not None:
                found[part.name] = one["found"]
                commit = kept.commit(part.name, part.subject)
                took.append(
                    {"part": part.subject, "of it": part.name, "took [s]": one["took_s"], "commit": commit}
                )
    _tables(report, found)
    if "figure 7, in turns" in found and not (opts.quick or opts.no_results):
        topology = ROOT / "docs" / "results" / "hepti-adapt.svg"
        hepti_adapt_tables.draw(found["figure 7"], found["figure 7, in turns"], topology)
        report.note(f"![Figure 7: milliseconds of every layer]({topology.name})")
    report.table("What each part takes (`--only PART`; what was measured is kept)", took)
    report.table("Paper item, script, result or miss", items(found, report.claims))
    report.finish()


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kept", metavar="DIR", help="the folder of measured parts")
    parser.add_argument("--only", help="the parts to measure, separated by commas")
    parser.add_argument(
        "--older",
        action="store_true",
        help="use stored results of other parts, of any commit",
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the evaluation that is measured at once; `run` gets the results of earlier parts."""

    subject: str
    name: str
    run: Callable[[Mapping[str, Any]], Any]


def _timed(part: _Part, found: Mapping[str, Any]) -> dict[str, Any]:
    start_s = time.monotonic()
    return {"found": part.run(found), "took_s": time.monotonic() - start_s}


def _parts(quick: bool) -> list[_Part]:
    """All parts; each takes at most some minutes."""
    n_sets, n_faults = (4, 10) if quick else (hepti_never_slower.N_SETS, hepti_faults.N_FAULTS)
    return [
        *(
            _Part(model.lower(), model, lambda _, model=model: hepti_modes.measure(model, quick))  # type: ignore[misc]
            for model in MODELS
        ),
        _Part("bytes", "bytes", lambda _: hepti_bytes.measure(quick)),
        _Part("products", "products", lambda _: hepti_products.measure(quick)),
        _Part("compact", "exchanges", lambda _: hepti_compact.measure(quick)),
        _Part("compact", "answers", lambda _: hepti_compact.measure_answers(quick)),
        *(
            _Part("adapt", name, lambda _, ratio=ratio: hepti_adapt.measure(quick, ratio))  # type: ignore[misc]
            for name, ratio in hepti_adapt_tables.FIGURES.items()
        ),
        *(
            _Part("adapt", f"{name}, in turns", partial(_in_turns, quick, name))
            for name in hepti_adapt_tables.FIGURES
        ),
        _Part("poor", "poor", lambda _: hepti_adapt.measure_poor(quick)),
        _Part("traces", "traces", lambda _: hepti_traces.measure(quick)),
        *(
            _Part("never-slower", f"sets, part {k}", partial(_sets, quick, k))
            for k in range(-(-n_sets // _SETS))
        ),
        *(
            _Part("faults", f"faults from {k}", partial(_faults, quick, k))
            for k in range(0, n_faults, _FAULTS)
        ),
    ]


_SETS, _FAULTS = 10, 40


def _sets(quick: bool, part: int, _: Mapping[str, Any]) -> Any:
    return hepti_never_slower.measure(quick, part, 4 if quick else _SETS)


def _in_turns(quick: bool, name: str, found: Mapping[str, Any]) -> Any:
    return hepti_adapt.measure_plans(found[name], quick)


def _faults(quick: bool, first: int, _: Mapping[str, Any]) -> Any:
    return hepti_faults.measure(quick, first, 10 if quick else _FAULTS)


def _tables(report: Report, found: Mapping[str, Any]) -> None:
    models = {model: found[model] for model in MODELS if model in found}
    if models:
        report.table("Figure 6: end to end, median (least to most)", figure_rows(models))
        report.table("A mean layer: predicted, measured, and its bound (ms)", explained(models))
        report.table("Predicted beside measured, over modes, splits and bandwidths", sweep_rows(models))
        report.claims += [*figure_claims(models), *sweep_claims(models)]
    if "bytes" in found:
        report.table("Table 3: bytes of one layer of BERT-Large", found["bytes"]["points"])
        report.table("Table 3: whole runs, by who counted", found["bytes"]["counted"])
        report.table("5.2: additions of one layer, and weights of 24", found["bytes"]["work"])
        report.table(
            "5.2: what the secondary saves of 87.5 % (paper: 21.6 %), by what is counted [MB]",
            found["bytes"]["memory"],
        )
        report.claims += hepti_bytes.claims(found["bytes"])
    if "products" in found:
        rows = found["products"]["rows"]
        for title, figure in (
            ("Figure 3 (a): 90 % of m rows offloaded, and none", "3a"),
            ("Figure 3 (b): 256 rows, by what is offloaded", "3b"),
        ):
            shown = [row for row in rows if row["figure"] == figure]
            report.table(title, [{k: v for k, v in row.items() if k != "figure"} for row in shown])
        report.table(
            "Figure 3 (b): the best offloading ratio", hepti_products.beside_paper(found["products"])
        )
        report.claims += hepti_products.claims(found["products"])
    if "exchanges" in found:
        report.table("Compact exchanges: BERT-Large, 87.5 % offloaded", found["exchanges"]["times"])
        report.table("Gloo beside ZeroMQ, over the same links", found["exchanges"]["engines"])
    if "answers" in found:
        report.table("Compact exchanges: the bundled classifier on SST-2's dev set", found["answers"])
    _adaptation(report, found)
    sets = _joined(found, "sets, part ")
    if sets:
        report.table(
            "Chosen plans beside the best single device: splits and single devices apart",
            hepti_never_slower.summary(sets),
        )
        report.table("Chosen plans beside the best single device", sets)
        report.claims += hepti_never_slower.claims(sets)
    faults = _joined(found, "faults from ")
    if faults:
        report.table("Faults in the middle of runs", hepti_faults.summary(faults))
        report.claims += hepti_faults.claims(faults)


def _adaptation(report: Report, found: Mapping[str, Any]) -> None:
    for name, figure, rows in hepti_adapt_tables.figures(found):
        report.table(f"Figure 7: {figure['what']}", rows)
        report.table(f"{name.capitalize()}: every layer", hepti_adapt_tables.series(figure))
        report.claims += hepti_adapt_tables.claims(figure, rows)
    if "poor" in found:
        report.table("5.3: 80 Mbit/s, beside local inference", found["poor"])
    if "traces" in found:
        report.table("Real bandwidth (Lumos5G, a sample a second), 8 layers of BERT-Large", found["traces"])


def _joined(found: Mapping[str, Any], stem: str) -> list[dict[str, Any]]:
    """The rows of all parts whose names start with `stem`."""
    return [row for name, rows in found.items() if name.startswith(stem) for row in rows]


if __name__ == "__main__":
    main()
