"""What is known of devices and links over time, with measurements that are made up."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pliant.cluster.control.messages import Note
from pliant.cluster.lead.predict import predict
from pliant.cluster.watch.retry_backoff import FIRST_S
from pliant.cluster.watch.topology_tracker import TopologyTracker
from pliant.ir.capability import Capability
from pliant.ir.link import Link
from pliant.ir.program import Compute
from tests.cluster.fakes import FakeCluster, SyntheticSource, spread

DEVICE = Capability(1.0, 1e9, 1 << 30)
LINK = Link(1e-3, 5e7)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as made:
        yield made


@pytest.fixture
def surveys(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Whose links were measured, time after time."""
    found: list[set[str]] = []

    def links(primary: object, names: Collection[str]) -> dict[tuple[str, str], Link]:
        found.append(set(names))
        return {(a, b): LINK for a in names for b in names if a != b}

    monkeypatch.setattr("pliant.cluster.watch.topology_tracker.survey_links", links)
    monkeypatch.setattr(
        "pliant.cluster.watch.topology_tracker.survey_devices",
        lambda primary, source, tokens, names: dict.fromkeys(names, DEVICE),
    )
    return found


def picture_with_a(cluster: FakeCluster) -> TopologyTracker:
    """The picture of a cluster that worker `a` has joined."""
    known = TopologyTracker(cluster.primary, lambda: 10**9, is_measuring=True, on_event=lambda text: None)
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    return known


def test_links_of_who_joined_during_a_run_are_measured_before_the_next(
    cluster: FakeCluster, surveys: list[set[str]]
) -> None:
    """What the run showed of the other links is no measurement of theirs."""
    known = picture_with_a(cluster)
    known.measure(cluster.source, 7)
    partition = spread(cluster.spec, 7, "p", "pa")
    solved = predict(cluster.spec, partition, known.snapshot())
    cluster.add("b")
    cluster.primary.wait_for(2, 10.0)
    n_bytes = 4 * 7 * cluster.spec.hidden
    known.update(solved, {"p": Note(0.0, 1, {}, {"a": (n_bytes, 1.0)}), "a": Note(0.0, 1, {})})
    assert known.snapshot().links.link("a", "p").bandwidth_Bps < LINK.bandwidth_Bps
    known.measure(cluster.source, 7)
    known.measure(cluster.source, 7)
    assert surveys == [{"p", "a"}, {"p", "a", "b"}]
    assert known.snapshot().links.link("b", "p").bandwidth_Bps == LINK.bandwidth_Bps


def test_runs_do_without_newcomers_where_these_are_measured_beside_them(
    cluster: FakeCluster, surveys: list[set[str]]
) -> None:
    """A request waited 0.3 s while a worker that had come back was measured."""
    known = picture_with_a(cluster)
    assert known.newcomers(cluster.source) == set(), "nothing was measured yet"
    known.measure(cluster.source, 7)
    cluster.add("b")
    cluster.primary.wait_for(2, 10.0)
    assert known.newcomers(cluster.source) == set(), "only the next run would measure it"
    known.measure_beside(cluster.source, 7)
    cluster.add("c")
    cluster.primary.wait_for(3, 10.0)
    assert known.newcomers(cluster.source) == {"c"}
    known.measure(cluster.source, 7, known.newcomers(cluster.source))
    assert surveys == [{"p", "a"}, {"p", "a", "b"}]
    known.measure_beside(cluster.source, 7)
    assert known.newcomers(cluster.source) == set()
    assert surveys[2:] == [{"p", "a", "b", "c"}]


