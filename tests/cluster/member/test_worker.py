"""What a worker promises whoever leads it: it serves one primary, and answers whatever goes wrong."""

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import numpy as np
import pytest

from pliant.cluster.control.messages import (
    AnyMessage,
    Bye,
    HelloRequest,
    MeasureRequest,
    PrepareFailure,
    PrepareRequest,
    PrepareSuccess,
    ReleaseRequest,
    SegmentFailure,
    SegmentRequest,
    Welcome,
)
from pliant.cluster.lead.lead_run import RunRecord
from pliant.cluster.lead.plan_distribution import PlanNotReadyError
from pliant.ir.partition import Partition
from pliant.models.encoder.encoder_source import EncoderSource
from tests.cluster.fakes import FakeCluster, FakeStageBuilder, FakeStageRunner, spread
from tests.cluster.lead.test_lead_run import TOLERANCE, once_at


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as made:
        yield made


def test_another_primary_cannot_make_a_worker_forget_the_plans_it_serves(cluster: FakeCluster) -> None:
    """It tells everybody it hears of; whoever serves another is not meant."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    worker = cluster.machines["a"].worker
    heard = threading.Event()

    def told() -> None:
        worker.handle_message("q", ReleaseRequest(()))
        worker.handle_message("q", MeasureRequest(7, "none", 4, ("a",), {}))  # answered after that
        assert heard.wait(20.0)

    q = cluster.wires.join("q")
    q.start(lambda peer, message: heard.set(), lambda peer: None)
    cluster.before["a"] = once_at(1, "attend", told)
    answer, wanted, led = cluster.run()
    np.testing.assert_allclose(answer, wanted, atol=TOLERANCE)
    assert isinstance(led, RunRecord)
    assert not led.faults
    q.close()


def test_a_worker_whose_primary_died_while_it_prepared_serves_the_next(cluster: FakeCluster) -> None:
    """What was prepared for the dead one is let go of."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    worker, answers = cluster.machines["a"].worker, SimpleQueue[AnyMessage]()
    q = cluster.wires.join("q")
    q.start(lambda peer, message: answers.put(message), lambda peer: None)
    begun, go_on = threading.Event(), threading.Event()

    def slowly(self: FakeStageBuilder, source: EncoderSource, partition: Partition) -> FakeStageRunner:
        begun.set()
        assert go_on.wait(20.0)
        return FakeStageRunner(self.name, source.spec, partition, self.before)

    wanted = PrepareRequest(1, "made-up", spread(cluster.spec, 7, "p", "pa"), "fp32", ("p", "a"), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeStageBuilder, "prepare", slowly)
        worker.handle_message("p", wanted)
        assert begun.wait(20.0)
        worker.handle_lost_peer("p")
        worker.handle_message("q", wanted)
        go_on.set()
        while not isinstance(answer := answers.get(timeout=20.0), PrepareSuccess | PrepareFailure):
            pass
    assert isinstance(answer, PrepareSuccess)
    q.close()


