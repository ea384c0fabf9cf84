"""What a session keeps in memory, and that it serves every length."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import BudgetError
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.cost import cost_table
from pliant.ir.link import Link
from pliant.plan.plan import Plan
from pliant.plan.submodel.accuracy import ExpectedAccuracy
from pliant.plan.submodel.preload_set import held_bytes
from pliant.plan.submodel.search import PAPER
from pliant.plan.submodel.shape import StoreShape
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import SessionOptions, SubmodelPlanner
from pliant.store.read import open_store
from tests.plan.problems import random_problem
from tests.plan.test_monotone import assert_never_worse, random_grid
from tests.run.conftest import paper_profile

LENGTHS = (16, 32, 64, 128)
OWN = 64
TEXTS = ("good", "the story was not good", " ".join(["good", "film"] * 11))


def random_planner(seed: int, is_measured: bool) -> tuple[SubmodelPlanner, float]:
    """A planner of a random store and device, and the seconds that the whole model computes at OWN."""
    rng = np.random.default_rng(seed)
    shape, costs, _, importance = random_problem(rng)
    slice_s = costs.layers[0].alone_s / costs.layers[0].width
    slower = costs.layers[0].busy_s / costs.layers[0].alone_s
    disk = Link(costs.disk.latency_s, costs.disk.bandwidth_Bps)
    paper = paper_profile(widths=shape.widths, layer_s=slice_s, disk=disk, lengths=LENGTHS)
    layers = tuple(
        replace(t, alone=t.alone.times(t.length / OWN), with_io=t.with_io.times(slower * t.length / OWN))
        for t in paper.layers
    )
    profile = replace(paper, layers=layers)
    measured = ExpectedAccuracy(random_grid(shape, rng), 500.0) if is_measured else None
    return SubmodelPlanner(shape, profile, importance, measured), slice_s * shape.n_layers * shape.n_slices


def whole_bytes(shape: StoreShape) -> int:
    return shape.n_layers * shape.n_slices * shape.full_bytes


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    is_measured=st.booleans(),
    time=st.floats(0.2, 2.0),
    share=st.floats(0.0, 1.5),
)
def test_memory_is_used_for_every_length_and_told_truly(
    seed: int, is_measured: bool, time: float, share: float
) -> None:
    """Never more than was granted; nothing is read as long as there is memory for it at full fidelity."""
    planner, whole_s = random_planner(seed, is_measured)
    n_bytes = int(share * whole_bytes(planner.shape))
    options = SessionOptions(time * whole_s + 2e-3, n_bytes, length=OWN)
    try:
        plan, held = planner.plan_resident(options)
    except BudgetError:
        return
    others = {n: planner.plan(options, n, held=held) for n in LENGTHS}
    kept = held_bytes(planner.shape, held)
    assert kept <= n_bytes
    assert {p.memory.preload_bytes for p in (plan, *others.values())} == {kept}
    if share >= 1:
        assert (held == FULL_BITS).all()
        assert all(p.is_resident and p.fidelity == 1 for p in (plan, *others.values()))
    if any(not p.is_resident for p in (plan, *others.values())):
        # What is left over is less than the next thing to hold, at most one shard's full fidelity.
        assert n_bytes - kept < planner.shape.full_bytes


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    is_measured=st.booleans(),
    growth=st.lists(st.tuples(st.floats(1.0, 1.3), st.floats(1.0, 1.5)), min_size=2, max_size=4),
    time=st.floats(0.1, 1.3),
    share=st.floats(0.0, 0.35),
    length=st.sampled_from(LENGTHS),
)
def test_more_memory_or_time_is_never_worse_at_any_length(
    seed: int,
    is_measured: bool,
    growth: list[tuple[float, float]],
    time: float,
    share: float,
    length: int,
) -> None:
    """Whichever length a session is opened for: what it keeps serves every length that its target allows."""
    planner, whole_s = random_planner(seed, is_measured)
    plans: list[Plan | None] = []
    for longer, larger in ((1.0, 1.0), *growth):
        time, share = time * longer, share * larger
        options = SessionOptions(time * whole_s + 2e-3, int(share * whole_bytes(planner.shape)), length=OWN)
        try:
            _, held = planner.plan_resident(options)
        except BudgetError:
            plans.append(None)
            continue
        plan = planner.plan(options, length, held=held)
        plans.append(plan if plan.meets_target else None)
    costs = cost_table(planner.profile, length, "p95")
    grid = None if planner.accuracy is None else planner.accuracy.grid
    assert_never_worse(plans, planner.shape, costs, grid)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    is_measured=st.booleans(),
    times=st.lists(st.floats(0.05, 3.0), min_size=2, max_size=4).map(sorted),
    share=st.floats(0.0, 1.5),
)
def test_with_the_same_memory_a_longer_target_is_never_worse_at_any_length(
    seed: int, is_measured: bool, times: list[float], share: float
) -> None:
    """A request with a target of its own runs over the buffer as it is."""
    planner, whole_s = random_planner(seed, is_measured)
    options = SessionOptions(2 * whole_s + 2e-3, int(share * whole_bytes(planner.shape)), length=OWN)
    _, held = planner.plan_resident(options)
    for length in LENGTHS:
        targets = [SessionOptions(t * whole_s + 1e-3, length=OWN) for t in times]
        plans = [planner.plan(target, length, held=held) for target in targets]
        in_time = [plan if plan.meets_target else None for plan in plans]
        costs = cost_table(planner.profile, length, "p95")
        grid = None if planner.accuracy is None else planner.accuracy.grid
        assert_never_worse(in_time, planner.shape, costs, grid)


def test_a_paper_plan_holds_what_it_wants_alone() -> None:
    """The baseline is as it was published: shards of the planned length, nothing beside them."""
    planner, whole_s = random_planner(3, is_measured=False)
    options = SessionOptions(whole_s, whole_bytes(planner.shape), length=OWN, plan=PAPER)
    plan, held = planner.plan_resident(options)
    mine = np.zeros_like(held)
    mine[list(plan.layers), : plan.width] = plan.held
    assert np.array_equal(held, mine)


@pytest.mark.parametrize("latency_s", [0.004, 0.006, 0.02, 10.0])
def test_a_model_that_fits_the_buffer_is_never_read_again(
    latency_s: float, tiny_store: Callable[..., Path], kernel_cache: Path
) -> None:
    """Much memory under a tight target was worse: the buffer held the planned length's plan alone."""
    path = tiny_store(n_layers=4, widths=(2, 4))
    options = SessionOptions(latency_s, 10**9, length=8, best_effort=True)
    with (
        open_store(path) as store,
        ElasticSession(store, paper_profile(), options, cache=kernel_cache) as session,
    ):
        for text in TEXTS:
            for latency in (None, 0.003, 0.01, 10.0):
                reply = session(text, latency=latency)
                assert reply.details.read_bytes == 0
                assert {bits for row in reply.details.bits for bits in row} == {FULL_BITS}
                assert reply.details.resident_weight_bytes <= 10**9
        assert session.plan.memory.preload_bytes == session.runner.weights.preload_bytes
        assert session(TEXTS[1], latency=10.0).details.submodel == (4, 4)


@pytest.mark.parametrize("preload", [0, 3000, 20_000, 60_000])
def test_the_buffer_never_holds_more_than_was_granted(
    preload: int, tiny_store: Callable[..., Path], kernel_cache: Path
) -> None:
    """And answers stay those of the bits that the reply names: see submodel/test_elastic_session.py."""
    options = SessionOptions(0.02, preload, length=8)
    with (
        open_store(tiny_store(n_layers=4, widths=(2, 4))) as store,
        ElasticSession(store, paper_profile(), options, cache=kernel_cache) as session,
    ):
        assert session.runner.weights.preload_bytes == session.plan.memory.preload_bytes <= preload
        for text in TEXTS:
            assert session(text).label is not None
