"""The planner by invariant: budgets, AIBs against the simulator, and what more of anything gives."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pliant.errors import BudgetError
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.cost import CostTable, LayerCost, SpanState, latency, simulate
from pliant.ir.link import Link
from pliant.ir.program import Compute, Load
from pliant.plan.plan import Budget, Plan
from pliant.plan.submodel.preload_set import PreloadRule, held_bytes
from pliant.plan.submodel.prices import layer_seconds
from pliant.plan.submodel.search import OURS, PAPER, PlanOptions, plan
from pliant.plan.submodel.shape import StoreShape
from tests.plan.problems import random_problem

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

rngs = st.integers(0, 2**31).map(np.random.default_rng)
rules = st.sampled_from(["first", "shards", "planes", "base"])
# Built in the tests, not by hypothesis: beartype's checks draw random numbers.
options = st.fixed_dictionaries({
    "slack": st.sampled_from(["all", "none"]),
    "uses_lead": st.booleans(),
    "preload": rules,
    "allocate": st.sampled_from(["paper", "rows"]),
    "is_anytime": st.booleans(),
    "margin": st.sampled_from([0.0, 0.1]),
    "io_reserve": st.sampled_from([1.0, 3.0]),
})  # fmt: skip
Choices = dict[str, Any]


def planned(problem: tuple[StoreShape, CostTable, Budget, np.ndarray], how: PlanOptions) -> Plan:
    shape, costs, budget, importance = problem
    try:
        return plan(shape, costs, budget, importance, how)
    except BudgetError:
        assume(False)
        raise


@settings(max_examples=150, deadline=None)
@given(rng=rngs, choices=options)
def test_no_plan_exceeds_its_budget_in_simulation(rng: np.random.Generator, choices: Choices) -> None:
    """The promise of a plan: end to end within the target, the preload set within its buffer."""
    how = PlanOptions(**choices)
    shape, costs, budget, importance = random_problem(rng)
    p = planned((shape, costs, budget, importance), how)
    spans = simulate(p.program, costs, {"tokens": 8})
    assert costs.tokenise_s + latency(spans) <= budget.target_s * (1 - how.margin) + 1e-9
    assert costs.tokenise_s + latency(spans) <= p.latency_p95_s + 1e-9
    assert p.meets_target
    assert p.memory.preload_bytes == held_bytes(shape, np.array(p.held)) <= budget.preload_bytes
    assert min(p.aib_s) >= -1e-9


@settings(max_examples=150, deadline=None)
@given(rng=rngs, force=st.booleans(), is_anytime=st.booleans())
def test_aibs_are_non_negative_just_when_no_layer_waits(
    rng: np.random.Generator, force: bool, is_anytime: bool
) -> None:
    """STI's validity rule and the simulator say the same: AIB(k) >= 0 for all k <=> no compute step waits."""
    problem = random_problem(rng, interference=False)
    how = replace(PAPER, uses_lead=True, allocate="rows", is_anytime=is_anytime)
    p = planned(problem, how)
    # Without the compulsory stall that the planner granted, so that plans that wait occur as well.
    aib_s = np.array(p.aib_s) - p.slack_s
    assume(np.abs(aib_s).min() > 1e-8 or p.slack_s == 0)
    p = replace(p, window=p.n, latest_start_s=(None,) * p.n)
    spans = simulate(p.program, problem[1], {"tokens": 8})
    cpu = [s for s in spans if s.lane == "cpu"]
    waits = any(b.start_s > a.end_s + 1e-9 for a, b in pairwise(cpu))
    assert waits == bool((aib_s < -1e-9).any())


@settings(max_examples=80, deadline=None)
@given(rng=rngs, more=st.integers(0, 20000))
def test_more_preload_never_lowers_fidelity(rng: np.random.Generator, more: int) -> None:
    """Planes in memory are planes that need no IO: with reads of no latency, more buffer cannot hurt."""
    shape, costs, budget, importance = random_problem(rng, latency=False, interference=False)
    # Full fidelity costs more than any budget here, so that the greedy allocation is exact.
    shape = replace(shape, widths=(shape.n_slices,), full_bytes=10**9)
    costs = replace(costs, layers=tuple(r for r in costs.layers if r.width == shape.n_slices))
    less = planned((shape, costs, budget, importance), OURS)
    larger = Budget(budget.target_s, budget.preload_bytes + more)
    richer = plan(shape, costs, larger, importance)
    assert richer.n >= less.n
    if richer.n == less.n:
        assert richer.fidelity >= less.fidelity - 1e-9


@settings(max_examples=60, deadline=None)
@given(rng=rngs, choices=options)
def test_every_shard_reaches_its_bits_from_what_is_held_and_read(
    rng: np.random.Generator, choices: Choices
) -> None:
    """A plan's bits are a claim about planes in memory; base bits are those that do not depend on luck."""
    how = PlanOptions(**choices)
    p = planned(random_problem(rng), how)
    for k, load in enumerate(p.loads):
        for s in range(p.width):
            parts = {r.part for r in load.runs if r.first <= s < r.first + r.count}
            have = set(range(p.held[k][s])) | parts
            want = {6} if p.bits[k][s] == FULL_BITS else set(range(p.bits[k][s]))
            assert want <= have
            assert p.base_bits[k][s] >= 2
            assert p.base_bits[k][s] <= p.bits[k][s]
            if not how.is_anytime:
                assert p.base_bits[k][s] == p.bits[k][s]


