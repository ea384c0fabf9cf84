"""FluidML's evaluation (section 5): schedules, operators, votes against the optimum, memory, allocations.

Models are built from transformers' configs and torch with random weights and a fixed seed. Results are stored
in DIR part by part, so a stopped run can be resumed; `--only` measures some models and uses stored results
for the others; `--prepare` first builds the peers' files. TVM is measured if it is installed (`pip install
apache-tvm`).
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import fluidml_allocations
import fluidml_arena
import fluidml_operators
import fluidml_planning
import fluidml_runtimes
import fluidml_schedules
import fluidml_votes
from fluidml_items import items
from fluidml_models import Subject, subjects
from report import Report, options
from runtimes import THREADS
from serving import fresh
from stored_runs import StoredRuns, tree

QUICK_WITHOUT = ("torch", "torch compiled", "tvm")
COUNTED = ("onnxruntime", "openvino", "torch")

NOTES = (
    "`none` is FluidML's unoptimised version: default (row-major) layouts, and every MatMul, Gemm and Conv "
    "in loops i-j-k from the same generator, with its fusable operators (bias, residual, activation) as "
    "separate element-wise maps. The rest equals the other schedules: the same passes, the same fused "
    "attention, norms, poolings and maps; `paper` and `exact` have no pass that `none` lacks except "
    "Winograd's form of a convolution, which is one of their candidate forms. The loops are scalar: a float "
    "sum must not be reassociated, and consecutive k of the right operand are a row apart, so neither LLVM "
    "nor `cc -O3` (table below) can vectorise.",
    "The paper's optimised BERT runs in 1/7 of its unoptimised time (4.8 and 34.2 s on its AMD machine): it "
    "reorders loops and layouts, and has no register tiles. Ours uses tiles and packed weights in every "
    "schedule except `none`, so `none` is slower relative to the others here. The table of operators shows "
    "the effect of reordering alone as `best plain order`.",
)


def main() -> None:
    opts = options(__doc__ or "", _own_options)
    report = Report("fluidml", f"batch 1, 128 tokens or one 224 x 224 image, {THREADS} threads, fp32", opts)
    for note in NOTES:
        report.note(note)
    with TemporaryDirectory() as name:
        folder = Path(opts.models or name).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        only = tuple(opts.only.split(",")) if opts.only else ()
        kept = StoredRuns(folder / ("rows-quick" if opts.quick else "rows"), tree(), only)
        models = subjects(folder, (), opts.quick)
        unknown = sorted(set(only) - {m.name for m in models} - {"votes", "loops", "drawn"})
        if unknown:
            raise SystemExit(f"there are no {unknown}; known are {', '.join(m.name for m in models)}.")
        if opts.prepare:
            for model in models:
                fluidml_runtimes.prepare(model, folder)
            return
        parts = {m.name: found for m in models if (found := _measured(m, kept, folder, opts.quick))}
        n_drawn, n_shapes = (100, 1) if opts.quick else (1000, 3)
        votes = kept.get("votes", "votes", lambda: fluidml_votes.measure(_cache(folder), n_drawn))
        loops = kept.get("loops", "loops", lambda: fluidml_operators.plain_loops(_cache(folder), n_shapes))
        drawn = kept.get("drawn", "drawn", lambda: [fluidml_arena.drawn(n_drawn // 20)])
    _tables(report, parts, votes or [], loops or [], drawn or [])
    report.finish()


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", metavar="DIR", help="the folder of models and measured parts")
    parser.add_argument("--prepare", action="store_true", help="only build the files of peers in DIR")
    parser.add_argument("--only", help="the models (or votes, loops) to measure, separated by commas")


def _cache(folder: Path) -> Path:
    """A separate cache of kernels and costs, so that no times measured elsewhere, under another load, are
    used.
    """
    return folder / "cache"


def _measured(model: Subject, kept: StoredRuns, folder: Path, is_quick: bool) -> dict[str, Any]:
    """Every part of a model that is stored or may be measured; empty if one is missing."""
    cache = _cache(folder)
    rounds, runs = (3, 3) if is_quick else (9, 10)
    skipped = QUICK_WITHOUT if is_quick else ()
    peers = tuple(x for x in COUNTED if x not in skipped)

    def schedules() -> object:
        return fluidml_schedules.measure(model, cache, 3 * rounds)

    found: dict[str, Any] = {"schedules": kept.get("schedules", model.name, schedules)}
    if found["schedules"] is None:
        return {}
    same = found["schedules"]["same as"]

    def allocations() -> object:
        image = fluidml_schedules.plan(model, "static", cache).image
        expected = np.load(fluidml_runtimes.expected_file(model))
        return fluidml_allocations.measure(model, image, expected, runs, peers)

    def arena() -> object:
        return fluidml_arena.measure(model.name, fluidml_schedules.plan(model, "static", cache).image)

    def memory() -> object:
        runtimes = fluidml_runtimes.measure(model, same, cache, folder, rounds, skipped)
        bare = fresh("nothing", model.file, model.feeds).peak_mb
        return runtimes | {"row": fluidml_runtimes.memory_row(model, runtimes, bare)}

    for part, measure in (
        ("runtimes", memory),
        ("operators", lambda: fluidml_operators.measure(model, cache)),
        ("allocations", allocations),
        ("arena", arena),
        ("repeat", lambda: fluidml_schedules.repeat(model, cache)),
        ("planning", lambda: fluidml_planning.measure(model)),
    ):
        if part != "planning" or model.name.startswith("BERT"):
            found[part] = kept.get(part, model.name, measure)
    return found if all(part is not None for part in found.values()) else {}


def _tables(
    report: Report,
    parts: Mapping[str, dict[str, Any]],
    votes: Sequence[dict[str, object]],
    loops: Sequence[dict[str, object]],
    drawn: Sequence[dict[str, object]],
) -> None:
    wall = {name: fluidml_runtimes.wall(p["runtimes"]) for name, p in parts.items()}
    same = {name: p["schedules"]["same as"] for name, p in parts.items()}
    latency = [fluidml_runtimes.latency_row(n, p["runtimes"], same[n]) for n, p in parts.items()]
    ratios = [row for n, p in parts.items() for row in fluidml_runtimes.ratio_rows(n, p["runtimes"])]
    compared = [r for n, p in parts.items() for r in fluidml_schedules.comparison(n, p["schedules"], wall[n])]
    chosen = [row for n, p in parts.items() for row in fluidml_schedules.rows(n, p["schedules"], wall[n])]
    operators = [row for p in parts.values() for row in p["operators"]]
    alone = [r for n, p in parts.items() for r in fluidml_schedules.median_rows(n, p["schedules"])]
    kinds = ("allocations", "arena", "repeat", "planning")
    each = {part: [p[part] for p in parts.values() if part in p] for part in kinds}
    memory = [p["runtimes"]["row"] for p in parts.values()]
    for row, found in zip(each["allocations"], parts.values(), strict=True):
        start = found["runtimes"]["starts"].get("tvm", {})
        row["tvm in Python, first run"] = start.get("allocations") or "-"
    report.table("Table 2: medians of runs in turns (`none` and slow peers: one run)", latency)
    report.table(
        "Table 2, Figures 5 to 7: beside onnxruntime (median of paired ratios, 95 % interval)", ratios
    )
    report.table("Schedules compared: medians of paired ratios, 95 % intervals", compared)
    report.table("Schedules on one thread: median processor time", alone)
    report.table("What schedules chose from, predicted beside measured", chosen)
    report.table("The cost table measured twice: how much of a promise is noise", each["repeat"])
    report.table("Planning", each["planning"])
    report.table("Figures 8 to 10 and 13: operators, each measured alone on one thread", operators)
    report.table("Plain loops beside the C compiler's", loops)
    report.table("Figure 11, Table 3: votes against all assignments", votes)
    report.table("Table 4: peak resident memory of fresh processes at the first answer [MB]", memory)
    report.table("Table 5: calls that ask for memory", each["allocations"])
    report.table("Figure 3, Algorithm 4: the arena", [*each["arena"], *drawn])
    _claims(report, compared, each["planning"])
    report.table("Paper item, script, result or miss", items(latency, ratios, votes, memory, each))


def _claims(
    report: Report, compared: Sequence[dict[str, object]], planning: Sequence[dict[str, Any]]
) -> None:
    for model in dict.fromkeys(str(row["model"]) for row in compared):
        rows = [r for r in compared if r["model"] == model and r["ratio"] in fluidml_schedules.CLAIMED]
        said = "; ".join(
            f"{r['ratio']} {'identical' if r['programs'] == 'identical' else r['wall']}" for r in rows
        )
        report.claim(
            "compile.schedule",
            said,
            "exact never above paper never above none",
            all(row["above 1"] == "no" for row in rows),
            f"{model}; above: a 95 % interval above 1, of wall time or of one thread's processor time",
        )
    for row in planning:
        if row["model"] != "BERT":
            continue
        cold = max(row["paper, cold [s]"], row["exact, cold [s]"])
        warm = max(row["paper, warm [s]"], row["exact, warm [s]"])
        holds = cold < fluidml_planning.COLD_S and warm < fluidml_planning.WARM_S
        report.claim(
            "compile.planning",
            f"{cold:.1f} s cold, {warm:.2f} s warm",
            "12-layer BERT under 60 s cold, under 1 s with a warm cost table",
            holds,
            "the slower of paper and exact; cold compiles every kernel and measures every form",
        )


if __name__ == "__main__":
    main()
