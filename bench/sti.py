"""The evaluation of STI (section 7) in our rows: accuracy, memory, latency and submodels of all its systems.

Device: this machine, its lanes slowed (`sti_rig.emulate`) to two presets. Latency: real cold runs of
sessions on texts of exactly the planned length. Accuracy: the whole dev set at the plan's bits, on the
same kernels. See docs/results/sti.md for what each table stands for.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pliant.api import cache_directory
from pliant.evaluate.intervals import RESAMPLES, accuracy, f1, paired_difference
from pliant.importance import ablate, draw_importance, first_order, importance_text, rank_correlation
from pliant.ir.cost import Budget
from pliant.models.examples import read_examples
from pliant.models.spec import picked_layers
from pliant.plan.baseline import load_and_execute, preload_model, standard_pipeline
from pliant.plan.options import OURS, PAPER, PlanOptions
from pliant.plan.result import Plan
from pliant.plan.search import plan as make_plan
from pliant.plan.shape import FULL_BITS, LOWEST_BITS, store_shape
from pliant.profile.measure import measure_device
from report import ROOT, Report, options
from sti_rig import PRESETS, Device, Quantizer, Rig, Runs, cold_runs, emulate, labelled, picked, undisturbed
from tasks import TASKS, find_task

PRELOAD_BYTES = 200_000
MARGIN = 0.02  # of the target, for what is on no lane: Python, wake-ups
ON_DEMAND = ("Load&Exec", "StdPL-full", "StdPL-2", "StdPL-6")
OURS_NAMES = ("Ours-0MB", "Ours")


@dataclass(frozen=True, slots=True)
class Cell:
    """One system on one device at one target."""

    system: str
    device: Device
    share: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run: everything, or what fits into a minute."""

    n_dev: int | None
    n_ablate: int
    n_runs: int
    n_baseline_runs: int
    n_anytime_runs: int
    n_random: int
    is_quick: bool


def main() -> None:
    arguments = options(__doc__.splitlines()[0], _extra)
    size = (
        Size(60, 8, 10, 3, 10, 1, True)
        if arguments.quick
        else Size(None, arguments.ablate, 100, 20, 100, 3, False)
    )
    with tempfile.TemporaryDirectory(prefix=".sti-", dir=cache_directory()) as scratch:
        _evaluate(arguments, size, Path(scratch))


