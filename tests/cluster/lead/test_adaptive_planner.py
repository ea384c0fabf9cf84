"""Which plan a run begins with, and when a better one is searched."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from pliant.cluster.control.messages import Note
from pliant.cluster.lead.adaptive_planner import AdaptivePlanner
from pliant.cluster.lead.lead_run import RunRecord
from pliant.cluster.lead.margin import Margins
from pliant.cluster.lead.predict import Prediction
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.session.cluster_details import details_of
from pliant.ir.capability import Capability, Interface
from pliant.ir.partition import Partition, Share
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.activation_bytes import memory_bytes, whole_memory_bytes
from tests.cluster.fakes import FakeCluster, FakeStageBuilder, spread
from tests.plan.splits import bert


@dataclass
class Searches:
    """A clock, and searches that take 20 ms by it: the pause after each is a second."""

    now_s: float = 0.0
    lengths: list[int] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def choose(self, spec: EncoderSpec, tokens: int, *_: Any) -> Partition:
        self.now_s += 0.02
        self.lengths.append(tokens)
        return Partition("ws", "p", (Share("p", spec.n_heads, tokens),), tokens)


def split(spec: EncoderSpec, tokens: int, devices: Collection[str]) -> Partition:
    """A partition over `p` and `a` in halves, or `p` alone."""
    if "a" not in devices:
        return Partition("ws", "p", (Share("p", spec.n_heads, tokens),), tokens)
    heads, rows = spec.n_heads // 2, tokens // 2
    shares = Share("p", heads, rows), Share("a", spec.n_heads - heads, tokens - rows)
    return Partition("ws", "p", shares, tokens)


def record(held: ReadyPlan, solved: Prediction, factor: float) -> RunRecord:
    """The record of a run that took `factor` times as long as predicted."""
    spans = [replace(span, start_s=factor * span.start_s, end_s=factor * span.end_s) for span in solved.spans]
    plans = (held,) * held.n_segments
    return RunRecord((np.zeros(1),), factor * solved.seconds, plans, (), solved.program, tuple(spans), ())


@pytest.fixture
def quick_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers take much longer than their exchanges, and loading much longer than a run."""
    known = "pliant.cluster.watch.topology_tracker.UNKNOWN"
    monkeypatch.setattr(known, Capability(0.1, 2e9, 1 << 40))
    monkeypatch.setattr(f"{known}_LINK", Interface(1e13, 1e13))
    monkeypatch.setattr(f"{known}_LATENCY_S", 0.0)


@pytest.mark.usefixtures("quick_links")
def test_a_change_that_does_not_pay_inside_a_run_is_made_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its weights would have loaded for longer than the run's last layers took: no later run had it."""
    searches = Searches()

    def choose(spec: EncoderSpec, tokens: int, devices: Collection[str], *_: Any) -> Partition:
        searches.choose(spec, tokens)
        return split(spec, tokens, devices)

    with FakeCluster() as cluster:
        monkeypatch.setattr(cluster.primary, "clock", searches.clock)
        with AdaptivePlanner(cluster.primary, lambda: 10**9, choose) as planner:
            alone = planner.begin(cluster.source, 8, ())
            assert alone.partition.participants == ("p",)
            cluster.add("a")
            cluster.primary.wait_for(1, 10.0)
            assert planner.next_plan(2, alone, alone, {}) is alone
            planner.wait_for_solution()
            assert planner.next_plan(3, alone, alone, {}) is alone, "loading takes longer"
            assert len(searches.lengths) == 2
            searches.now_s += 5.0
            assert planner.begin(cluster.source, 8, ()).partition.participants == ("p", "a")


