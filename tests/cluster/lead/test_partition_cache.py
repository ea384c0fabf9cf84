"""A partition found lately serves inputs of about that length, until what a search reads has changed."""

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.cluster.lead.choose_partition import make_chooser
from pliant.cluster.lead.partition_cache import PartitionCache
from pliant.cluster.lead.plan_distribution import select_recent
from pliant.cluster.lead.predict import predict
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.watch.adapt import Topology
from pliant.ir.capability import Capability, Drift, Interface, Links
from pliant.ir.partition import Partition, Share
from pliant.plan.split.activation_bytes import memory_bytes, whole_memory_bytes
from tests.cluster.fakes import SyntheticSource
from tests.plan.splits import bert, partition

SPEC = bert(384, 12, 1536, 6)
DEVICE = Capability(1.0, 1e9, 1 << 30)
LINKS = Links({name: Interface(1e8, 1e8) for name in "pab"})
PICTURE = Topology(dict.fromkeys("pab", DEVICE), LINKS)
HALF = Partition("ws", "p", (Share("p", 0, 0), Share("a", 6, 24), Share("b", 6, 16)), 40)


def drifted(factor: float, name: str = "a", kind: str = "rest") -> Topology:
    slower = replace(DEVICE, drifts=(Drift(kind, factor),))
    return replace(PICTURE, capabilities={**PICTURE.capabilities, name: slower})


class Clock:
    """Moments that tests choose."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


CLOCK = Clock()


def searched(
    found: PartitionCache,
    tokens: int,
    topology: Topology = PICTURE,
    now_s: float = 1.0,
    took_s: float = 0.0,
    *,
    may_pause: bool = True,
) -> bool:
    """Whether a partition of so many tokens takes a search, which takes `took_s`."""
    searches = []
    CLOCK.now_s = now_s

    def search() -> Partition:
        searches.append(tokens)
        CLOCK.now_s += took_s
        alone = Partition("ws", "p", (Share("p", 12, tokens),), tokens)
        return HALF.resize(tokens) if "b" in topology.capabilities else alone

    solved = found.get(SPEC, tokens, topology, search, may_pause=may_pause)
    assert (solved.partition.tokens, solved.topology) == (tokens, topology)
    return bool(searches)


def held(number: int, tokens: int, model: str = "model") -> ReadyPlan:
    alone = Partition("ws", "p", (Share("p", 4, tokens),), tokens)
    return ReadyPlan(number, SyntheticSource(bert(n_layers=1), model), alone, "fp32", cast(Any, None))


@pytest.fixture
def found() -> PartitionCache:
    known = PartitionCache(CLOCK)
    assert searched(known, 40, now_s=0.0)
    return known


def test_a_text_of_about_that_length_needs_no_search(found: PartitionCache) -> None:
    """Texts come in every length; a search takes as long as a short answer, which waits for it."""
    assert not any(searched(found, tokens) for tokens in (32, 39, 40, 50))


def test_nothing_stands_once_it_may_be_another(found: PartitionCache) -> None:
    """Devices that slow down, leave or come, memory that is short, time, other lengths, other models."""
    left = replace(PICTURE, capabilities=dict.fromkeys("pa", DEVICE))
    short = {**PICTURE.capabilities, "b": replace(DEVICE, free_bytes=1000)}
    for topology in (drifted(1.4), left, replace(PICTURE, capabilities=short)):
        assert searched(found, 40, topology)
    assert searched(found, 40), "there is memory again"
    assert not searched(found, 40, drifted(3.0, kind="head"))  # no layer feels it
    assert searched(found, 31)
    assert searched(found, 51)
    assert searched(found, 40, now_s=60.0)
    found.clear()
    assert searched(found, 40)


def test_memory_that_is_back_takes_a_search() -> None:
    """No time tells of it: with the devices as quick as before, a run would stay with its tiles."""
    known, whole = PartitionCache(lambda: 0.0), whole_memory_bytes(SPEC, 40)
    tiles = Partition("1d", "p", (Share("p", 0, 0), Share("a", 6, 24, 768), Share("b", 6, 16, 768)), 40)
    searches = []

    def search() -> Partition:
        searches.append(tiles)
        return tiles

    def is_searched(share: float) -> bool:
        b = replace(DEVICE, free_bytes=int(share * whole))
        topology = replace(PICTURE, capabilities={**PICTURE.capabilities, "b": b})
        before = len(searches)
        known.get(SPEC, 40, topology, search)
        return len(searches) > before

    assert [is_searched(share) for share in (0.7, 0.8, 1.0, 2.0)] == [True, False, True, False]


def test_a_partition_is_not_kept_for_lengths_that_it_has_no_memory_for() -> None:
    """A slightly longer input has its rows in proportion, and needs more memory for activations."""
    known, split = PartitionCache(lambda: 0.0), partition(SPEC, "ws", 3, 40, 1)
    names = dict(zip(split.devices, PICTURE.capabilities, strict=True))
    split = replace(
        split,
        primary=names[split.primary],
        shares=tuple(replace(one, device=names[one.device]) for one in split.shares),
    )
    need = memory_bytes(SPEC, split)
    devices = {n: replace(DEVICE, free_bytes=need[n]) for n in PICTURE.capabilities}
    topology, searches = replace(PICTURE, capabilities=devices), []

    def search() -> Partition:
        searches.append(split)
        return split

    for tokens in (40, 39, 32, 48):
        known.get(SPEC, tokens, topology, search)
        assert len(searches) == (2 if tokens == 48 else 1)


def test_searches_pause_while_what_was_found_does_about_as_well() -> None:
    """Searches took a tenth of a device's time, before short answers that waited for them."""
    known = PartitionCache(CLOCK)
    assert searched(known, 40, now_s=0.0, took_s=0.02)
    assert known.is_paused
    assert known.search_s == pytest.approx(0.02)
    near, far = (known.get(SPEC, n, PICTURE, lambda: pytest.fail("a search")) for n in (41, 60))
    assert (near.is_due, far.is_due) == (False, True)
    assert not any(searched(known, n, now_s=0.5) for n in (10, 31, 51, 160))
    assert not searched(known, 40, drifted(1.3), now_s=0.5)
    assert searched(known, 9, now_s=0.5), "no text of about that length"
    assert searched(known, 40, drifted(2.0), now_s=0.6), "a layer takes too long"
    left = replace(PICTURE, capabilities=dict.fromkeys("pa", DEVICE))
    assert searched(known, 40, left, now_s=0.6)
    assert searched(known, 100, left, now_s=0.6, may_pause=False, took_s=0.02)
    assert searched(known, 25, left, now_s=1.7), "the pause is over"


