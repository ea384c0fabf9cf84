"""A split model answers as the whole one does, and sends what was planned."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pliant.cluster.member.shard import Shard
from pliant.errors import InputError, LaneError
from pliant.ir.partition import Mode, Partition, Share
from pliant.ir.program import Compute, Exchange
from pliant.kernels.runtime.jit import Library
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.plan.partition.grid_solver import solve_grid
from pliant.plan.partition.partition_cost import to_partition
from pliant.plan.partition.problem import pose
from pliant.plan.split.split_program import split
from tests.cluster.in_process import run_local
from tests.cluster.sources import feeds, random_source
from tests.models.encoder.test_encoder_parts import SPECS
from tests.plan.clusters import cluster
from tests.plan.splits import MODES, partition

# Issue part 2: each mode equals the unsplit model to 1e-4 in float32; answers here are of order 1.
TOLERANCE = 1e-4


def check(name: str, p: Partition, library: Library) -> None:
    """The answer against float64 numpy, and the payload against the program."""
    source = random_source(SPECS[name])
    fed = feeds(source.spec, p.tokens)
    got = run_local(source, p, [PreparedInput(p.tokens, fed)], library)
    np.testing.assert_allclose(got.answers[0], source.reference(fed["given"]), atol=TOLERANCE)
    planned: dict[tuple[str, str], int] = {}
    for step in split(source.spec, p).steps:
        if isinstance(step.work, Exchange):
            key = step.work.src, step.work.dst
            planned[key] = planned.get(key, 0) + int(step.work.n_bytes)  # type: ignore[arg-type]
    sent = {(d, peer): t.sent_bytes for d, peers in got.traffic.items() for peer, t in peers.items()}
    came = {(peer, d): t.received_bytes for d, peers in got.traffic.items() for peer, t in peers.items()}
    assert {k: n for k, n in sent.items() if n} == planned
    assert {k: n for k, n in came.items() if n} == planned


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", SPECS)
def test_a_split_model_equals_the_whole(name: str, ranks: int, mode: Mode, library: Library) -> None:
    """Issue part 2: uneven shares, zeros, any primary; bytes counted are bytes planned."""
    check(name, partition(SPECS[name], mode, ranks, 7, 100 * ranks), library)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("ranks", "name"), [(4, "post-norm"), (5, "bottleneck"), (16, "pre-norm")])
def test_many_devices_equal_one(name: str, ranks: int, mode: Mode, library: Library) -> None:
    """Issue part 2: 4, 5 and 16 ranks, most of which get little or nothing of so small a model."""
    for seed in range(2):
        check(name, partition(SPECS[name], mode, ranks, 7, seed), library)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(SPECS)),
    ranks=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    lengths=st.lists(st.integers(1, 16), min_size=2, max_size=6),
)
def test_texts_that_run_together_are_answered_as_alone(
    mode: Mode, name: str, ranks: int, seed: int, lengths: list[int], library: Library
) -> None:
    """Issue 18, part 3: texts of different lengths without padding, whose borders lie inside the devices'
    shares of the rows; each attends to itself only."""
    source = random_source(SPECS[name])
    given_each = [feeds(source.spec, n, seed + i) for i, n in enumerate(lengths)]
    split_each = partition(source.spec, mode, ranks, sum(lengths), seed)
    inputs = [PreparedInput(n, one) for n, one in zip(lengths, given_each, strict=True)]
    got = run_local(source, split_each, inputs, library).answers
    for answer, one in zip(got, given_each, strict=True):
        np.testing.assert_allclose(answer, source.reference(one["given"]), atol=TOLERANCE)


def test_a_grid_that_was_chosen_answers_as_the_whole(library: Library) -> None:
    """Unequal devices without memory for all weights: groups by speed, blocks as memory allows."""
    spec = random_source(SPECS["post-norm"]).spec
    devices, links = cluster(2, 6)
    p = pose(spec, 7, devices, links, "d3")
    whole = p.sizes.tiled_head.each * spec.n_heads + p.sizes.tiled_column * spec.ffn
    plan, _ = solve_grid(replace(p, memory=np.full(6, 0.6 * whole)))
    chosen = to_partition(p, plan)
    assert chosen.mode == "2d"
    assert len(chosen.participants) > 1
    check("post-norm", chosen, library)


def test_a_device_that_fails_stops_the_others(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first error reaches the caller at once, not after everybody's patience with the one that failed."""

    def fails(shard: Shard, step: int, work: Compute, lengths: object) -> None:
        raise InputError(f"{work} cannot be done.")

    monkeypatch.setattr(Shard, "compute", fails)
    spec = SPECS["post-norm"]
    p = Partition("ws", "b", (Share("a", 2, 3), Share("b", 1, 4)), 7)
    with pytest.raises(LaneError, match="input") as failure:
        run_local(random_source(spec), p, [PreparedInput(7, feeds(spec, 7))], library)
    assert isinstance(failure.value.__cause__, InputError)