@pytest.mark.usefixtures("quick_links")
def test_held_plans_are_reconsidered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache was cleared, but a plan that was held was not compared with a new one."""
    searches, is_shared = Searches(), False

    def choose(spec: EncoderSpec, tokens: int, devices: Collection[str], *_: Any) -> Partition:
        alone = searches.choose(spec, tokens)
        return split(spec, tokens, devices) if is_shared else alone

    with FakeCluster() as cluster:
        cluster.add("a")
        cluster.primary.wait_for(1, 10.0)
        monkeypatch.setattr(cluster.primary, "clock", searches.clock)
        with AdaptivePlanner(cluster.primary, lambda: 10**9, choose) as planner:
            alone = planner.begin(cluster.source, 8, ())
            is_shared = True  # as after a split that was slow once
            assert planner.begin(cluster.source, 8, ()) is alone
            assert not planner.reconsider()
            assert planner.begin(cluster.source, 8, ()).partition.participants == ("p", "a")
            planner.begin(cluster.source, 8, ())
            assert len(searches.lengths) == 2


@pytest.mark.usefixtures("quick_links")
@pytest.mark.parametrize("is_shared_still", [False, True])
def test_plans_of_a_kind_in_doubt_are_searched_once_more(
    monkeypatch: pytest.MonkeyPatch, is_shared_still: bool
) -> None:
    """A split that is predicted to be quicker, but must save more than it does, stayed in use."""
    searches, is_shared = Searches(), True

    def choose(spec: EncoderSpec, tokens: int, devices: Collection[str], *_: Any) -> Partition:
        alone = searches.choose(spec, tokens)
        return split(spec, tokens, devices) if is_shared else alone

    with FakeCluster() as cluster:
        cluster.add("a")
        cluster.primary.wait_for(1, 10.0)
        monkeypatch.setattr(cluster.primary, "clock", searches.clock)
        with AdaptivePlanner(cluster.primary, lambda: 10**9, choose) as planner:
            shared = planner.begin(cluster.source, 8, ())
            is_shared = is_shared_still
            searches.now_s += 5.0
            planner.doubt("1d")
            assert planner.begin(cluster.source, 8, ()) is shared, "of another kind"
            assert len(searches.lengths) == 1
            planner.doubt("ws")
            found = planner.begin(cluster.source, 8, ())
            assert (found is shared) == is_shared_still
            assert planner.begin(cluster.source, 8, ()) is found
            assert found.partition.participants == (("p", "a") if is_shared_still else ("p",))
            assert len(searches.lengths) == 2


def test_earlier_lengths_are_freed_for_the_activations_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """All plans share their weights; together, the held ones never need more memory than there is."""
    searches = Searches()
    with FakeCluster() as cluster:
        monkeypatch.setattr(cluster.primary, "clock", searches.clock)
        spec, lengths = cluster.spec, (8, 9, 10, 12)
        plans = {n: split(spec, n, ()) for n in lengths}
        room = memory_bytes(spec, *(plans[n] for n in lengths[:3]))["p"]
        with AdaptivePlanner(cluster.primary, lambda: room, lambda _, n, *__: plans[n]) as planner:
            for n in lengths[:3]:
                planner.begin(cluster.source, n, ())
            assert [held.partition.tokens for held in planner.held] == [8, 9, 10]
            last = planner.begin(cluster.source, 12, ())
            assert planner.held[-1] is last
            assert planner.held[0].partition.tokens > 8
            assert len(planner.held) > 1, "it fits beside one of them"
            assert memory_bytes(spec, *(held.partition for held in planner.held))["p"] <= room


@pytest.mark.usefixtures("quick_links")
def test_a_partition_that_is_held_is_not_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that alternate between two devices were loaded anew for every length at each change."""
    searches, is_shared = Searches(), True

    def choose(spec: EncoderSpec, tokens: int, devices: Collection[str], *_: Any) -> Partition:
        alone = searches.choose(spec, tokens)
        return split(spec, tokens, devices) if is_shared else alone

    with FakeCluster() as cluster:
        cluster.add("a")
        cluster.primary.wait_for(1, 10.0)
        monkeypatch.setattr(cluster.primary, "clock", searches.clock)
        with AdaptivePlanner(cluster.primary, lambda: 10**9, choose) as planner:
            shared = planner.begin(cluster.source, 8, ())
            is_shared = False
            planner.doubt("ws")
            searches.now_s += 5.0
            assert planner.begin(cluster.source, 8, ()) is not shared
            is_shared = True
            planner.reconsider()
            searches.now_s += 5.0
            assert planner.begin(cluster.source, 8, ()) is shared
            assert planner.begin(cluster.source, 8, ()) is shared
            assert len(searches.lengths) == 3


@pytest.mark.usefixtures("quick_links")
def test_runs_that_took_longer_than_predicted_put_their_plan_in_doubt() -> None:
    """The saving that a split needs was read at the next search alone, which a held plan does not have."""
    margins = Margins()

    def choose(spec: EncoderSpec, tokens: int, devices: Collection[str], *_: Any) -> Partition:
        return split(spec, tokens, devices if margins.least_gain["ws"] < 0.5 else ())

    with FakeCluster() as cluster:
        cluster.add("a")
        cluster.primary.wait_for(1, 10.0)
        with AdaptivePlanner(cluster.primary, lambda: 10**9, choose) as planner:
            for _ in range(2):
                held = planner.begin(cluster.source, 8, ())
                assert held.partition.participants == ("p", "a")
                details_of(record(held, planner.inputs_of(held).solved, 3.0), planner, margins)
            assert planner.begin(cluster.source, 8, ()).partition.participants == ("p",)


