"""The baselines of STI's Table 4, against their rows of Table 6 and by what defines them."""

from collections.abc import Callable

import numpy as np
import pytest

from pliant.errors import BudgetError
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.cost import CostTable, LayerCost, latency, simulate
from pliant.ir.link import Link
from pliant.plan.plan import Budget, Plan
from pliant.plan.submodel.baseline import load_and_execute, preload_model, standard_pipeline
from pliant.plan.submodel.search import OURS, PlanOptions
from pliant.plan.submodel.shape import StoreShape

ALL = tuple(range(1, 13))
# Odroid-like: compute proportional to m; a full-fidelity layer's IO takes 3.6 times its compute (STI 2.2).
SHAPE = StoreShape(12, 12, ALL, 1, 32, ALL)
CPU = CostTable(tuple(LayerCost(m, 0.013 * m, 0.013 * m) for m in ALL), Link(0.0, 32 / (3.6 * 0.013)))
IMPORTANCE = np.ones((12, 12))


@pytest.mark.parametrize("target_s", [0.15, 0.2, 0.4, 1.0])
@pytest.mark.parametrize("bits", [2, 6, FULL_BITS])
def test_a_standard_pipeline_ends_in_time_and_the_next_larger_would_not(target_s: float, bits: int) -> None:
    """StdPL-X takes the largest submodel whose pipeline delay stays under the target."""
    p = standard_pipeline(SHAPE, CPU, Budget(target_s, 0), IMPORTANCE, bits)
    spans = simulate(p.program, CPU, {"tokens": 8})
    assert latency(spans) <= target_s + 1e-9
    assert {b for row in p.bits for b in row} == {bits}
    assert p.memory.preload_bytes == 0
    ours = preload_model(SHAPE, CPU, Budget(target_s, 0), IMPORTANCE, bits)
    assert p.n * p.width <= ours.n * ours.width


@pytest.mark.parametrize(("target_s", "expected"), [(0.15, (3, 3)), (0.2, (5, 3)), (0.4, (10, 3))])
def test_a_preloaded_model_runs_what_table_6_says(target_s: float, expected: tuple[int, int]) -> None:
    """Preload-full and Preload-6bit on Odroid in Table 6; the whole model counts as memory."""
    shape = StoreShape(12, 12, (3, 6, 9, 12), 1, 32, ALL)
    p = preload_model(shape, CPU, Budget(target_s, 0), IMPORTANCE, FULL_BITS)
    assert (p.n, p.width) == expected
    assert p.memory.preload_bytes == 144 * 32
    assert p.is_resident


@pytest.mark.parametrize("target_s", [0.15, 0.2, 0.4])
def test_load_and_execute_reads_all_before_it_computes_and_is_closest_to_the_target(target_s: float) -> None:
    """Load&Exec has no pipeline: IO and compute in sequence, at full fidelity, total nearest to T."""
    p = load_and_execute(SHAPE, CPU, Budget(target_s, 0), IMPORTANCE)
    spans = simulate(p.program, CPU, {"tokens": 8})
    last_read_s = max(s.end_s for s in spans if s.lane == "io")
    assert min(s.start_s for s in spans if s.lane == "cpu" and s.seconds > 0) >= last_read_s - 1e-12
    total_s = p.n * p.width * 0.013 * 4.6
    assert latency(spans) == pytest.approx(total_s)
    others = [n * m * 0.013 * 4.6 for n in ALL for m in ALL]
    assert abs(total_s - target_s) == pytest.approx(min(abs(t - target_s) for t in others))


def test_a_baseline_that_cannot_meet_its_target_says_what_it_can() -> None:
    """Like our own planner: an error that names the nearest target, or the smallest submodel when asked."""
    budget = Budget(0.02, 0)
    with pytest.raises(BudgetError, match=r"nearest feasible is 59\.8 ms"):
        standard_pipeline(SHAPE, CPU, budget, IMPORTANCE, FULL_BITS)
    p = standard_pipeline(SHAPE, CPU, budget, IMPORTANCE, FULL_BITS, PlanOptions(best_effort=True))
    assert (p.n, p.width, p.meets_target) == (1, 1, False)
    assert OURS.best_effort is False


def _grid(best: tuple[int, int]) -> dict[tuple[int, int, int], float]:
    """Larger submodels are more accurate, but `best` at 2 bits and more is above all others."""
    return {
        (n, m, k): 0.9 if (n, m) == best and k >= 2 else 0.6 + n * m / 1000 + k / 10000
        for n in ALL
        for m in ALL
        for k in (2, 6, FULL_BITS)
    }


@pytest.mark.parametrize(
    "system",
    [
        load_and_execute,
        lambda *job, **how: standard_pipeline(*job[:4], 6, *job[4:], **how),
        lambda *job, **how: preload_model(*job[:4], 6, *job[4:], **how),
    ],
    ids=["load&exec", "stdpl-6", "preload-6"],
)
def test_a_baseline_takes_the_most_accurate_submodel_in_time_when_a_grid_is_known(
    system: Callable[..., Plan],
) -> None:
    """A comparison gives every system the same knowledge: ours chooses by this grid, by the same function."""
    job = (SHAPE, CPU, Budget(0.4, 0), IMPORTANCE)
    largest = system(*job)
    assert (largest.n, largest.width) != (2, 1)
    chosen = system(*job, accuracy=_grid((2, 1)))
    assert (chosen.n, chosen.width) == (2, 1)
    assert chosen.expected_accuracy == pytest.approx(0.9)
    by_size = system(*job, PlanOptions(choose="size"), accuracy=_grid((2, 1)))
    assert (by_size.n, by_size.width) == (largest.n, largest.width)
    late = system(*job, accuracy=_grid((12, 12)))
    assert (late.n, late.width) != (12, 12)