def _extra(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=TASKS, default="sst2")
    parser.add_argument(
        "--model", type=Path, help="a stretched model's directory (default: the shipped sst2)"
    )
    parser.add_argument(
        "--gold", type=float, help="the unstretched model's accuracy on the dev set, in per cent"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--length", type=int, default=128, help="tokens that are planned for and timed")
    parser.add_argument("--minutes", type=float, default=12, help="begin no part after these")
    parser.add_argument("--ablate", type=int, default=192, help="examples of the ablation")


def _evaluate(arguments: argparse.Namespace, size: Size, scratch: Path) -> None:
    began_s = time.perf_counter()
    model = arguments.model or ROOT / "src" / "pliant" / "assets" / arguments.task
    data = Path(os.environ.get("PLIANT_DATA") or ROOT.parent / "shared" / "data")
    task = find_task(arguments.task, data, scratch)
    rig = Rig(model, task.dev, scratch, cache_directory(), arguments.threads, arguments.length, size.n_dev)
    try:
        report = Report(
            f"sti-{arguments.task}",
            f"{arguments.task}, {len(rig.dev)} dev examples, {rig.spec.n_layers}x{rig.spec.n_heads}, "
            f"{arguments.length} tokens, {arguments.threads} thread(s), reads "
            + ("past the page cache (O_DIRECT)" if rig.store.is_direct else "NOT cold: no O_DIRECT here"),
            arguments,
        )
        importance = _importance(report, rig, task.held_out, size, arguments)
        devices = tuple(_devices(report, rig, size))
        cells = [c for device in devices for c in _cells(rig, device, importance, size)]
        runs = _main_table(report, rig, cells, size, task.has_f1, arguments.gold)
        _accuracy_claim(report, rig, cells)
        _memory_claim(report, rig)
        _speed_claims(report, cells, runs)
        print(f"{time.perf_counter() - began_s:.0f} s so far", flush=True)
        parts: tuple[Callable[[], None], ...] = (
            lambda: _anytime(report, rig, devices, importance, size),
            lambda: _quantizers(report, rig, size),
            lambda: _table7(report, rig, importance, size),
            lambda: _paper_throughout(report, rig, devices, importance["accuracy"]),
            lambda: _sweep(report, rig, devices[0], importance),
        )
        for number, part in enumerate(parts[:3] if size.is_quick else parts):
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
    """Figure 5: the ablation on examples beside the dev set, and its first-order estimate."""
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
    report.table(f"Importance (Figure 5): {len(some)} examples of {held_out.name}", rows)
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


def _devices(report: Report, rig: Rig, size: Size) -> Iterator[Device]:
    """The presets, each dilated from one profile of this machine."""
    shape = store_shape(rig.spec)
    with undisturbed() as is_granted:
        profile = measure_device(
            rig.engines["lloyd"],
            n_threads=rig.n_threads,
            lengths=(rig.length,),
            seconds=4 if size.is_quick else 10,
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
                "layer, ms": 1e3 * device.costs(is_median=True).layer(m).alone_s,
                "p95 while IO runs": 1e3 * device.costs().layer(m).busy_s,
                "slowed by": device.profile.dilation.factor(m),
                "full layer's IO, ms": 1e3 * device.costs(is_median=True).disk.seconds(layer_bytes),
                "bandwidth divided by": device.bandwidth,
                "a read's latency, ms": 1e3 * device.profile.disk.latency_s,
                "p95": 1e3 * device.profile.disk_p95.latency_s,
            }
            for m in profile.widths
        ]
        yield device
    report.table("Devices", rows)


def _job(
    rig: Rig, device: Device, share: float, preload: int, importance: np.ndarray, io_slower: float = 1.0
) -> tuple[object, ...]:
    budget = Budget(share * device.full_s, preload)
    return store_shape(rig.spec), device.costs(io_slower=io_slower), budget, importance


def _ours(
    rig: Rig, device: Device, share: float, preload: int, importance: np.ndarray, how: PlanOptions,
    io_slower: float = 1.0,
) -> Plan:  # fmt: skip
    how = replace(how, best_effort=True, margin=MARGIN)
    job = _job(rig, device, share, preload, importance, io_slower)
    return make_plan(*job, how, expected=device.costs(is_median=True, io_slower=io_slower))  # type: ignore[arg-type]


def _cells(rig: Rig, device: Device, importance: dict[str, np.ndarray], size: Size) -> Iterator[Cell]:
    """Every system at every target of the device's preset; what cannot meet a target runs its smallest."""
    how = replace(OURS, best_effort=True, margin=MARGIN)
    medians = device.costs(is_median=True)
    table = importance["accuracy"]
    for share in device.preset.targets[: 1 if size.is_quick else 3]:
        job = _job(rig, device, share, 0, table)
        systems: dict[str, Callable[[], Plan]] = {
            "Load&Exec": lambda j=job: load_and_execute(*j, how, expected=medians),  # type: ignore[misc]
            **{
                f"StdPL-{name}": lambda j=job, b=bits: standard_pipeline(*j, b, how, expected=medians)  # type: ignore[misc]
                for name, bits in (("full", FULL_BITS), ("2", 2), ("6", 6))
            },
            **{
                f"Preload-{name}": lambda j=job, b=bits: preload_model(*j, b, how, expected=medians)  # type: ignore[misc]
                for name, bits in (("full", FULL_BITS), ("6", 6))
            },
            "Ours-0MB": lambda s=share: _ours(rig, device, s, 0, table, OURS),  # type: ignore[misc]
            "Ours": lambda s=share: _ours(rig, device, s, PRELOAD_BYTES, table, OURS),  # type: ignore[misc]
            "Ours, no slack": lambda s=share: _ours(  # type: ignore[misc]
                rig, device, s, PRELOAD_BYTES, table, replace(OURS, slack="none")
            ),
        }
        for name, planned in systems.items():
            yield Cell(name, device, share, planned())


