"""Guard: which plans STI's planners make of a device given as data, as programs with their simulated spans.

Protects `plan`, the paper's planner, every baseline, `Plan.program`, `program_text` and `simulate`: moving or
renaming code must not change one golden file of this guard. Devices, store and accuracies are formulas below;
nothing is measured. The first case of each planner is printed in clear. Each other case is a line of its
choices and the digests of its program and spans, which names the case that changed: print that one case to
see what changed.

A change of a planning rule changes the files of the planners that it is meant for, and no other: `sti_ours`
holds ours, `sti_paper` the published planner, `sti_baselines` the systems it is compared with, `sti_accuracy`
the accuracies that submodels are chosen by. Update with
`pytest tests/guards/test_sti_plans.py --update-golden`, and say in the commit what changed them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.cost import Cost, cost_table, dilate, simulate
from pliant.ir.device import DeviceProfile, LayerTime, Overhead
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.times.timing import Timing
from pliant.plan.plan import Budget, Plan
from pliant.plan.submodel.accuracy import expected_accuracy
from pliant.plan.submodel.baseline import load_and_execute, preload_model, standard_pipeline
from pliant.plan.submodel.plan_options import OURS, PAPER, PlanOptions
from pliant.plan.submodel.search import plan
from pliant.plan.submodel.shape import StoreShape
from pliant.store.manifest import AccuracyEntry, AccuracyFold, AccuracyTable
from tests.guards.texts import checked_text, digests, plan_text, spans_text

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

N, M = 6, 12
WIDTHS = (3, 6, 9, 12)
LENGTHS = (8, 64, 128)
STRETCHED = StoreShape(N, M, WIDTHS, 18_432, 294_912, tuple(range(1, N + 1)))
"""The shipped SST-2 model's sizes; trained for every depth."""
ORDINARY = replace(STRETCHED, widths=(M,), depths=(N,))
"""A checkpoint of the same sizes that was never made elastic: nothing but bits may be cut."""
IMPORTANCE = np.array([[((5 * k + 7 * s + 3) % 73) / 73 + k / 1000 for s in range(M)] for k in range(N)])
"""No two alike: a tie would leave the order of shards open."""
ACCURACY = {
    (n, m, bits): 0.5 + 0.42 * (1 - 0.8 ** (n * m / 6)) * (1 - 0.5 ** (bits / 2)) - 0.002 * abs(n - 4)
    for n in range(1, N + 1) for m in WIDTHS for bits in (2, 3, 4, 5, 6, FULL_BITS)
}  # fmt: skip
"""More slices and bits are better, and depth 4 is best: most slices is not the most accurate choice."""


def device(name: str, by_width: Callable[[int], float], disk: Link) -> DeviceProfile:
    """A device whose layer of m slices takes `by_width(m)` seconds for 64 tokens, and a little for any."""

    def timing(seconds: float, spread: float) -> Timing:
        return Timing(seconds, seconds * spread)

    layers = tuple(
        LayerTime(n, m, timing(alone_s, 1.12), timing(1.07 * alone_s, 1.15))
        for n in LENGTHS
        for m in WIDTHS
        for alone_s in (by_width(m) * (0.1 + 0.9 * n / 64),)
    )
    overheads = tuple(
        Overhead(n, timing(2e-6 * n + 8e-5, 1.3), timing(1.5e-6 * n + 3e-5, 1.2), timing(9e-5, 1.25))
        for n in LENGTHS
    )
    return DeviceProfile(
        cpu=name, n_threads=1, memory_bytes=1 << 30, frequency_Hz=None, frequency_reason="given as data",
        subject="guard", io_method="given as data", reads=(), disk=disk, disk_p95=disk.times(1.4),
        layers=layers, overheads=overheads, io_slowdown=1.06,
    )  # fmt: skip


DEVICES = (
    device("cpu", lambda m: 3.1e-4 * m, Link(8e-5, 6e8)),
    device("flat", lambda m: 1.9e-3 + 2e-5 * m, Link(4e-4, 9e7)),  # like a GPU: hardly quicker with less
)