SHAPE = StoreShape(6, 12, (3, 6, 9, 12), 18432, 294912, tuple(range(1, 7)))
COSTS = CostTable(
    tuple(LayerCost(m, 3e-4 * m, 3.3e-4 * m) for m in SHAPE.widths), Link(8e-5, 8e8), 2e-4, 2e-4, 1e-4
)
IMPORTANCE = np.random.default_rng(0).random((6, 12))


@pytest.mark.parametrize("how", [OURS, replace(PAPER, slack="all")])
def test_a_very_long_target_ends_at_the_full_model_at_full_fidelity(how: PlanOptions) -> None:
    """With time for everything nothing is given up."""
    p = plan(SHAPE, COSTS, Budget(10.0, 0), IMPORTANCE, how)
    assert (p.n, p.width) == (6, 12)
    assert set(sum(p.bits, ())) == {FULL_BITS}
    assert p.fidelity == 1


def test_a_buffer_that_holds_everything_leaves_nothing_to_read() -> None:
    """Issue 8: then nothing is read at run time, and the plan says so."""
    p = plan(SHAPE, COSTS, Budget(0.02, 10**9), IMPORTANCE)
    assert p.is_resident
    assert not any(isinstance(s.work, Load) for s in p.program.steps)
    assert any("nothing is read" in reason for reason in p.reasons)


def test_without_a_buffer_the_compulsory_stall_counts_in_the_target() -> None:
    """At |S| = 0 the first layer waits for its own load, and the target still holds (paper's slack of 0)."""
    p = plan(SHAPE, COSTS, Budget(0.02, 0), IMPORTANCE, PAPER)
    assert p.slack_s > 0
    assert p.wait_s > 0
    assert p.latency_p95_s <= 0.02


def test_an_infeasible_target_names_the_nearest_feasible_one_which_is_feasible() -> None:
    """The message must be of use: planning at the latency it names succeeds."""
    with pytest.raises(BudgetError, match=r"needs [\d.]+ ms") as caught:
        plan(SHAPE, COSTS, Budget(0.0005, 0), IMPORTANCE)
    nearest_s = float(str(caught.value).split("needs ")[1].split()[0]) / 1e3
    p = plan(SHAPE, COSTS, Budget(nearest_s, 0), IMPORTANCE)
    assert (p.n, p.width) == (1, 3)
    with pytest.raises(BudgetError):
        plan(SHAPE, COSTS, Budget(nearest_s - 1e-4, 0), IMPORTANCE)


def test_best_effort_gives_the_smallest_submodel_and_flags_it() -> None:
    """Asked to do what it can, it answers late rather than not at all, and says so."""
    p = plan(SHAPE, COSTS, Budget(0.0005, 0), IMPORTANCE, replace(OURS, best_effort=True))
    assert not p.meets_target
    assert (p.n, p.width) == (1, 3)
    assert any("cannot be met" in reason for reason in p.reasons)


def test_what_an_earlier_run_left_in_memory_frees_io_for_more_bits() -> None:
    """Back-to-back runs (STI 3.3): loaded shards are kept, and the freed IO raises fidelity."""
    budget = Budget(0.0165, 0)
    first = plan(SHAPE, COSTS, budget, IMPORTANCE)
    held = np.zeros((6, 12), dtype=np.int64)
    held[list(first.layers), : first.width] = [[min(b, 6) for b in row] for row in first.bits]
    second = plan(SHAPE, COSTS, budget, IMPORTANCE, held=held)
    assert (second.n, second.width) >= (first.n, first.width)
    assert second.fidelity > first.fidelity
    assert second.meets_target


def test_the_accuracy_grid_overrules_the_number_of_shards() -> None:
    """Where a smaller submodel was measured to answer better, it is taken."""
    grid = {(n, m, b): 0.8 for n in range(1, 7) for m in SHAPE.widths for b in (2, 6, 32)}
    grid |= {(4, 9, b): 0.9 for b in (2, 6, 32)}
    p = plan(SHAPE, COSTS, Budget(0.02, 200_000), IMPORTANCE, accuracy=grid)
    assert (p.n, p.width) == (4, 9)


@settings(max_examples=150, deadline=None)
@given(rng=rngs, factor=st.sampled_from([1.5, 3.0]), rule=rules)
def test_a_reserve_meets_the_target_even_when_io_slows_by_that_much(
    rng: np.random.Generator, factor: float, rule: PreloadRule
) -> None:
    """Anytime with `io_reserve` 3: at a third of the profiled bandwidth only refinements are lost."""
    shape, costs, budget, importance = random_problem(rng)
    p = planned((shape, costs, budget, importance), replace(OURS, io_reserve=factor, preload=rule))
    slow = replace(costs, disk=costs.disk.times(float(rng.uniform(1, factor))))
    spans = simulate(p.program, slow, {"tokens": 8})
    assert latency(spans) + costs.tokenise_s <= budget.target_s + 1e-9


