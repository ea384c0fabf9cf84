"""The main table of bench/sti.py (Tables 5 and 6) and the claims that follow from it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paired import RESAMPLES
from pliant.elastic.evaluate.intervals import accuracy_interval, f1, paired_difference
from pliant.plan.submodel.shape import store_shape
from report import Report
from sti_plans import MOST_SLICES, ON_DEMAND, OURS_NAMES, PRELOAD_BYTES, Cell, Size
from sti_rig import Rig, majority
from sti_runs import Runs, cold_runs

PLACES = "Devices and targets, points [95 %, paired]"


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell, its cold runs, and the answers to the dev set at the bits of those runs."""

    cell: Cell
    runs: Runs
    predicted: np.ndarray

    @property
    def place(self) -> tuple[str, float]:
        return self.cell.device.preset.name, self.cell.share


def measure(rig: Rig, cells: Sequence[Cell], size: Size) -> list[CellResult]:
    """Cold runs of all systems, interleaved for each device and target."""
    texts = rig.texts(size.n_runs)
    found = []
    for place in dict.fromkeys((c.device.preset.name, c.share) for c in cells):
        here = [c for c in cells if (c.device.preset.name, c.share) == place]
        runs = cold_runs(rig, here[0].device, {c.system: c.plan for c in here}, texts)
        for c in here:
            predicted = rig.predicted_as_run(c.plan, runs[c.system].grids)
            found.append(CellResult(c, runs[c.system], predicted))
            print(*place, c.system, runs[c.system].met, flush=True)
    return found


def main_table(
    report: Report, rig: Rig, found: Sequence[CellResult], size: Size, has_f1: bool, gold: float | None
) -> None:
    """Tables 5 and 6: accuracy, submodel, latency, bytes and memory, predicted and measured."""
    rows = [_row(rig, x, has_f1) for x in found]
    report.table(f"Tables 5 and 6 ({rig.majority})", rows)
    reference = f" Gold (unstretched, full size): {gold} %." if gold is not None else ""
    report.note(
        f"Cold runs: {size.n_runs} of every system, interleaved text by text, each system in a separate "
        "process; systems with equal plans are measured once. Rows without a rule choose their submodel by "
        f"the accuracy grid, those with '{MOST_SLICES[2:]}' by the paper's. "
        "ms: median [5th, 95th percentile]. "
        "Accuracy: the dev set at the bits that the cold runs ran with, example i at those of run i modulo "
        "their number. Read: median bytes of a run; weights: preload and working buffers; RSS: the process's "
        "peak above its own with all modules imported; each with the plan's prediction in brackets (for RSS "
        "weights and activations; embeddings, head and interpreter come on top). Waits: shares of a run in "
        "which compute is idle before its first layer, and later; Ours spends slack on such waits by design, "
        f"'Ours, no slack' plans as the paper does.{reference}"
    )


def _row(rig: Rig, x: CellResult, has_f1: bool) -> dict[str, object]:
    p, runs = x.cell.plan, x.runs
    read = sum(rig.store.run_bytes(run) for load in p.loads for run in load.runs)
    planned_rss = p.memory.weight_bytes + p.memory.arena_bytes
    row: dict[str, object] = {
        "device": x.place[0],
        "T ms (of full)": f"{1e3 * p.budget.target_s:.0f} ({x.cell.share})",
        "system": x.cell.system,
        "n x m": f"{p.n}x{p.width}" + ("" if p.meets_target else " (infeasible)"),
        "bits run (plan)": f"{np.mean([np.mean(g) for g in runs.grids]):.1f} ({np.mean(p.bits):.1f})",
        "accuracy % [95 %]": str(accuracy_interval(x.predicted == rig.labels)),
    }
    if has_f1:
        row["F1"] = f"{100 * f1(x.predicted, rig.labels):.1f}"
    return row | {
        "ms": runs.spread,
        "predicted": f"{1e3 * runs.predicted_s:.1f}",
        "within T": runs.met,
        "read KB (plan)": f"{runs.read_bytes / 1e3:.0f} ({read / 1e3:.0f})",
        "weights KB (plan)": f"{runs.weight_bytes / 1e3:.0f} ({p.memory.weight_bytes / 1e3:.0f})",
        "RSS MB (plan)": f"{runs.peak_bytes / 1e6:.1f} ({planned_rss / 1e6:.1f})",
        "wait first, later": f"{100 * runs.first_wait:.0f}, {100 * runs.later_wait:.0f} %",
        "IO / compute": f"{runs.io_per_compute:.2f}",
    }