@pytest.mark.parametrize(("is_inside", "workers"), [(False, ""), (True, ""), (True, "a")])
def test_weights_are_float32_again_once_memory_is_back(
    monkeypatch: pytest.MonkeyPatch, is_inside: bool, workers: str
) -> None:
    """Bits do not change the predicted times, so that a plan in codes was kept for good."""
    searches = Searches()
    with FakeCluster(bert(hidden=64, heads=4, ffn=256, n_layers=4)) as cluster:
        for name in workers:
            cluster.add(name)
        cluster.primary.wait_for(len(workers), 10.0)
        enough = whole_memory_bytes(cluster.spec, 8)
        free_bytes = [enough // 2]

        def choose(spec: EncoderSpec, tokens: int, devices: Mapping[str, Capability], *_: Any) -> Partition:
            bits = () if devices["p"].free_bytes >= enough else (2,) * spec.n_layers
            return replace(searches.choose(spec, tokens), bits=bits)

        monkeypatch.setattr(cluster.primary, "clock", searches.clock)
        with AdaptivePlanner(cluster.primary, lambda: free_bytes[0], choose) as planner:
            coded = planner.begin(cluster.source, 8, ())
            assert coded.partition.bits == (2,) * cluster.spec.n_layers
            assert planner.begin(cluster.source, 8, ()) is coded
            free_bytes[0] = 2 * enough
            if is_inside:
                assert planner.next_plan(2, coded, coded, {"p": Note(0.0, 2 * enough, {})}) is coded
                planner.wait_for_solution()
                assert planner.next_plan(3, coded, coded, {}) is coded, "the run would not be quicker"
            searches.now_s += 5.0
            float32 = planner.begin(cluster.source, 8, ())
            assert float32.partition.bits == ()
            assert planner.begin(cluster.source, 8, ()) is float32
            free_bytes[0] = enough // 2
            searches.now_s += 5.0
            assert planner.begin(cluster.source, 8, ()).partition.bits == coded.partition.bits
            free_bytes[0] = 2 * enough
            searches.now_s += 5.0
            assert planner.begin(cluster.source, 8, ()) is not float32


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_plan_that_one_member_cannot_hold_stays_nowhere(
    monkeypatch: pytest.MonkeyPatch, is_inside: bool
) -> None:
    """The others kept its weights until the next plan was dropped, and the plan of a run must stay."""
    device = Capability(1.0, 1e6, 1 << 40)
    monkeypatch.setattr("pliant.cluster.watch.topology_tracker.UNKNOWN", device)
    prepare = FakeStageBuilder.prepare

    def fail_on_b(builder: FakeStageBuilder, *given: Any) -> Any:
        if builder.name == "b":
            raise MemoryError
        return prepare(builder, *given)

    def choose(spec: EncoderSpec, tokens: int, devices: Collection[str], *_: Any) -> Partition:
        return spread(spec, tokens, "p", devices)

    monkeypatch.setattr(FakeStageBuilder, "prepare", fail_on_b)
    with FakeCluster() as cluster:
        worker = cluster.add("a").worker
        cluster.primary.wait_for(1, 10.0)
        with AdaptivePlanner(cluster.primary, lambda: 10**9, choose) as planner:
            current = planner.begin(cluster.source, 8, ()) if is_inside else None
            cluster.add("b")
            cluster.primary.wait_for(2, 10.0)
            if current is not None:
                planner.next_plan(2, current, current, {})
                planner.wait_for_solution()
                assert planner.next_plan(3, current, current, {}) is current
            held = planner.begin(cluster.source, 9, ())
            assert "b is excluded: MemoryError" in cluster.events
            assert held.partition.participants == ("p", "a")
            assert worker.status.n_plans == (2 if is_inside else 1)


def test_a_model_without_plans_is_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its input and head were loaded to be measured."""
    kept: list[Collection[object]] = []
    monkeypatch.setattr(FakeStageBuilder, "keep", lambda self, holders: kept.append(holders))
    with FakeCluster() as cluster:
        with AdaptivePlanner(cluster.primary, lambda: 10**9, Searches().choose) as planner:
            planner.forget(cluster.source)
        assert kept == [[]]


def test_a_postponed_search_is_made_once_after_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan based on a partition for another length was kept for ever, or was searched again every time."""
    searches = Searches()
    with FakeCluster() as cluster:
        monkeypatch.setattr(cluster.primary, "clock", searches.clock)
        with AdaptivePlanner(cluster.primary, lambda: 10**9, searches.choose) as planner:
            for now_s, tokens, lengths in (
                (0.0, 40, [40]),
                (0.5, 20, [40]),
                (0.6, 20, [40]),
                (2.0, 20, [40, 20]),
                (2.1, 20, [40, 20]),
                (30.0, 20, [40, 20]),
                (60.0, 20, [40, 20]),
            ):
                searches.now_s = now_s
                held = planner.begin(cluster.source, tokens, ())
                assert (held.partition.tokens, searches.lengths) == (tokens, lengths)