@dataclass(frozen=True)
class Case:
    """One question to a planner: which device, how many tokens, what target and how much memory."""

    device: DeviceProfile
    tokens: int
    latency_s: float
    preload_bytes: int
    working_bytes: int | None = None

    @property
    def budget(self) -> Budget:
        return Budget(self.latency_s, self.preload_bytes, self.working_bytes)

    @property
    def expected(self) -> Cost:
        return cost_table(self.device, self.tokens, "median")

    @property
    def costs(self) -> Cost:
        return cost_table(self.device, self.tokens, "p95")

    def __str__(self) -> str:
        working = "" if self.working_bytes is None else f" working {self.working_bytes} B"
        target = f"{self.latency_s * 1e3:g} ms preload {self.preload_bytes} B{working}"
        return f"{self.device.cpu} {self.tokens} tokens {target}"


Planner = Callable[[Case], Plan]
TARGETS_S = (0.004, 0.009, 0.02, 0.05)
PRELOADS = (0, 200_000, 3_000_000)
CASES = tuple(
    Case(d, (20, 128)[(i + j + k) % 2], target_s, n_bytes)
    for i, d in enumerate(DEVICES)
    for j, target_s in enumerate(TARGETS_S)
    for k, n_bytes in enumerate(PRELOADS)
)
FEW = tuple(Case(d, 64, s, n) for d in DEVICES for s, n in ((0.008, 200_000), (0.025, 0), (0.025, 3_000_000)))
CLEAR = Case(DEVICES[0], 64, 0.012, 200_000)
"""Printed in clear."""


def elastic(
    options: PlanOptions,
    shape: StoreShape = STRETCHED,
    *,
    is_measured: bool = False,
    held: np.ndarray | None = None,
    by: Dilation = Dilation(),  # noqa: B008 - frozen
) -> Planner:
    """Our planner and the paper's; with the accuracies of submodels where they were measured."""

    def made(case: Case) -> Plan:
        how = replace(options, best_effort=True)
        return plan(
            shape, dilate(case.costs, by), case.budget, IMPORTANCE, how,
            expected=dilate(case.expected, by), held=held, accuracy=ACCURACY if is_measured else None,
        )  # fmt: skip

    return made


def baseline(system: Callable[..., Plan], options: PlanOptions, *bits: int) -> Planner:
    """A baseline by measured accuracy; `options` may ask for most slices instead."""

    def made(case: Case) -> Plan:
        how = replace(options, best_effort=True, margin=0.05)
        job = STRETCHED, case.costs, case.budget, IMPORTANCE, *bits, how
        return system(*job, expected=case.expected, accuracy=ACCURACY)

    return made


def in_clear(case: Case, planner: Planner) -> str:
    """The plan, its program, and when each step would run."""
    p = planner(case)
    program = p.program
    spans = simulate(program, case.expected, {"tokens": case.tokens})
    return plan_text(p) + checked_text(program) + spans_text(spans)


def line(case: Case, planner: Planner) -> str:
    """What was chosen, in one line: submodel, bits, planes held, times, memory and digests."""
    p = planner(case)
    program = p.program
    spans = simulate(program, case.expected, {"tokens": case.tokens})
    bits, held = ("/".join(_runs(row) for row in grid) for grid in (p.bits, p.held))
    times = (
        f"{p.latency_s * 1e3:.4f} ms p95 {p.latency_p95_s * 1e3:.4f} ms{'' if p.meets_target else ' late'}"
    )
    memory = f"{p.memory.preload_bytes}+{p.memory.working_bytes} B window {p.window}"
    accuracy = "" if p.expected_accuracy is None else f" accuracy {p.expected_accuracy:.6f}"
    chosen = f"{p.name} {p.n}x{p.width} {p.cut} bits {bits} held {held} {times} {memory}{accuracy}"
    return f"{case}: {chosen} {digests(program, spans)}"


def _runs(row: tuple[int, ...]) -> str:
    """A row of small numbers as runs: `6*9,2*3`."""
    runs: list[list[int]] = []
    for b in row:
        if runs and runs[-1][0] == b:
            runs[-1][1] += 1
        else:
            runs.append([b, 1])
    return ",".join(f"{b}*{n}" for b, n in runs)


def book(planners: dict[str, tuple[Planner, tuple[Case, ...]]]) -> Iterator[str]:
    """Each planner's plan of the case in clear, then its other cases line by line."""
    for name, (planner, cases) in planners.items():
        yield f"== {name}: {CLEAR}\n{in_clear(CLEAR, planner)}"
        yield from (f"{line(case, planner)}\n" for case in cases)


