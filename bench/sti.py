"""The evaluation of STI (section 7): accuracy, memory, latency and submodels of all its systems.

Device: this machine, slowed (`sti_device.emulate`) to two presets. Latency, bytes and memory: cold runs of
sessions in separate processes, on texts of exactly the planned length. Accuracy: the whole dev set at the
bits that ran, on the same kernels. docs/results/sti.md explains the tables.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import checkout  # noqa: F401 - research lies there
from pliant.elastic.evaluate.accuracy_grid import measure_grid
from pliant.elastic.importance import ablate, first_order
from pliant.ir.cost import TOKENISE
from pliant.models.examples import read_examples
from pliant.plan.submodel.accuracy import expected_grid
from pliant.plan.submodel.prices import layer_seconds
from pliant.plan.submodel.shape import store_shape
from pliant.profile.measure_device import measure_device
from pliant.settings import cache_folder, thread_count
from report import ROOT, Report, options
from research.importance_tables import draw_importance, importance_text, rank_correlation
from sti_cell import undisturbed
from sti_device import emulate
from sti_figures import draw_accuracy_against_memory
from sti_parts import anytime, paper_throughout, quantizers, sweep, table7
from sti_plans import Size, cells
from sti_promise import promise
from sti_rig import PRESETS, Device, Rig, labelled, majority_words, picked
from sti_tables import accuracy_claim, main_table, measure, memory_claim, speed_claims
from tasks import TASKS, find_task


def main() -> None:
    arguments = options(__doc__.splitlines()[0], _extra)
    size = (
        Size(60, 4, 40, 6, 1, 1, is_quick=True)
        if arguments.quick
        else Size(None, arguments.ablate, arguments.grid, 100, 3, 3, is_quick=False)
    )
    with tempfile.TemporaryDirectory(prefix=".sti-", dir=cache_folder()) as scratch:
        _evaluate(arguments, size, Path(scratch))


def _extra(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=TASKS, default="sst2")
    parser.add_argument(
        "--model", type=Path, help="a stretched model's directory (default: the shipped sst2)"
    )
    parser.add_argument(
        "--gold", type=float, help="the unstretched model's accuracy on the dev set, in per cent"
    )
    parser.add_argument(
        "--only-promise", action="store_true", help="measure [sti.promise] alone, as a page of its own"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--length", type=int, default=128, help="the length in tokens for planning and timing"
    )
    parser.add_argument("--minutes", type=float, default=90, help="start no further part after these minutes")
    parser.add_argument("--ablate", type=int, default=192, help="examples of the ablation")
    parser.add_argument("--grid", type=int, default=500, help="examples of the accuracy grid")


def _evaluate(arguments: argparse.Namespace, size: Size, scratch: Path) -> None:
    began_s = time.perf_counter()
    model = arguments.model or ROOT / "src" / "pliant" / "models" / "assets" / arguments.task
    if not model.is_dir():
        raise SystemExit(
            f"no model of {arguments.task} ships with pliant: give --model DIR (docs/results/sti.md)."
        )
    data = Path(os.environ.get("PLIANT_DATA") or ROOT.parent / "shared" / "data")
    task = find_task(arguments.task, data, scratch)
    rig = Rig(model, task.dev, scratch, cache_folder(), arguments.threads, arguments.length, size.n_dev)
    # The promise runs with all available threads, the other parts with the given number.
    n_threads = thread_count(None) if arguments.only_promise else arguments.threads
    try:
        report = Report(
            "sti-promise" if arguments.only_promise else f"sti-{arguments.task}",
            f"{arguments.task}, {len(rig.dev)} dev examples, {rig.spec.n_layers}x{rig.spec.n_heads}, "
            f"{arguments.length} tokens, {n_threads} thread(s), reads "
            + ("past the page cache (O_DIRECT)" if rig.store.is_direct else "NOT cold: no O_DIRECT here"),
            arguments,
        )
        if arguments.only_promise:
            promise(report, rig, model, task.dev, 436 if size.is_quick else None)
            report.finish()
            return
        importance = _importance(report, rig, task.held_out, size, arguments)
        _grid(report, rig, task.held_out, size)
        devices = tuple(_devices(report, rig, size))
        table = importance["accuracy"]
        planned = [c for device in devices for c in cells(rig, device, table, size)]
        found = measure(rig, planned, size)
        main_table(report, rig, found, size, task.has_f1, arguments.gold)
        accuracy_claim(report, rig, found)
        memory_claim(report, rig, found)
        speed_claims(report, found)
        if not (arguments.quick or arguments.no_results):
            picture = ROOT / "docs" / "results" / f"memory-{arguments.task}.svg"
            draw_accuracy_against_memory(rig, found, picture)
        print(f"{time.perf_counter() - began_s:.0f} s so far", flush=True)
        parts: tuple[Callable[[], None], ...] = (
            lambda: promise(report, rig, model, task.dev, 436 if size.is_quick else None),
            lambda: anytime(report, rig, devices, table, size),
            lambda: quantizers(report, rig, size),
            lambda: table7(report, rig, importance, size),
            lambda: paper_throughout(report, rig, devices, table),
            lambda: sweep(report, rig, devices[0], table),
        )
        for number, part in enumerate(parts[:4] if size.is_quick else parts):
            if time.perf_counter() - began_s > 60 * arguments.minutes:
                report.note(
                    f"Parts from number {number + 2} on were left out: --minutes {arguments.minutes}."
                )
                break
            part()
        report.note(f"The whole run took {time.perf_counter() - began_s:.0f} s.")
        report.finish()
    finally:
        rig.close()


def _importance(
    report: Report, rig: Rig, held_out: Path, size: Size, arguments: argparse.Namespace
) -> dict[str, np.ndarray]:
    """Figure 5: the ablation on held-out examples, and its first-order estimate."""
    examples = picked(read_examples(held_out, rig.spec.head.labels or ()), size.n_ablate)
    some = labelled(rig.tokenizer, examples, rig.spec.max_tokens)
    start_s = time.perf_counter()
    ablation = ablate(rig.engines["lloyd"], some)
    ablated_s = time.perf_counter() - start_s
    gradient = first_order(rig.engines["lloyd"].store, some)
    gradient_s = time.perf_counter() - start_s - ablated_s
    rows = [
        {
            "compared with the ablation's likelihood": name,
            "Spearman": rank_correlation(ablation.log_likelihood, x),
        }
        for name, x in (("ablation, accuracy", ablation.accuracy), ("first-order score", gradient))
    ]
    rows[0]["seconds"], rows[1]["seconds"] = ablated_s, gradient_s
    most = majority_words(np.array([e.label for e in some]))
    report.table(f"Importance (Figure 5): {len(some)} examples of {held_out.name} ({most})", rows)
    print(importance_text(ablation.importance))
    report.note(
        "Importance (0 least, 9 most; rows layers, columns slices), by accuracy, ties by likelihood:"
        f"\n\n```\n{importance_text(ablation.importance)}```\n\nand by likelihood alone:"
        f"\n\n```\n{importance_text(ablation.log_likelihood)}```\n\n"
        f"All shards at 2 bits: {100 * ablation.floor_accuracy:.1f} % of the {len(some)} examples."
    )
    if not arguments.quick and not arguments.no_results:
        folder = ROOT / "docs" / "results"
        folder.mkdir(parents=True, exist_ok=True)
        draw_importance(
            ablation.importance, folder / f"importance-{arguments.task}.svg", f"importance, {arguments.task}"
        )
    return {"accuracy": ablation.importance, "likelihood": ablation.log_likelihood, "gradient": gradient}


def _grid(report: Report, rig: Rig, held_out: Path, size: Size) -> None:
    """The accuracy of every submodel on held-out examples, by which our plans choose submodels."""
    examples = picked(read_examples(held_out, rig.spec.head.labels or ()), size.n_grid)
    some = labelled(rig.tokenizer, examples, rig.spec.max_tokens)
    start_s = time.perf_counter()
    rig.grid = expected_grid(measure_grid(rig.engines["lloyd"], some))
    took_s = time.perf_counter() - start_s
    rows = [
        {"n": n}
        | {
            f"m = {m}": f"{100 * rig.grid[n, m, 2]:.1f}, {100 * rig.grid[n, m, 32]:.1f}"
            for m in rig.spec.widths
        }
        for n in range(1, rig.spec.n_layers + 1)
    ]
    most = majority_words(np.array([e.label for e in some]))
    report.table(
        f"Expected accuracy at 2 bits and in full, {len(some)} examples of {held_out.name} ({most}; "
        f"{took_s:.0f} s)",
        rows,
    )


def _devices(report: Report, rig: Rig, size: Size) -> Iterator[Device]:
    """The presets, each dilated from one profile of this machine."""
    shape = store_shape(rig.spec)
    with undisturbed() as is_granted:
        profile = measure_device(
            rig.engines["lloyd"],
            n_threads=rig.n_threads,
            lengths=(rig.length,),
            seconds=2 if size.is_quick else 10,
        )
    report.note("Timed runs " + ("had real-time priority." if is_granted else "shared their priority."))
    rows = []
    for preset in PRESETS[:1] if size.is_quick else PRESETS:
        layer_bytes = shape.full_bytes * shape.n_slices
        device = emulate(rig, profile, preset, 2 if size.is_quick else 5)
        rows += [
            {
                "device": preset.name,
                "m": m,
                "layer, ms": 1e3 * layer_seconds(device.costs(is_median=True), m, with_io=False),
                "p95 while IO runs": 1e3 * layer_seconds(device.costs(), m, with_io=True),
                "compute slowed by": device.profile.dilation.at_width(m).compute,
                "full layer's IO, ms": 1e3 * device.costs(is_median=True).link("io").seconds(layer_bytes),
                "reads slowed by": device.profile.dilation.io,
                "a read's latency, ms": 1e3 * device.costs(is_median=True).link("io").latency_s,
                "p95": 1e3 * device.costs().link("io").latency_s,
                "tokenising and Python, ms": 1e3 * device.costs(is_median=True).seconds(TOKENISE),
            }
            for m in profile.widths
        ]
        yield device
    report.table("Devices", rows)


if __name__ == "__main__":
    main()