def _main_table(
    report: Report, rig: Rig, cells: Sequence[Cell], size: Size, has_f1: bool, gold: float | None
) -> list[Runs]:
    """Tables 5 and 6: accuracy, submodel, measured latency, memory, waits."""
    texts = rig.texts(size.n_runs)
    rows, all_runs = [], []
    for cell in cells:
        p = cell.plan
        n_runs = size.n_runs if cell.system in OURS_NAMES else size.n_baseline_runs
        runs = cold_runs(rig, cell.device, p, texts[:n_runs])
        all_runs.append(runs)
        right = rig.right(p)
        row: dict[str, object] = {
            "device": cell.device.preset.name,
            "T ms (of full)": f"{1e3 * p.budget.latency_s:.0f} ({cell.share})",
            "system": cell.system,
            "n x m": f"{p.n}x{p.width}" + ("" if p.meets_target else " (T not met)"),
            "mean bits": f"{np.mean(p.bits):.1f}",
            "accuracy % [95 %]": str(accuracy(right)),
        }
        if has_f1:
            row["F1"] = f"{100 * f1(rig.predicted(p.layers, p.width, p.bits), rig.labels):.1f}"
        row |= {
            "median ms": f"{1e3 * np.median(runs.seconds):.1f}",
            "p95 ms": f"{1e3 * np.quantile(runs.seconds, 0.95):.1f}",
            "predicted": f"{1e3 * runs.predicted_s:.1f}",
            "within T": runs.met,
            "as planned": f"{100 * runs.is_as_planned:.0f} %",
            "weights KB": f"{p.memory.weight_bytes / 1e3:.0f}",
            "wait first, later": f"{100 * runs.first_wait:.0f}, {100 * runs.later_wait:.0f} %",
            "IO / compute": f"{runs.io_per_compute:.2f}",
        }
        rows.append(row)
        print(cell.device.preset.name, cell.share, cell.system, row["n x m"], row["within T"], flush=True)
    reference = f" Gold (unstretched, full size): {gold} %." if gold is not None else ""
    report.table("Tables 5 and 6", rows)
    report.note(
        f"Cold runs: {size.n_runs} of Ours, Ours-0MB, {size.n_baseline_runs} of others. Weights: "
        "preload buffer and working buffer as planned (Preload: the whole model). Waits: shares of a run in "
        "which compute is idle before its first layer, and later; Ours spends slack on such waits by design, "
        f"'Ours, no slack' plans as the paper does.{reference}"
    )
    return all_runs


def _accuracy_claim(report: Report, rig: Rig, cells: Sequence[Cell]) -> None:
    """No baseline on demand is better; Ours against Preload-full, averaged over targets."""
    at = {(c.device.preset.name, c.share, c.system): c for c in cells}
    places = sorted({(c.device.preset.name, c.share) for c in cells})
    rows, better, gaps = [], [], []
    for place in places:
        ours = rig.right(at[*place, "Ours"].plan)
        row: dict[str, object] = {"device, T": f"{place[0]} {place[1]}"}
        for name in (*ON_DEMAND, "Preload-full", "Preload-6"):
            other = rig.right(at[*place, name].plan)
            found = paired_difference(ours, other)
            row[f"- {name}"] = str(found)
            if name in ON_DEMAND and found.high < 0:
                better.append(f"{name} at {place[0]} {place[1]}")
            if name == "Preload-full":
                gaps.append(ours.astype(np.float64) - other)
        rows.append(row)
    report.table("Ours minus each system, points [95 %, paired bootstrap]", rows)
    mean = np.mean(gaps, axis=0)
    low, high = _mean_interval(mean)
    value = (
        f"{len(better)} baselines better; Ours - Preload-full {100 * mean.mean():.2f} [{low:.2f}, {high:.2f}]"
    )
    report.claim(
        "sti.accuracy", value, "no on-demand baseline significantly better; Ours - Preload-full above -1.0",
        not better and low > -1.0, "; ".join(better) or f"this task only, {len(rig.dev)} examples",
    )  # fmt: skip


