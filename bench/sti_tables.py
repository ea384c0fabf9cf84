"""The main table of bench/sti.py (Tables 5 and 6) and the claims that follow from it."""

from collections.abc import Sequence

import numpy as np

from paired import RESAMPLES
from pliant.evaluate.intervals import accuracy, f1, paired_difference
from pliant.plan.shape import store_shape
from report import Report
from sti_plans import ON_DEMAND, OURS_NAMES, PRELOAD_BYTES, Cell, Size
from sti_rig import Rig
from sti_runs import Runs, cold_runs


def main_table(
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


def accuracy_claim(report: Report, rig: Rig, cells: Sequence[Cell]) -> None:
    """No baseline on demand is better; Ours against Preload-full, averaged over targets."""
    at = {(c.device.preset.name, c.share, c.system): c for c in cells}
    places = sorted({(c.device.preset.name, c.share) for c in cells})
    rows, better, gaps = [], [], []
    for place in places:
        ours = rig.right(at[*place, "Ours"].plan)
        row: dict[str, object] = {"device, T": f"{place[0]} {place[1]}"}
        for name in (*ON_DEMAND, "Preload-full", "Preload-6", "Ours, most slices"):
            other = rig.right(at[*place, name].plan)
            found = paired_difference(ours, other)
            row[f"- {name}"] = str(found)
            if name in ON_DEMAND and found.high < 0:
                better.append(f"{name} at {place[0]} {place[1]}")
            if name == "Preload-full":
                gaps.append(ours.astype(np.float64) - other)
        rows.append(row)
    report.table("Ours minus each system, points [95 %, paired]", rows)
    mean = np.mean(gaps, axis=0)
    low, high = _mean_interval(mean)
    value = (
        f"{len(better)} baselines better; Ours - Preload-full {100 * mean.mean():.2f} [{low:.2f}, {high:.2f}]"
    )
    report.claim(
        "sti.accuracy", value, "no on-demand baseline significantly better; Ours - Preload-full above -1.0",
        not better and low > -1.0, "; ".join(better) or f"this task only, {len(rig.dev)} examples",
    )  # fmt: skip


def memory_claim(report: Report, rig: Rig) -> None:
    shape = store_shape(rig.spec)
    whole = shape.n_layers * shape.n_slices * shape.full_bytes
    report.claim(
        "sti.memory", whole / PRELOAD_BYTES, "preload buffer 100 times smaller than all layers' weights",
        whole >= 100 * PRELOAD_BYTES, f"{PRELOAD_BYTES} B against {whole} B in {rig.spec.precision}; "
        "the working buffer, which StdPL has too, is not counted",
    )  # fmt: skip


def speed_claims(report: Report, cells: Sequence[Cell], runs: Sequence[Runs]) -> None:
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


def _mean_interval(values: np.ndarray) -> tuple[float, float]:
    """The central 95 % of the mean of `values` over resampled examples, in points."""
    rng = np.random.default_rng(0)
    means = [float(values[rng.integers(0, len(values), len(values))].mean()) for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return 100 * float(low), 100 * float(high)