def test_a_worker_is_excluded_until_it_is_measured_for_ten_seconds_at_most(
    cluster: FakeCluster, surveys: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is never idle did not use a new worker at all. If its measurement fails, it is excluded
    for as long again."""
    now_s = [0.0]
    known = TopologyTracker(cluster.primary, lambda: 10**9, is_measuring=True, on_event=lambda text: None)
    known.measure_beside(cluster.source, 7)
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    monkeypatch.setattr(cluster.primary, "clock", lambda: now_s[0])
    for at_s, excluded in ((0.0, {"a"}), (9.9, {"a"}), (10.0, set()), (10.1, {"a"}), (20.2, set())):
        now_s[0] = at_s
        assert known.newcomers(cluster.source) == excluded
    known.measure(cluster.source, 7)
    assert surveys == [{"p", "a"}]
    assert known.newcomers(cluster.source) == set()


def test_a_worker_is_new_to_a_model_alone(cluster: FakeCluster, surveys: list[set[str]]) -> None:
    """Runs of one model excluded a worker that only another model had not measured."""
    known = TopologyTracker(cluster.primary, lambda: 10**9, is_measuring=True, on_event=lambda text: None)
    other = SyntheticSource(cluster.spec, "other")
    known.measure_beside(cluster.source, 7)
    known.measure_beside(other, 7)
    cluster.add("a", ("made-up", "other"))
    cluster.primary.wait_for(1, 10.0)
    known.measure_beside(cluster.source, 7)
    known.measure(other, 7, known.newcomers(other))
    assert known.newcomers(cluster.source) == set()
    assert known.newcomers(other) == {"a"}
    assert known.here() == {"p", "a"}


def test_a_worker_that_was_left_out_as_slow_is_reconsidered_on_demand(
    cluster: FakeCluster, surveys: list[set[str]]
) -> None:
    """Its back-off is half a minute at first; a probe, which no request waits for, may try it at once."""
    known = picture_with_a(cluster)
    known.measure(cluster.source, 7)
    assert not known.reconsider()
    together = predict(cluster.spec, spread(cluster.spec, 7, "p", "pa"), known.snapshot())
    for _ in range(2):  # what is seen once may be a stall
        known.update(together, {name: Note(0.0, 1, {"attend": 1.0, "rest": 1.0}) for name in "pa"})
    slowed = known.snapshot().capabilities
    assert min(slowed[name].drift("attend") for name in "pa") > 5
    assert known.reconsider()
    after = known.snapshot().capabilities
    assert after["a"].drifts == ()
    assert after["p"].drifts == slowed["p"].drifts, "the primary has a part in every run"
    assert not known.reconsider()


@pytest.mark.parametrize(("slower_b", "expected"), [(1.0, 1.0), (1.13, 1.13), (3.0, 1.25)])
def test_an_unused_worker_keeps_the_drift_that_the_one_in_use_has_too(
    cluster: FakeCluster,
    surveys: list[set[str]],
    monkeypatch: pytest.MonkeyPatch,
    slower_b: float,
    expected: float,
) -> None:
    """Plans moved to and fro between equal workers that both ran slower than measured."""
    now_s = [0.0]
    monkeypatch.setattr(cluster.primary, "clock", lambda: now_s[0])
    known = picture_with_a(cluster)
    cluster.add("b")
    cluster.primary.wait_for(2, 10.0)
    known.measure(cluster.source, 8)

    def run(worker: str, factor: float) -> None:
        partition = spread(cluster.spec, 8, "p", f"p{worker}")
        solved = predict(cluster.spec, partition, known.snapshot())
        work = {kind: solved.cost.flops(Compute(kind, device=worker)) for kind in ("attend", "rest")}
        seconds = {kind: factor * DEVICE.seconds(kind, n) for kind, n in work.items()}
        for _ in range(3):
            known.update(solved, {worker: Note(0.0, 1 << 30, seconds)})

    run("a", 1.3)
    assert known.snapshot().capabilities["a"].drift("rest") == pytest.approx(1.3, rel=0.02)
    for _ in range(2):
        now_s[0] += FIRST_S
        run("b", slower_b)
        known.measure(cluster.source, 8)
    assert known.snapshot().capabilities["a"].drift("rest") == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("change", [{"n_threads": 8}, {"data_address": "tcp://127.0.0.1:9"}])
def test_a_worker_that_restarted_is_measured_again(
    cluster: FakeCluster, surveys: list[set[str]], monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """It may have more threads than before; its measurement was kept as long as the primary ran."""
    known, monitor = picture_with_a(cluster), cluster.primary.monitor
    known.measure_beside(cluster.source, 7)
    together = predict(cluster.spec, spread(cluster.spec, 7, "p", "pa"), known.snapshot())
    for _ in range(2):
        known.update(together, {name: Note(0.0, 1, {"attend": 1.0, "rest": 1.0}) for name in "pa"})
    slowed = known.snapshot().capabilities
    member = monitor.get("a")
    assert member is not None
    monitor.register("a", member.hello)
    known.measure(cluster.source, 7)
    assert known.snapshot().capabilities["a"].drifts == slowed["a"].drifts, "it only said Hello again"
    quicker = replace(DEVICE, frequency_Hz=8e9)
    monkeypatch.setattr(
        "pliant.cluster.watch.topology_tracker.survey_devices",
        lambda primary, source, tokens, names: dict.fromkeys(names, quicker),
    )
    monitor.register("a", msgspec.structs.replace(member.hello, **change))
    assert known.newcomers(cluster.source) == {"a"}
    known.measure(cluster.source, 7)
    assert known.newcomers(cluster.source) == set()
    after = known.snapshot().capabilities
    assert (after["a"].frequency_Hz, after["a"].drifts) == (8e9, ())
    assert after["p"].drifts == slowed["p"].drifts
    assert surveys == [{"p", "a"}, {"p", "a"}]


def test_links_of_a_worker_that_was_away_for_a_moment_are_not_measured_again(
    cluster: FakeCluster, surveys: list[set[str]]
) -> None:
    """After one short fault, the next answer waited until the links of all members were measured."""
    known, monitor = picture_with_a(cluster), cluster.primary.monitor
    cluster.add("b")
    cluster.primary.wait_for(2, 10.0)
    known.measure(cluster.source, 7)
    solved = predict(cluster.spec, spread(cluster.spec, 7, "p", "pa"), known.snapshot())
    member = monitor.get("b")
    assert member is not None
    monitor.mark_absent("b")
    n_bytes = 4 * 7 * cluster.spec.hidden
    known.update(solved, {"p": Note(0.0, 1, {}, {"a": (n_bytes, 1.0)}), "a": Note(0.0, 1, {})})
    monitor.register("b", member.hello)
    known.measure(cluster.source, 7)
    assert surveys == [{"p", "a", "b"}]
    links = known.snapshot().links
    assert links.link("a", "p").bandwidth_Bps < LINK.bandwidth_Bps
    assert links.link("b", "a").bandwidth_Bps == LINK.bandwidth_Bps


def test_links_are_measured_without_a_worker_that_was_not_measured_itself(
    cluster: FakeCluster, surveys: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may serve another primary: the others waited 12 s for its probes, and blamed one of themselves."""
    known, is_busy = picture_with_a(cluster), [True]
    cluster.add("b")
    cluster.primary.wait_for(2, 10.0)
    monkeypatch.setattr(
        "pliant.cluster.watch.topology_tracker.survey_devices",
        lambda primary, source, tokens, names: {n: DEVICE for n in names if not (is_busy[0] and n == "b")},
    )
    known.measure(cluster.source, 7)
    is_busy[0] = False
    known.measure(cluster.source, 7)
    assert surveys == [{"p", "a"}, {"p", "a", "b"}]