def accuracy_claim(report: Report, rig: Rig, found: Sequence[CellResult]) -> None:
    """No baseline on demand is better; Ours against Preload-full, averaged over targets."""
    at = {(*x.place, x.cell.system): x for x in found}
    right = {key: x.predicted == rig.labels for key, x in at.items()}
    places = list(dict.fromkeys(x.place for x in found))
    others = [x for x in dict.fromkeys(x.cell.system for x in found) if x not in OURS_NAMES]
    gaps = {
        (name, place): paired_difference(right[*place, "Ours"], right[*place, name])
        for name in others
        for place in places
    }
    rows = []
    for place in places:
        both = {name: at[*place, name] for name in OURS_NAMES}
        # If no system with the whole model in memory beats the majority class, differences are not
        # meaningful.
        is_above = any(is_above_majority(right[*place, x], rig.labels) for x in ("Ours", "Preload-full"))
        rows.append({
            "device, T": f"{place[0]} {place[1]}",
            "majority %": f"{100 * np.mean(rig.labels == majority(rig.labels)):.2f}",
            "above it": is_above,
            **{f"{name} %": f"{100 * np.mean(right[*place, name]):.2f}" for name in both},
            **{f"{name} within T": feasible_met(x) for name, x in both.items()},
            "- Preload-full": str(gaps["Preload-full", place]),
        })  # fmt: skip
    report.table(PLACES, rows)
    report.table(
        f"Ours minus each system, points [95 %, paired] ({rig.majority})",
        [{"system": name} | {f"{p[0]} {p[1]}": str(gaps[name, p]) for p in places} for name in others],
    )
    better = [
        f"{name} at {place[0]} {place[1]}"
        for (name, place), gap in gaps.items()
        if name.removesuffix(MOST_SLICES) in ON_DEMAND and gap.high < 0
    ]
    paired = [right[*p, "Ours"].astype(np.float64) - right[*p, "Preload-full"] for p in places]
    _claim(report, rig, paired, better)


def _claim(report: Report, rig: Rig, gaps: Sequence[np.ndarray], better: Sequence[str]) -> None:
    mean = np.mean(gaps, axis=0)
    low, high = _mean_interval(mean)
    value = (
        f"{len(better)} baselines better; Ours - Preload-full {100 * mean.mean():.2f} [{low:.2f}, {high:.2f}]"
    )
    report.claim(
        "sti.accuracy", value, "no on-demand baseline significantly better; Ours - Preload-full above -1.0",
        not better and low > -1.0, "; ".join(better) or f"this task only, {len(rig.dev)} examples",
    )  # fmt: skip


def is_above_majority(is_right: np.ndarray, labels: np.ndarray) -> bool:
    """Whether answers are significantly better than always giving the most frequent label."""
    return paired_difference(is_right, labels == majority(labels)).low > 0


def feasible_met(x: CellResult) -> str:
    """The number of runs in time, and whether the planner had called the target infeasible."""
    return x.runs.met if x.cell.plan.meets_target else f"infeasible ({x.runs.met})"


def memory_claim(report: Report, rig: Rig, found: Sequence[CellResult]) -> None:
    shape = store_shape(rig.spec)
    whole = shape.n_layers * shape.n_slices * shape.full_bytes
    ours = [x for x in found if x.cell.system == "Ours"]
    largest = max(x.runs.weight_bytes for x in ours)
    ratio = whole / PRELOAD_BYTES
    report.claim(
        "sti.memory", ratio, "preload buffer 100 times smaller than all layers' weights",
        ratio >= 100, f"{PRELOAD_BYTES} B against {whole} B in {rig.spec.precision}; with the working "
        f"buffer, which StdPL has too, at most {largest} B measured: {whole / largest:.0f} times smaller",
    )  # fmt: skip


def speed_claims(report: Report, found: Sequence[CellResult]) -> None:
    ours = [x for x in found if x.cell.system in OURS_NAMES]
    promised = [x for x in ours if x.cell.plan.meets_target]
    names = {id(x): f"{x.cell.system} {x.place[0]} {x.place[1]}" for x in ours}
    missed = [f"{names[id(x)]}: {x.runs.met}" for x in promised if x.runs.n_met < 0.95 * len(x.runs.seconds)]
    hopeless = [f"{names[id(x)]}: {x.runs.met}" for x in ours if not x.cell.plan.meets_target]
    worst = min((x.runs.n_met / len(x.runs.seconds) for x in promised), default=0.0)
    report.claim(
        "sti.latency",
        f"worst feasible cell {100 * worst:.0f} %, {len(hopeless)} of {len(ours)} cells infeasible",
        "within T in 95 of 100 cold runs at every target",
        not missed and bool(promised),
        "; ".join(missed) + (" Called infeasible by the planner: " + "; ".join(hopeless) if hopeless else ""),
    )
    errors = [abs(float(np.median(x.runs.seconds)) / x.runs.predicted_s - 1) for x in ours]
    report.claim(
        "sti.predict", f"worst {100 * max(errors):.1f} %, median {100 * np.median(errors):.1f} %",
        "median time within 15 % of simulate's prediction", max(errors) <= 0.15, "Ours and Ours-0MB",
    )  # fmt: skip
    waits = [x.runs.later_wait for x in found if x.cell.system == "Ours, no slack"]
    report.claim(
        "sti.bubbles", f"worst {100 * max(waits):.1f} %", "compute waits under 5 % once no AIB is negative",
        max(waits) < 0.05, "waits after the first layer began, of plans without slack (the paper's AIBs)",
    )  # fmt: skip


def _mean_interval(values: np.ndarray) -> tuple[float, float]:
    """The central 95 % of the mean of `values` over resampled examples, in points."""
    rng = np.random.default_rng(0)
    means = [float(values[rng.integers(0, len(values), len(values))].mean()) for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return 100 * float(low), 100 * float(high)
