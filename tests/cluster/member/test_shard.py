"""A device's side of a partition: what it compiles and holds, and that a run can move between plans."""

import numpy as np
import pytest

from pliant.cluster.member.compiled_parts import CompiledPart, CompiledParts
from pliant.cluster.member.shard import ModelShards, Shard
from pliant.errors import InputError
from pliant.ir.partition import Partition, Share
from pliant.ir.program import Compute, Exchange, TensorPart
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.plan.split.activation_bytes import activation_bytes
from pliant.plan.split.split_program import split as program_of
from pliant.plan.split.stage_graphs import graph_part, weight_bytes
from pliant.plan.split.stages import stages
from tests.cluster.sources import RandomSource, feeds, random_source
from tests.plan.splits import MODES, bert, partition, problem

SPEC = bert(48, 3, 96, 3)
TOLERANCE = 1e-4


@pytest.fixture
def shards(library: Library, pool: ThreadPool) -> ModelShards:
    return ModelShards("a", random_source(SPEC), library, pool)


def two(heads: int, rows: int) -> Partition:
    return Partition("ws", "a", (Share("a", heads, rows), Share("b", 3 - heads, 9 - rows)), 9)


def run_alone(shard: Shard, partition: Partition, layers: range) -> None:
    """The steps of some layers, all of which are this device's."""
    for step in program_of(SPEC, partition).steps:
        if isinstance(step.work, Compute) and step.work.device == "a" and step.work.layer in layers:
            shard.compute(0, step.work)


def test_other_rows_need_no_other_weights(shards: ModelShards) -> None:
    """Bandwidth drifts more often than anything else: rows are moved without loading."""
    assert shards.prepare(two(2, 5)).loaded.n_bytes > 0
    assert shards.prepare(two(2, 3)).loaded.n_bytes == 0


def test_other_heads_need_their_own_weights_only(shards: ModelShards) -> None:
    """What the new heads need is loaded; the row-wise part, most of a layer, stays."""
    whole = shards.prepare(two(2, 5))
    changed = shards.prepare(two(1, 5))
    assert 0 < changed.loaded.n_bytes < whole.loaded.n_bytes / 4


def test_weights_that_no_plan_reads_are_let_go(shards: ModelShards) -> None:
    """A device switches modes because its memory is short."""
    shards.prepare(two(2, 5))
    later = shards.prepare(two(1, 5))
    assert shards.weight_bytes > later.weight_bytes
    shards.keep(later)
    assert shards.weight_bytes == later.weight_bytes
    shards.keep()
    assert shards.weight_bytes == 0


def test_weights_take_what_was_planned(shards: ModelShards) -> None:
    """The planner counts float32; packed, a product's columns are filled up to whole vectors of 16."""
    partition = Partition("1d", "a", (Share("a", 3, 9, 96), Share("b")), 9)
    assert shards.prepare(partition).weight_bytes == weight_bytes(SPEC, partition)["a"]


@pytest.mark.parametrize("seed", range(24))
def test_activations_take_what_was_planned(seed: int, library: Library, pool: ThreadPool) -> None:
    """On every device, in every mode and family; a plan of 3 rows or less has fewer gaps between rows."""
    spec, split = problem(seed)
    tokens = int(np.random.default_rng(seed).integers(1, 200))
    split = partition(spec, split.mode, len(split.devices), tokens, seed)
    planned = activation_bytes(spec, split)
    for device in split.devices:
        made = ModelShards(device, random_source(spec), library, pool).prepare(split)
        is_used = device in (*split.participants, split.primary)
        assert planned[device] == (made.activation_bytes if is_used else 0)
        assert made.activation_bytes <= made.arena_bytes


def test_gaps_between_rows_are_planned(library: Library, pool: ThreadPool) -> None:
    """Rows of 4 KB have gaps in a product's result, unless they are fewer than 4."""
    spec = bert(32, 2, 1024, 1)
    for tokens in (2, 5, 40):
        alone = Partition("ws", "a", (Share("a", 2, tokens),), tokens)
        made = ModelShards("a", random_source(spec), library, pool).prepare(alone)
        spare = activation_bytes(spec, alone)["a"] - made.activation_bytes
        assert spare == (0 if tokens > 3 else 64 * tokens)


def test_a_plan_for_the_rest_of_a_run_loads_the_rest(shards: ModelShards) -> None:
    """Time to load counts against a new plan; layers that have run are not needed for it."""
    late = shards.prepare(two(2, 5), first=2)
    assert shards.prepare(two(2, 5)).loaded.n_bytes == 2 * late.loaded.n_bytes


def test_a_part_is_compiled_once_for_all_layers(library: Library, pool: ThreadPool) -> None:
    """24 equal layers must not take 24 times as long to prepare."""
    forms = CompiledParts(random_source(SPEC), library, pool)
    partition = two(2, 5)
    (attend,) = (s for s in stages(SPEC, partition, 0) if s.device == "a" and s.kind == "attend")
    compiled = forms.compiled(graph_part(SPEC, partition, attend))
    assert forms.compiled(graph_part(SPEC, partition, attend)) is compiled
    first, last = forms.weights(compiled, 0), forms.weights(compiled, 2)
    assert first.keys() == last.keys()
    assert all(not np.array_equal(first[name], last[name]) for name in first)


