"""One bound of memory, split by the planner: within it, never worse for more, and refused with the least."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import BudgetError, InputError
from pliant.ir.cost import cost_table
from pliant.plan.plan import Plan
from pliant.run.submodel.plans.memory_split import MemoryOverhead, split_memory
from pliant.run.submodel.plans.submodel_planner import SessionOptions, SubmodelPlanner
from tests.plan.test_monotone import assert_never_worse
from tests.run.test_resident_weights import LENGTHS, OWN, random_planner, whole_bytes

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

OVERHEAD = MemoryOverhead(70_000, 30_000, OWN)
seeds = st.integers(0, 2**31)
times = st.floats(0.1, 2.0)


def bounded(planner: SubmodelPlanner, options: SessionOptions) -> Plan | None:
    """The plan for the planned length; None where the memory or the target allows none."""
    try:
        terms = split_memory(planner, options, OVERHEAD)
    except BudgetError:
        return None
    return planner.plan_resident(terms, arena_bytes=OVERHEAD.arena_bytes, fixed_bytes=OVERHEAD.fixed_bytes)[0]


def options_of(planner: SubmodelPlanner, whole_s: float, time: float, share: float) -> SessionOptions:
    memory = OVERHEAD.total_bytes + int(share * whole_bytes(planner.shape))
    return SessionOptions(time * whole_s + 2e-3, None, length=OWN, memory_bytes=memory)


@settings(max_examples=12, deadline=None)
@given(
    seed=seeds,
    is_measured=st.booleans(),
    time=times,
    share=st.floats(0.02, 0.6),
    growth=st.lists(st.floats(1.0, 1.3), min_size=1, max_size=3),
)
def test_more_memory_is_never_worse(
    seed: int, is_measured: bool, time: float, share: float, growth: list[float]
) -> None:
    """A user who gives more memory must not get a worse answer under the same target for it."""
    planner, whole_s = random_planner(seed, is_measured)
    plans = []
    for factor in (1.0, *growth):
        share *= factor
        plans.append(bounded(planner, options_of(planner, whole_s, time, share)))
    costs = cost_table(planner.profile, OWN, "p95")
    assert_never_worse(plans, planner.shape, costs, planner.accuracy and planner.accuracy.grid)


@settings(max_examples=10, deadline=None)
@given(seed=seeds, is_measured=st.booleans(), time=times, share=st.floats(0.0, 1.5))
def test_every_plan_of_a_session_stays_within_its_memory(
    seed: int, is_measured: bool, time: float, share: float
) -> None:
    """Also for inputs of other lengths and requests with other targets, over the buffer as it is."""
    planner, whole_s = random_planner(seed, is_measured)
    options = options_of(planner, whole_s, time, share)
    try:
        terms = split_memory(planner, options, OVERHEAD)
    except BudgetError:
        return
    plan, held = planner.plan_resident(terms)
    assert options.memory_bytes is not None
    assert plan.memory.total_bytes + OVERHEAD.total_bytes <= options.memory_bytes
    assert plan.meets_target
    for length in LENGTHS:
        for slower in (0.2, 1.0, 5.0):
            other = planner.plan(replace(terms, target_s=slower * terms.target_s), length, held=held)
            assert other.memory.weight_bytes + OVERHEAD.total_bytes <= options.memory_bytes


@settings(max_examples=8, deadline=None)
@given(seed=seeds, is_measured=st.booleans(), time=times)
def test_the_least_that_an_error_names_is_the_least(seed: int, is_measured: bool, time: float) -> None:
    """It works, and a byte less does not: else users would have to search for it themselves."""
    planner, whole_s = random_planner(seed, is_measured)
    options = replace(options_of(planner, whole_s, time, 0.0), memory_bytes=0)
    with pytest.raises(BudgetError) as failure:
        split_memory(planner, options, OVERHEAD)
    named = re.search(r"Give at least (\d+) bytes", str(failure.value))
    if named is None:  # no memory would do
        assert "no submodel answers within" in str(failure.value)
        assert bounded(planner, options_of(planner, whole_s, time, 10.0)) is None
        return
    enough = int(named[1])
    assert bounded(planner, replace(options, memory_bytes=enough)) is not None
    assert bounded(planner, replace(options, memory_bytes=enough - 1)) is None


@settings(max_examples=8, deadline=None)
@given(seed=seeds, time=times, share=st.floats(0.1, 1.0), preload=st.floats(0.0, 1.0))
def test_a_preload_that_is_given_is_kept_to_or_refused(
    seed: int, time: float, share: float, preload: float
) -> None:
    """`preload` is the paper's term: with `memory` it is a part of it, not a wish."""
    planner, whole_s = random_planner(seed, is_measured=True)
    n_bytes = int(preload * whole_bytes(planner.shape))
    options = replace(options_of(planner, whole_s, time, share), preload_bytes=n_bytes)
    assert options.memory_bytes is not None
    if n_bytes + OVERHEAD.total_bytes > options.memory_bytes:
        with pytest.raises(InputError, match=f"at least {n_bytes + OVERHEAD.total_bytes} bytes"):
            split_memory(planner, options, OVERHEAD)
        return
    try:
        terms = split_memory(planner, options, OVERHEAD)
    except BudgetError:
        return
    assert terms.preload_bytes == n_bytes


def test_a_working_buffer_that_is_given_leaves_the_rest_to_the_preload_buffer() -> None:
    """The other of the paper's terms."""
    planner, whole_s = random_planner(5, is_measured=True)
    options = replace(options_of(planner, whole_s, 1.0, 0.8), working_bytes=50_000)
    terms = split_memory(planner, options, OVERHEAD)
    assert terms.preload_bytes == (options.memory_bytes or 0) - OVERHEAD.total_bytes - 50_000
    with pytest.raises(InputError, match="leave preload and working out"):
        split_memory(planner, replace(options, preload_bytes=terms.preload_bytes + 1), OVERHEAD)


def test_without_a_bound_nothing_changes() -> None:
    """`preload` and `working` alone mean what they did."""
    planner, _ = random_planner(5, is_measured=True)
    options = SessionOptions(0.1, 1000, length=OWN, working_bytes=50_000)
    assert split_memory(planner, options, OVERHEAD) == options