@settings(max_examples=100, deadline=None)
@given(rng=rngs, factor=st.sampled_from([1.0, 2.0]))
def test_as_long_as_io_keeps_its_profile_no_refinement_is_lost(
    rng: np.random.Generator, factor: float
) -> None:
    """Latest starts protect the deadline; they must not cost fidelity when all goes to plan."""
    shape, costs, budget, importance = random_problem(rng)
    p = planned((shape, costs, budget, importance), replace(OURS, io_reserve=factor))
    spans = simulate(p.program, costs, {"tokens": 8})
    assert all(s.state is SpanState.RAN for s in spans)


def test_a_layer_starts_in_anytime_mode_before_the_deadline_can_be_missed() -> None:
    """Every latest start leaves the remaining layers time to end within the target."""
    p = plan(SHAPE, COSTS, Budget(0.02, 0), IMPORTANCE)
    layer_s = layer_seconds(COSTS, p.width, with_io=True)
    for k, latest_s in enumerate(p.latest_start_s):
        assert latest_s is not None
        end_s = COSTS.tokenise_s + latest_s + (p.n - k) * layer_s + COSTS.head_s
        assert end_s <= p.budget.target_s + 1e-9


def test_loads_never_run_further_ahead_than_the_window() -> None:
    """Working memory is per layer: a load waits until the layer `window` places before has run."""
    p = plan(SHAPE, COSTS, Budget(0.03, 0), IMPORTANCE)
    program = p.program
    spans = simulate(program, COSTS, {"tokens": 8})
    ends = {s.work.layer: spans[i].end_s for i, s in enumerate(program.steps) if isinstance(s.work, Compute)}
    order = [load.layer for load in p.loads]
    for span in spans:
        work = program.steps[span.step].work
        if isinstance(work, Load) and order.index(work.layer) >= p.window:
            assert span.start_s >= ends[order[order.index(work.layer) - p.window]] - 1e-12


def test_a_plan_turns_into_plain_values_for_json() -> None:
    """`plan --json` prints the whole plan."""
    p = plan(SHAPE, COSTS, Budget(0.02, 200_000), IMPORTANCE)
    value = msgspec.json.decode(msgspec.json.encode(p))
    assert value["bits"] == [list(row) for row in p.bits]
    assert value["spans"][0]["lane"] == "cpu"


def test_an_importance_of_another_shape_is_refused() -> None:
    """A manifest's importance that does not fit the store must not be silently cut."""
    with pytest.raises(BudgetError, match="importance has shape"):
        plan(SHAPE, COSTS, Budget(0.02, 0), np.ones((5, 12)))


@settings(max_examples=80, deadline=None)
@given(rng=rngs, choices=options, share=st.floats(0.02, 1.0))
def test_no_plan_reads_more_at_once_than_the_working_memory_holds(
    rng: np.random.Generator, choices: Choices, share: float
) -> None:
    """A window of layers at full fidelity is megabytes; with a bound it stays under it and in time."""
    how = PlanOptions(**choices)
    shape, costs, budget, importance = random_problem(rng)
    free = planned((shape, costs, budget, importance), how)
    limit = max(4096, int(share * free.memory.working_bytes))
    bounded = planned((shape, costs, replace(budget, working_bytes=limit), importance), how)
    assert bounded.memory.working_bytes <= limit
    assert bounded.meets_target
    assert costs.tokenise_s + latency(simulate(bounded.program, costs, {"tokens": 8})) <= (
        budget.target_s * (1 - how.margin) + 1e-9
    )
    if limit >= free.memory.working_bytes:
        assert replace(bounded, budget=budget, reasons=()) == replace(free, reasons=())


def test_a_working_memory_lowers_bits_and_the_plan_says_so() -> None:
    """Full fidelity needs megabytes in flight; at most 500 kB leave planes, not a smaller submodel."""
    free = plan(SHAPE, COSTS, Budget(0.0165, 200_000), IMPORTANCE)
    bounded = plan(SHAPE, COSTS, Budget(0.0165, 200_000, 800_000), IMPORTANCE)
    assert free.memory.working_bytes > 1_500_000
    assert bounded.memory.working_bytes <= 800_000
    assert (bounded.n, bounded.width) == (free.n, free.width)
    assert 0.9 < bounded.fidelity < free.fidelity
    assert "at most 800 KB" in str(bounded)


def test_a_working_memory_too_small_for_one_layer_is_refused() -> None:
    """Even best effort must not take memory that was not granted."""
    for how in (OURS, replace(OURS, best_effort=True)):
        with pytest.raises(BudgetError, match="working buffer of 50000 bytes does not hold"):
            plan(SHAPE, COSTS, Budget(0.02, 0, 50_000), IMPORTANCE, how)
    with pytest.raises(BudgetError, match="holds no read"):
        Budget(0.02, 0, 100)