def test_parts_of_lengths_long_past_are_let_go(
    library: Library, pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service sees inputs of every length: memory must not grow with them."""
    monkeypatch.setattr("pliant.cluster.member.compiled_parts.MOST_COMPILED", 2)
    forms = CompiledParts(random_source(SPEC), library, pool)

    def compiled(tokens: int) -> CompiledPart:
        whole = Partition("ws", "a", (Share("a", 3, tokens), Share("b")), tokens)
        (attend,) = (s for s in stages(SPEC, whole, 0) if s.device == "a" and s.kind == "attend")
        return forms.compiled(graph_part(SPEC, whole, attend))

    first, second = compiled(3), compiled(4)
    assert compiled(3) is first
    compiled(5)
    assert compiled(3) is first
    assert compiled(4) is not second


def test_compiling_reads_no_weight(library: Library, pool: ThreadPool) -> None:
    """A form lives as long as the device: a layer that it was compiled on would stay in memory twice."""
    forms = CompiledParts(RandomSource(SPEC), library, pool)
    for mode in MODES:
        p = partition(SPEC, mode, 2, 9, seed=5)
        for stage in stages(SPEC, p, 0):
            forms.compiled(graph_part(SPEC, p, stage))
    assert forms.weight_bytes == 0


def test_layers_may_run_under_different_plans(shards: ModelShards) -> None:
    """A segment boundary is where a cluster changes its mode: only `x` crosses it."""
    stationary = Partition("ws", "a", (Share("a", 3, 9), Share("b")), 9)
    tiled = Partition("1d", "a", (Share("a", 3, 9, 96), Share("b")), 9)
    x = feeds(SPEC, 9)["given"]
    before, after = shards.prepare(stationary), shards.prepare(tiled, first=1)
    before.state(0)[...] = x
    run_alone(before, stationary, range(1))
    after.state(1)[...] = before.state(1)
    run_alone(after, tiled, range(1, 3))
    reference = random_source(SPEC).reference(x)
    np.testing.assert_allclose(after.state(3), reference, atol=TOLERANCE)


def test_a_layer_can_be_repeated(shards: ModelShards) -> None:
    """After a fault the segment runs again from what entered it, which must still stand."""
    partition = Partition("ws", "a", (Share("a", 3, 9), Share("b")), 9)
    shard = shards.prepare(partition)
    shard.state(1)[...] = feeds(SPEC, 9)["given"]
    run_alone(shard, partition, range(1, 2))
    once = shard.state(2).copy()
    shard.state(2)[...] = np.nan
    run_alone(shard, partition, range(1, 2))
    np.testing.assert_array_equal(shard.state(2), once)


def test_rows_travel_without_a_copy(shards: ModelShards) -> None:
    """What was made is sent from where it stands, and rows are received where they are read."""
    shard = shards.prepare(two(2, 5))
    sent = shard.view(Exchange("x.1", 5 * 48 * 4, "a", "b", TensorPart(0, 5, 0, 48)))
    assert np.shares_memory(sent, shard.state(1))
    assert sent.flags.c_contiguous
    came = shard.view(Exchange("attended", 5 * 16 * 4, "b", "a", TensorPart(0, 5, 32, 16)))
    assert came.shape == (5, 16)
    came[...] = 1.0
    made = shard.view(Exchange("attended", 4 * 32 * 4, "a", "b", TensorPart(5, 4, 0, 32)))
    assert made.flags.c_contiguous
    assert not np.shares_memory(made, came)


def test_a_step_that_was_not_given_here_is_refused(shards: ModelShards) -> None:
    """A primary and a worker that disagree about the partition must not compute on."""
    shard = shards.prepare(two(2, 5), first=1)
    with pytest.raises(InputError, match="does not hold"):
        shard.compute(4, Compute("attend", 0, 2, 9, "a"))
    with pytest.raises(InputError, match="does not hold"):
        shard.compute(4, Compute("attend_mix", 1, 2, 9, "a"))


def test_there_is_no_answer_before_the_head_has_run(shards: ModelShards) -> None:
    """An answer of an earlier run would be taken for this one's."""
    shard = shards.prepare(two(2, 5))
    shard.begin([PreparedInput(9, feeds(SPEC, 9))])
    with pytest.raises(InputError, match="no answer yet"):
        shard.answers()


def test_a_partition_of_strangers_is_refused(shards: ModelShards) -> None:
    """A device must find itself in the plan it is sent."""
    with pytest.raises(InputError, match="'a' is not a device"):
        shards.prepare(Partition("ws", "b", (Share("b", 3, 9),), 9))


def test_an_answer_outlasts_the_next_run(shards: ModelShards) -> None:
    """A reply is read after the next request has begun; feeds of another shape are refused before that."""
    alone = Partition("ws", "a", (Share("a", 3, 9),), 9)
    shard = shards.prepare(alone)
    answers = []
    for seed in (0, 1):
        with pytest.raises(InputError):
            shard.begin([PreparedInput(9, feeds(SPEC, 8, seed))])
        shard.begin([PreparedInput(9, feeds(SPEC, 9, seed))])
        with pytest.raises(InputError, match="no answer"):
            shard.answers()
        for step in program_of(SPEC, alone).steps:
            assert isinstance(step.work, Compute)
            shard.compute(0, step.work)
        answers += shard.answers()
    again = answers[0].copy()
    assert not np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], again)