@given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 60), st.integers(1, 60))
def test_rows_of_another_length_are_in_proportion(seed: int, ranks: int, before: int, tokens: int) -> None:
    """Within a row, and nothing else changes: weights stay where they are."""
    for mode in ("ws", "1d", "2d"):
        one = partition(bert(), mode, ranks, before, seed)  # type: ignore[arg-type]
        other = one.resize(tokens)
        for was, share in zip(one.shares, other.shares, strict=True):
            assert abs(share.rows - was.rows * tokens / before) <= 1
            assert replace(share, rows=was.rows) == was
        assert replace(other, shares=one.shares, tokens=before) == one


@settings(max_examples=8, deadline=None)
@given(st.floats(0.2, 5.0), st.floats(0.2, 5.0), st.floats(1e6, 1e9), st.integers(32, 50))
def test_what_is_found_for_one_length_is_hardly_slower_at_another(
    a: float, b: float, bandwidth_Bps: float, tokens: int
) -> None:
    """Than what a search finds: by less, in the cost model, than lengths that are near differ by."""
    devices = {"p": DEVICE, "a": replace(DEVICE, cycles_per_flop=a), "b": replace(DEVICE, cycles_per_flop=b)}
    topology = Topology(devices, Links({name: Interface(bandwidth_Bps, bandwidth_Bps) for name in devices}))
    choose = make_chooser()
    taken, best = (
        predict(SPEC, one, topology).seconds
        for one in (
            choose(SPEC, 40, devices, topology.links, "p").resize(tokens),
            choose(SPEC, tokens, devices, topology.links, "p"),
        )
    )
    assert taken <= 1.25 * best


def test_members_hold_more_plans_of_short_inputs_than_of_long_ones() -> None:
    """Those used last; each takes memory by its rows."""
    short, long = [held(i, 20) for i in range(120)], [held(200 + i, 512) for i in range(9)]
    assert select_recent(short) == short[-96:]
    assert select_recent(long) == long[-4:]
    assert select_recent([*long, *short[:60]]) == [*long[-4:], *short[:60]]
    assert select_recent([]) == []


def test_batches_push_out_no_plan_of_a_short_text() -> None:
    """Sums of texts vary: after eight batches of 256 rows, each text alone prepared its plan again."""
    texts = [held(i, n) for i, n in enumerate(range(8, 48))]
    batches = [held(100 + i, 144 + 16 * (i % 8)) for i in range(40)]
    assert select_recent([*texts, *batches]) == [*texts, *batches[-9:]]


def test_members_hold_the_latest_plan_of_each_model() -> None:
    """With five models in turn, each request loaded its model's weights, though there was memory for all."""
    plans = [held(i, 512, f"model {i % 6}") for i in range(12)]
    assert select_recent(plans) == plans[-6:]
    seldom = held(12, 512, "seldom")
    assert select_recent([seldom, *plans]) == [seldom, *plans[-6:]]


@pytest.mark.parametrize(("is_free", "participants"), [(True, ("b",)), (False, ("a", "b"))])
def test_a_submodel_takes_the_whole_models_partition_or_one_of_its_devices(
    is_free: bool, participants: tuple[str, ...]
) -> None:
    """Without a search: in proportion, unless shares may be chosen and exchanges would take longer."""
    known = PartitionCache(lambda: 0.0, is_free=is_free)
    topology = replace(drifted(0.9, "b"), links=Links(PICTURE.links.interfaces, latency_s=0.1))

    def search() -> Partition:
        return HALF

    known.get(SPEC, 40, topology, search)
    part = SPEC.submodel(2, 3)
    found = known.get(part, 32, topology, lambda: pytest.fail("a search"))
    partition = found.partition
    assert (partition.tokens, partition.n_heads, partition.participants) == (32, 3, participants)
    assert found.program.segments[1:-1] == predict(part, partition, topology).program.segments[1:-1]
    assert len(found.program.segments) == 2 + 2
    if not is_free:
        assert [share.rows for share in partition.shares] == [0, 19, 13]
