"""Further parts of bench/sti.py: slow IO, quantizers, Table 7, the paper's methods throughout."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pliant.elastic.evaluate.intervals import accuracy_interval, paired_difference
from pliant.ir.bitwidths import LOWEST_BITS
from pliant.models.spec import picked_layers
from pliant.plan.plan import Plan
from pliant.plan.submodel.baseline import preload_model, standard_pipeline
from pliant.plan.submodel.plan_options import OURS, PAPER
from pliant.plan.submodel.shape import store_shape
from report import Report
from sti_cell import SLOW_IO
from sti_plans import MARGIN, PRELOAD_BYTES, Size, brief, job_of, ours
from sti_rig import Device, Quantizer, Rig
from sti_runs import cold_runs


def anytime(report: Report, rig: Rig, devices: Sequence[Device], importance: np.ndarray, size: Size) -> None:
    """IO falls to a third of its speed somewhere in the first half of each run."""
    texts = rig.texts(size.n_runs, seed=1)
    delays = np.random.default_rng(2).uniform(0.05, 0.5, len(texts))
    rows, verdicts = [], []
    for device, share in ((d, s) for d in devices for s in d.preset.targets[-size.n_targets :]):
        p = ours(rig, device, share, PRELOAD_BYTES, importance, replace(OURS, io_reserve=SLOW_IO))
        knew = ours(rig, device, share, PRELOAD_BYTES, importance, OURS, io_slower=SLOW_IO)
        plans = {
            "on": p,
            "off": _without_anytime(p),
            "no reserve": ours(rig, device, share, PRELOAD_BYTES, importance, OURS),
            "knew": _without_anytime(knew),
        }

        def slow_after(name: str, i: int, target_s: float = p.budget.target_s) -> float:
            return 0.0 if name == "knew" else float(delays[i] * target_s)

        runs = cold_runs(rig, device, plans, texts, slow_after)
        right = {name: rig.predicted_as_run(plans[name], runs[name].grids) == rig.labels for name in plans}
        gap = paired_difference(right["on"], right["knew"])
        verdicts.append((runs["on"], runs["off"], gap))
        unreserved = plans["no reserve"]
        rows.append({
            "device, T": f"{device.preset.name} {share}",
            "n x m": f"{p.n}x{p.width}" + ("" if p.meets_target else " (infeasible)"),
            "anytime, reserve 3": runs["on"].met,
            "the same without anytime": runs["off"].met,
            "anytime, no reserve": f"{runs['no reserve'].met} ({unreserved.n}x{unreserved.width})",
            "ms, on": runs["on"].spread,
            "ms, off": runs["off"].spread,
            "runs at planned bits": f"{100 * runs['on'].is_as_planned:.0f} %",
            "accuracy %, on": str(accuracy_interval(right["on"])),
            "a plan that knew":
            f"{accuracy_interval(right['knew'])} ({knew.n}x{knew.width}, {runs['knew'].met})",
            "difference": str(gap),
        })  # fmt: skip
        print("anytime", rows[-1], flush=True)
    report.table(
        "IO at a third of its speed from the middle of runs on, accuracy at the bits that ran "
        f"({rig.majority})",
        rows,
    )
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
    """The same bits and loads, with every layer waiting for all of its loads."""
    return replace(
        p,
        is_anytime=False,
        latest_start_s=(None,) * p.n,
        latest_refinement_s=tuple((None,) * len(load.refinements) for load in p.loads),
    )


def table7(report: Report, rig: Rig, importance: dict[str, np.ndarray], size: Size) -> None:
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
            row[f"by {name}"] = str(accuracy_interval(_raised(rig, layers, m, chosen)))
        rows.append(row)
    floor = accuracy_interval(_raised(rig, layers, m, np.array([], int)))
    report.table(f"Table 7: {n}x{m} at 2 bits ({floor}), some shards raised to 6 ({rig.majority})", rows)


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


def quantizers(report: Report, rig: Rig, size: Size) -> None:
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
                "submodel": f"{n}x{m}", "k": k, "default": str(accuracy_interval(ours)),
                "paper's": str(accuracy_interval(paper)), "difference": str(gap),
            })  # fmt: skip
            if gap.high < 0:
                worse.append(f"{n}x{m} at {k} bits")
            if k <= 4:
                gains.append(gap.value)
    report.table(f"Quantizers at equal k ({rig.majority})", rows)
    report.claim(
        "sti.quantizer", f"mean over k = 2..4 {100 * np.mean(gains):+.2f} points",
        "nowhere significantly worse, better on average over k = 2..4", not worse and np.mean(gains) > 0,
        "; ".join(worse) or "this task only",
    )  # fmt: skip


def paper_throughout(report: Report, rig: Rig, devices: Sequence[Device], importance: np.ndarray) -> None:
    rows = []
    quantizer: Quantizer = "equal-population"
    for device in devices:
        for share in device.preset.targets:
            how = replace(PAPER, best_effort=True, margin=MARGIN)
            job = job_of(rig, device, share, 0, importance)
            plans = {
                "StdPL-2": standard_pipeline(*job, 2, how),
                "StdPL-6": standard_pipeline(*job, 6, how),
                "Preload-6": preload_model(*job, 6, how),
                "STI-0MB": ours(rig, device, share, 0, importance, PAPER),
                "STI": ours(rig, device, share, PRELOAD_BYTES, importance, PAPER),
            }
            rows.append({
                "device, T": f"{device.preset.name} {share}",
                **{
                    name: brief(rig, p, quantizer)
                    for name, p in plans.items()
                },
            })  # fmt: skip
    report.table(
        "The paper's quantizer and planner throughout: accuracy % (submodel, mean bits), not timed "
        f"({rig.majority})",
        rows,
    )


def sweep(report: Report, rig: Rig, device: Device, importance: np.ndarray) -> None:
    """Section 7.4: targets up to full-model compute and beyond, and sizes of the preload buffer."""
    rows = []
    for share in (0.08, 0.15, 0.3, 0.5, 0.75, 1.0, 1.5):
        row: dict[str, object] = {"T / full compute": share}
        for n_bytes in (0, 50_000, PRELOAD_BYTES, 1_000_000):
            p = ours(rig, device, share, n_bytes, importance, OURS)
            row[f"|S| = {n_bytes // 1000} KB"] = brief(rig, p, "lloyd")
        rows.append(row)
    report.table(
        f"Sensitivity (7.4), {device.preset.name}: accuracy % (submodel, mean bits), not timed "
        f"({rig.majority})",
        rows,
    )