def test_whatever_goes_wrong_while_a_plan_is_prepared_is_said(cluster: FakeCluster) -> None:
    """An error that nobody thought of, too: the primary does not wait, and the worker works on."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)

    def odd(self: FakeStageBuilder, source: EncoderSource, partition: Partition) -> FakeStageRunner:
        if self.name == "a":
            raise ValueError("odd")
        return FakeStageRunner(self.name, source.spec, partition, self.before)

    partition = spread(cluster.spec, 7, "p", "pa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeStageBuilder, "prepare", odd)
        with pytest.raises(PlanNotReadyError, match="a: odd"):
            cluster.primary.plans.prepare(cluster.source, partition, "fp32")
    assert cluster.primary.plans.prepare(cluster.source, partition, "fp32")[0].partition is partition


def test_weights_of_a_plan_that_failed_to_be_prepared_are_freed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that could not connect to the others kept them until it served a primary again."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    kept, is_odd = SimpleQueue[tuple[str, int]](), [False]
    prepare = FakeStageBuilder.prepare

    def odd(self: FakeStageBuilder, source: EncoderSource, partition: Partition) -> FakeStageRunner:
        if self.name == "a" and is_odd[0]:
            raise ValueError("odd")
        return prepare(self, source, partition)

    monkeypatch.setattr(FakeStageBuilder, "prepare", odd)
    monkeypatch.setattr(FakeStageBuilder, "keep", lambda self, held: kept.put((self.name, len(held))))
    partition, plans = spread(cluster.spec, 7, "p", "pa"), cluster.primary.plans
    for n_held in range(2):
        is_odd[0] = True
        with pytest.raises(PlanNotReadyError, match="a: odd"):
            plans.prepare(cluster.source, partition, "fp32")
        assert kept.get(timeout=20.0) == ("a", n_held)
        is_odd[0] = False
        plans.prepare(cluster.source, partition, "fp32")


def test_a_worker_that_serves_no_primary_frees_what_it_is_told_to(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignored the request, as if it served another primary."""
    worker, kept = cluster.add("a").worker, SimpleQueue[tuple[str, int]]()
    monkeypatch.setattr(FakeStageBuilder, "keep", lambda self, held: kept.put((self.name, len(held))))
    worker.handle_message("p", ReleaseRequest(()))
    assert kept.get(timeout=20.0) == ("a", 0)


def test_a_worker_that_its_primary_forgot_frees_its_plans_and_serves_another(cluster: FakeCluster) -> None:
    """A pause is noticed by the primary alone, which counts on no plan of the worker any more."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    worker, answers = cluster.machines["a"].worker, SimpleQueue[AnyMessage]()
    q = cluster.wires.join("q")
    q.start(lambda peer, message: answers.put(message), lambda peer: None)
    partition = spread(cluster.spec, 7, "p", "pa")
    cluster.primary.plans.prepare(cluster.source, partition, "fp32")
    assert worker.status.n_plans == 1
    worker.handle_message("p", HelloRequest())
    worker.handle_message("q", PrepareRequest(1, "made-up", partition, "fp32", ("p", "a"), {}))
    while not isinstance(answer := answers.get(timeout=20.0), PrepareSuccess | PrepareFailure):
        pass
    assert isinstance(answer, PrepareSuccess)
    assert worker.status.n_plans == 1
    q.close()


def test_a_worker_closes_while_a_primary_leaves(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are handled on another thread: the set of primaries changed while it was iterated over."""
    machine = cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    send, said = machine.control.send, list[str]()

    def leave_at_bye(peer: str, message: AnyMessage) -> None:
        if isinstance(message, Bye):
            said.append(peer)
            machine.worker.handle_lost_peer(peer)
        send(peer, message)

    monkeypatch.setattr(machine.control, "send", leave_at_bye)
    machine.worker.handle_message("p", Welcome("1"))
    machine.worker.close()
    assert said == ["p"]


@pytest.mark.parametrize("lengths", [(3, 3), (8, -1), (7, 0), (1 << 62, 7)])
def test_texts_that_are_not_the_rows_of_the_plan_are_refused(
    cluster: FakeCluster, lengths: tuple[int, ...]
) -> None:
    """Kernels read the rows that they are told: a primary that lies must not make them read other memory."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    worker, answers = cluster.machines["a"].worker, SimpleQueue[AnyMessage]()
    q = cluster.wires.join("q")
    q.start(lambda peer, message: answers.put(message), lambda peer: None)

    def answer(kind: type[AnyMessage]) -> AnyMessage:
        while not isinstance(found := answers.get(timeout=20.0), kind):
            pass
        return found

    partition = spread(cluster.spec, 7, "q", "qa")
    worker.handle_message("q", PrepareRequest(1, "made-up", partition, "fp32", ("q", "a"), {}))
    answer(PrepareSuccess)
    worker.handle_message("q", SegmentRequest(0, 1, 1, ("a",), 1.0, lengths))
    failure = answer(SegmentFailure)
    assert isinstance(failure, SegmentFailure)
    assert "are not the plan's 7" in failure.reason
    q.close()