def _memory_claim(report: Report, rig: Rig) -> None:
    shape = store_shape(rig.spec)
    whole = shape.n_layers * shape.n_slices * shape.full_bytes
    report.claim(
        "sti.memory", whole / PRELOAD_BYTES, "preload buffer 100 times smaller than all layers' weights",
        whole >= 100 * PRELOAD_BYTES, f"{PRELOAD_BYTES} B against {whole} B in {rig.spec.precision}; "
        "the working buffer, which StdPL has too, is not counted",
    )  # fmt: skip


def _speed_claims(report: Report, cells: Sequence[Cell], runs: Sequence[Runs]) -> None:
    ours = [(c, r) for c, r in zip(cells, runs, strict=True) if c.system in OURS_NAMES]
    promised = [(c, r) for c, r in ours if c.plan.meets_target or c.system == "Ours"]
    worst = min(r.n_met / len(r.seconds) for _, r in promised)
    missed = [
        f"{c.system} {c.device.preset.name} {c.share}: {r.met}"
        for c, r in promised
        if r.n_met < 0.95 * len(r.seconds)
    ]
    hopeless = [f"{c.system} {c.device.preset.name} {c.share}" for c, _ in ours if not c.plan.meets_target]
    report.claim(
        "sti.latency",
        f"worst cell {100 * worst:.0f} %",
        "within T in 95 of 100 cold runs at every target",
        not missed,
        "; ".join(missed) + (" Called infeasible by the planner: " + ", ".join(hopeless) if hopeless else ""),
    )
    errors = [abs(float(np.median(r.seconds)) / r.predicted_s - 1) for _, r in ours]
    report.claim(
        "sti.predict", f"worst {100 * max(errors):.1f} %, median {100 * np.median(errors):.1f} %",
        "median time within 15 % of simulate's prediction", max(errors) <= 0.15, "Ours and Ours-0MB",
    )  # fmt: skip
    plain = [(c, r) for c, r in zip(cells, runs, strict=True) if c.system == "Ours, no slack"]
    waits = [r.later_wait for _, r in plain]
    report.claim(
        "sti.bubbles", f"worst {100 * max(waits):.1f} %", "compute waits under 5 % once no AIB is negative",
        max(waits) < 0.05, "waits after the first layer began, of plans without slack (the paper's AIBs)",
    )  # fmt: skip