def test_our_plans_are_those_of_the_golden_files(golden: Callable[[str, str], None]) -> None:
    """Ours, by measured accuracy and by size, without refinements, in memory that is bounded or filled."""
    limited = tuple(replace(case, working_bytes=400_000) for case in FEW)
    held = np.array([[2 + (k + s) % 5 if k < 3 else 0 for s in range(M)] for k in range(N)])
    planners = {
        "by accuracy": (elastic(OURS, is_measured=True), CASES),
        "by size": (elastic(OURS), CASES),
        "every layer": (elastic(OURS, ORDINARY), FEW),
        "not anytime": (elastic(replace(OURS, is_anytime=False, margin=0.05)), FEW),
        "on a busy device": (elastic(OURS, is_measured=True, by=Dilation(1.3, 1.3 * 1.5)), FEW),
        "a reserve of 2": (elastic(replace(OURS, io_reserve=2.0), is_measured=True), FEW),
        "little working memory": (elastic(OURS, is_measured=True), limited),
        "planes in memory": (elastic(OURS, is_measured=True, held=held), FEW),
    }
    golden("guards/sti_ours.txt", "".join(book(planners)))


def test_the_papers_plans_are_those_of_the_golden_file(golden: Callable[[str, str], None]) -> None:
    """The published planner must not change while ours improves."""
    planners = {
        "the paper's": (elastic(PAPER), CASES),
        "the paper's, every layer": (elastic(replace(PAPER, depths="trained"), ORDINARY), FEW),
        "the paper's, with preloaded planes": (elastic(replace(PAPER, preload="planes")), FEW),
    }
    golden("guards/sti_paper.txt", "".join(book(planners)))


def test_the_baselines_plans_are_those_of_the_golden_file(golden: Callable[[str, str], None]) -> None:
    """What STI and we are compared with, by measured accuracy and by the paper's rule, most slices."""
    cases = tuple(case for case in CASES if not case.preload_bytes)
    planners = {}
    for rule, options in (("", OURS), (", most slices", replace(OURS, choose="size"))):
        planners[f"Load&Exec{rule}"] = (baseline(load_and_execute, options), cases)
        for bits in (2, 6, FULL_BITS):
            planners[f"StdPL-{bits}{rule}"] = (baseline(standard_pipeline, options, bits), cases)
        for bits in (6, FULL_BITS):
            planners[f"Preload-{bits}{rule}"] = (baseline(preload_model, options, bits), cases)
    golden("guards/sti_baselines.txt", "".join(book(planners)))


def measured(fold: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Accuracies and log-likelihoods of all submodels on one fold, each off by up to two points."""
    noise = [0.02 * np.sin(37.0 * (i + 1) + 0.5 * fold) for i in range(len(ACCURACY))]
    accuracy = tuple(float(a + e) for a, e in zip(ACCURACY.values(), noise, strict=True))
    return accuracy, tuple(float(-1.1 * (1 - a) - 0.3 * e) for a, e in zip(accuracy, noise, strict=True))


@pytest.mark.parametrize("has_folds", [True, False])
def test_expected_accuracies_are_those_of_the_golden_file(
    golden: Callable[[str, str], None], has_folds: bool
) -> None:
    """Ours are chosen by them: judged by examples that chose nothing where there are folds."""
    folds = tuple(AccuracyFold(100, *measured(fold)) for fold in range(4))
    means = (
        np.mean([f.accuracy for f in folds], axis=0).tolist(),
        np.mean([f.log_likelihood for f in folds], axis=0).tolist(),
    )
    entries = tuple(AccuracyEntry(*place, a, x) for place, a, x in zip(ACCURACY, *means, strict=True))
    found = expected_accuracy(AccuracyTable(400, entries, folds if has_folds else ()))
    lines = [f"{n}x{m} at {bits} bits: {a:.6f}" for (n, m, bits), a in found.grid.items()]
    interval = found.interval(0.8)
    lines.append(f"{found.n_effective:.4f} examples, 80 % in {interval.low:.6f} to {interval.high:.6f}")
    name = "folds" if has_folds else "no_folds"
    golden(f"guards/sti_accuracy_{name}.txt", "\n".join(lines) + "\n")