def _anytime(
    report: Report, rig: Rig, devices: Sequence[Device], importance: dict[str, np.ndarray], size: Size
) -> None:
    """IO falls to a third of its speed somewhere in the first half of each run."""
    texts = rig.texts(size.n_anytime_runs, seed=1)
    delays = np.random.default_rng(2).uniform(0.05, 0.5, len(texts))
    rows, verdicts = [], []
    table = importance["accuracy"]
    for device in devices:
        for share in device.preset.targets[: 1 if size.is_quick else 3]:
            knew = _ours(rig, device, share, PRELOAD_BYTES, table, OURS, io_slower=3.0)
            p = _ours(rig, device, share, PRELOAD_BYTES, table, replace(OURS, io_reserve=3.0))
            T = p.budget.latency_s
            after = lambda i, T=T: float(delays[i] * T)  # noqa: E731
            on = cold_runs(rig, device, p, texts, slow_after=after)
            off = cold_runs(rig, device, _without_anytime(p), texts[: len(texts) * 3 // 10], slow_after=after)
            unreserved = _ours(rig, device, share, PRELOAD_BYTES, table, OURS)
            plain = cold_runs(rig, device, unreserved, texts[: len(texts) * 3 // 10], slow_after=after)
            gap = paired_difference(rig.right_as_run(p, on.grids), rig.right(knew))
            verdicts.append((on, off, gap))
            rows.append({
                "device, T": f"{device.preset.name} {share}",
                "n x m": f"{p.n}x{p.width}",
                "anytime, reserve 3": on.met,
                "the same without anytime": off.met,
                "anytime, no reserve": f"{plain.met} ({unreserved.n}x{unreserved.width})",
                "p95 ms on / off": f"{1e3 * np.quantile(on.seconds, 0.95):.1f} / "
                f"{1e3 * np.quantile(off.seconds, 0.95):.1f}",
                "runs at planned bits": f"{100 * on.is_as_planned:.0f} %",
                "accuracy at the bits that ran": str(accuracy(rig.right_as_run(p, on.grids))),
                "a plan that knew": f"{accuracy(rig.right(knew))} ({knew.n}x{knew.width})",
                "difference": str(gap),
            })  # fmt: skip
            print("anytime", rows[-1], flush=True)
    report.table("IO at a third of its speed from the middle of runs on", rows)
    share_met = min(on.n_met / len(on.seconds) for on, _, _ in verdicts)
    gap_low = min(g.value for _, _, g in verdicts)
    off_misses = sum(off.n_met < 0.95 * len(off.seconds) for _, off, _ in verdicts)
    report.claim(
        "sti.anytime",
        f"worst {100 * share_met:.0f} %, accuracy {100 * gap_low:+.2f} points, without anytime "
        f"{off_misses} of {len(verdicts)} targets missed",
        "95 of 100 at every target, within 2 points of a plan that knew; misses without anytime",
        share_met >= 0.95 and gap_low >= -0.02 and off_misses == len(verdicts),
        "plans with an IO reserve of 3",
    )


def _without_anytime(p: Plan) -> Plan:
    """The same bits and loads, every layer waiting for all of them."""
    return replace(
        p,
        is_anytime=False,
        latest_start_s=(None,) * p.n,
        latest_refinement_s=tuple((None,) * len(load.refinements) for load in p.loads),
    )


def _table7(report: Report, rig: Rig, importance: dict[str, np.ndarray], size: Size) -> None:
    """More IO for a 5x3 submodel at 2 bits: by importance, or at random; raised shards get 6 bits."""
    n, m = min(5, rig.spec.n_layers), 3
    layers = picked_layers(rig.spec.n_layers, n)
    plane = store_shape(rig.spec).plane_bytes
    rng = np.random.default_rng(0)
    rows = []
    for count in (1, 6, 13)[: 1 if size.is_quick else 3]:
        row: dict[str, object] = {
            "more IO": f"{count * 4 * plane / 1e6:.2f} MB, {count} of {n * m} shards",
            "random (mean, least, most)": _random_order(rig, layers, m, count, size.n_random, rng),
        }
        for name, table in importance.items():
            chosen = np.argsort(-table[list(layers), :m], axis=None, kind="stable")[:count]
            row[f"by {name}"] = str(accuracy(_raised(rig, layers, m, chosen)))
        rows.append(row)
    floor = accuracy(_raised(rig, layers, m, np.array([], int)))
    report.table(f"Table 7: {n}x{m} at 2 bits ({floor}), some shards raised to 6", rows)


def _random_order(
    rig: Rig, layers: tuple[int, ...], m: int, count: int, n_draws: int, rng: np.random.Generator
) -> str:
    drawn = [
        100 * _raised(rig, layers, m, rng.permutation(len(layers) * m)[:count]).mean() for _ in range(n_draws)
    ]
    return f"{np.mean(drawn):.2f}, {min(drawn):.2f}, {max(drawn):.2f} of {n_draws}"


def _raised(rig: Rig, layers: tuple[int, ...], m: int, chosen: np.ndarray) -> np.ndarray:
    bits = np.full(len(layers) * m, LOWEST_BITS)
    bits[chosen] = 6
    grid = tuple(tuple(row) for row in bits.reshape(len(layers), m).tolist())
    return rig.predicted(layers, m, grid) == rig.labels


def _quantizers(report: Report, rig: Rig, size: Size) -> None:
    """Uniform bits under both quantizers."""
    N, M = rig.spec.n_layers, rig.spec.n_heads
    places = ((N, M), (min(5, N), 3), (min(3, N), 6))
    rows, worse, gains = [], [], []
    for n, m in places[: 1 if size.is_quick else 3]:
        for k in (2, 3, 4, 5, 6):
            layers, bits = picked_layers(N, n), ((k,) * m,) * n
            ours, paper = (
                rig.predicted(layers, m, bits, q) == rig.labels for q in ("lloyd", "equal-population")
            )
            gap = paired_difference(ours, paper)
            rows.append({
                "submodel": f"{n}x{m}", "k": k, "default": str(accuracy(ours)),
                "paper's": str(accuracy(paper)), "difference": str(gap),
            })  # fmt: skip
            if gap.high < 0:
                worse.append(f"{n}x{m} at {k} bits")
            if k <= 4:
                gains.append(gap.value)
    report.table("Quantizers at equal k", rows)
    report.claim(
        "sti.quantizer", f"mean over k = 2..4 {100 * np.mean(gains):+.2f} points",
        "nowhere significantly worse, better on average over k = 2..4", not worse and np.mean(gains) > 0,
        "; ".join(worse) or "this task only",
    )  # fmt: skip


def _paper_throughout(report: Report, rig: Rig, devices: Sequence[Device], importance: np.ndarray) -> None:
    rows = []
    quantizer: Quantizer = "equal-population"
    for device in devices:
        for share in device.preset.targets:
            how = replace(PAPER, best_effort=True, margin=MARGIN)
            job = _job(rig, device, share, 0, importance)
            plans = {
                "StdPL-2": standard_pipeline(*job, 2, how),  # type: ignore[arg-type]
                "StdPL-6": standard_pipeline(*job, 6, how),  # type: ignore[arg-type]
                "Preload-6": preload_model(*job, 6, how),  # type: ignore[arg-type]
                "STI-0MB": _ours(rig, device, share, 0, importance, PAPER),
                "STI": _ours(rig, device, share, PRELOAD_BYTES, importance, PAPER),
            }
            rows.append({
                "device, T": f"{device.preset.name} {share}",
                **{
                    name: _brief(rig, p, quantizer)
                    for name, p in plans.items()
                },
            })  # fmt: skip
    report.table(
        "The paper's quantizer and planner throughout: accuracy % (submodel, mean bits), not timed", rows
    )


def _sweep(report: Report, rig: Rig, device: Device, importance: dict[str, np.ndarray]) -> None:
    """Section 7.4: targets up to full-model compute and beyond, and sizes of the preload buffer."""
    rows = []
    for share in (0.08, 0.15, 0.3, 0.5, 0.75, 1.0, 1.5):
        row: dict[str, object] = {"T / full compute": share}
        for n_bytes in (0, 50_000, PRELOAD_BYTES, 1_000_000):
            p = _ours(rig, device, share, n_bytes, importance["accuracy"], OURS)
            row[f"|S| = {n_bytes // 1000} KB"] = _brief(rig, p, "lloyd")
        rows.append(row)
    report.table(
        f"Sensitivity (7.4), {device.preset.name}: accuracy % (submodel, mean bits), not timed", rows
    )


def _brief(rig: Rig, p: Plan, quantizer: Quantizer) -> str:
    return f"{100 * rig.right(p, quantizer).mean():.2f} ({p.n}x{p.width}, {np.mean(p.bits):.1f} bits)"


def _mean_interval(values: np.ndarray) -> tuple[float, float]:
    """The central 95 % of the mean of `values` over resampled examples, in points."""
    rng = np.random.default_rng(0)
    means = [float(values[rng.integers(0, len(values), len(values))].mean()) for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return 100 * float(low), 100 * float(high)


if __name__ == "__main__":
    main()
