"""Runs over workers that join, fail, lie and return, on queues instead of sockets."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from pliant.cluster.control.messages import (
    AnyMessage,
    Hello,
    MeasureReply,
    PrepareRequest,
    PrepareSuccess,
    SegmentFailure,
    SpanReport,
    StatusUpdate,
    UnreadableMessage,
)
from pliant.cluster.lead.lead_run import RunRecord
from pliant.cluster.lead.plan_distribution import PlanNotReadyError
from pliant.cluster.lead.primary import Primary
from pliant.cluster.member.ready_plan import ReadyPlan, lower_partition
from pliant.cluster.net.comm import Tag
from pliant.cluster.session.cluster_batches import packed_rows
from pliant.errors import ClusterError, InputError, LaneError
from pliant.ir.cost import SpanState
from pliant.ir.envelope import VERSION, version_refusal
from pliant.ir.partition import Partition, Share
from pliant.ir.program import Compute, Exchange
from pliant.ir.schedule import violations
from pliant.models.encoder.encoder_architecture import PreparedInput
from tests.cluster.fakes import CALM, FakeCluster, FakeStageRunner, lost, spread

TOLERANCE = 1e-5  # the same float32 sums on every device


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as made:
        yield made


def check(cluster: FakeCluster, seed: int = 0, lengths: Sequence[int] = ()) -> RunRecord:
    answer, wanted, led = cluster.run(*lengths, seed=seed)
    np.testing.assert_allclose(answer, wanted, atol=TOLERANCE)
    assert isinstance(led, RunRecord)
    assert not list(violations(led.program, led.spans))
    return led


def test_the_primary_alone_answers(cluster: FakeCluster) -> None:
    """A cluster of one is where every fault may end."""
    led = check(cluster)
    assert led.plans[0].partition.participants == ("p",)


def test_workers_share_a_run_and_the_answer_is_the_same(cluster: FakeCluster) -> None:
    """Everything else assumes this."""
    for name in "abc":
        cluster.add(name)
    cluster.primary.wait_for(3, 10.0)
    for seed in range(3):
        led = check(cluster, seed)
        assert set(led.plans[0].partition.participants) == {"p", "a", "b", "c"}
        assert not led.faults
        assert led.program == lower_partition(cluster.spec, led.plans[0].partition, "fp32"), (
            "it ran what is priced"
        )
        assert all(span.state is SpanState.RAN for span in led.spans)


def once_at(layer: int, kernel: str, act: Callable[[], object]) -> Callable[[Compute], None]:
    """Calls `act` before one stage, the first time."""
    is_done = threading.Event()

    def before(work: Compute) -> None:
        if work.layer == layer and work.kernel == kernel and not is_done.is_set():
            is_done.set()
            act()

    return before


@pytest.mark.parametrize("lengths", [(7,), (5, 1, 9, 4)])
def test_a_worker_killed_inside_a_layer_costs_its_segment_alone(
    cluster: FakeCluster, lengths: tuple[int, ...]
) -> None:
    """The segment is repeated on the survivors from the input that the primary kept, for one text and for
    several together."""
    for name in "abc":
        cluster.add(name)
    cluster.primary.wait_for(3, 10.0)

    def kill() -> None:
        threading.Thread(target=cluster.machines["b"].kill).start()
        raise lost("b")

    cluster.before["b"] = once_at(2, "attend", kill)
    led = check(cluster, lengths=lengths)
    assert [len(answer) for answer in led.answers] == list(lengths)
    (fault,) = led.faults
    assert [v.member for v in fault.verdicts] == ["b"]
    n = fault.segment
    assert n in (2, 3)  # the one before, where it is heard of before the last of that is whole on the primary
    assert led.plans[n - 1].partition.participants == ("p", "a", "b", "c")
    assert led.plans[n].partition.participants == ("p", "a", "c")


def test_a_frozen_worker_is_noticed_and_taken_in_again_when_it_thaws(cluster: FakeCluster) -> None:
    """A device that sleeps must neither stop a run nor be lost for good."""
    for name in "ab":
        cluster.add(name)
    cluster.primary.wait_for(2, 10.0)
    machine = cluster.machines["a"]

    def freeze() -> None:
        cluster.wires.cut.add("a")
        machine.thaw.wait(20.0)

    cluster.before["a"] = once_at(1, "rest", freeze)
    led = check(cluster)
    assert [[v.member for v in fault.verdicts] for fault in led.faults] == [["a"]]
    cluster.wires.cut.clear()
    machine.thaw.set()
    cluster.primary.wait_for(2, 10.0)
    assert set(check(cluster, 1).plans[-1].partition.participants) == {"p", "a", "b"}


def test_all_workers_may_fail_at_once(cluster: FakeCluster) -> None:
    """In the end the primary answers alone."""
    machines = [cluster.add(name) for name in "abc"]
    cluster.primary.wait_for(3, 10.0)
    cluster.before["p"] = once_at(1, "attend", lambda: cluster.wires.cut.update("abc"))
    for machine in machines:
        cluster.before[machine.name] = once_at(1, "attend", partial(machine.thaw.wait, 60.0))
    led = check(cluster)
    assert led.plans[-1].partition.participants == ("p",)


def test_a_worker_that_sends_what_is_no_number_is_left_out_for_a_while(cluster: FakeCluster) -> None:
    """Garbage of the right length must not reach the answer; the worker may be honest, and its input not."""
    for name in "ab":
        cluster.add(name)
    cluster.primary.wait_for(2, 10.0)
    bad = FakeStageRunner.view
    is_bad = threading.Event()
    is_bad.set()

    def view(self: FakeStageRunner, work: Exchange) -> np.ndarray:
        seen = bad(self, work)
        return np.full_like(seen, np.nan) if self.name == work.src == "a" and is_bad.is_set() else seen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeStageRunner, "view", view)
        led = check(cluster)
    (fault,) = led.faults
    assert [(v.member, v.is_liar) for v in fault.verdicts] == [("a", False)]
    assert "not finite" in fault.verdicts[0].reason
    assert any(event.startswith("a is excluded: a sent numbers") for event in cluster.events)
    assert set(led.plans[-1].partition.participants) == {"p", "b"}
    cluster.primary.wait_for(2, 10.0)
    assert set(check(cluster, 1).plans[-1].partition.participants) == {"p", "a", "b"}


def test_a_worker_that_sends_another_shape_is_refused_by_name(cluster: FakeCluster) -> None:
    """Too few rows would leave old numbers in place."""
    for name in "ab":
        cluster.add(name)
    cluster.primary.wait_for(2, 10.0)
    honest = FakeStageRunner.view

    def view(self: FakeStageRunner, work: Exchange) -> np.ndarray:
        seen = honest(self, work)
        return seen[:, :-1] if self.name == work.src == "b" else seen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeStageRunner, "view", view)
        led = check(cluster)
    assert [(v.member, v.is_liar) for f in led.faults for v in f.verdicts] == [("b", True)]


def test_a_worker_that_sends_garbage_as_a_message_is_refused_by_name(cluster: FakeCluster) -> None:
    """The control connection is no less exposed than the data."""
    machine = cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    machine.control.post("p", b"\x01 no msgpack")
    led = check(cluster)
    assert led.plans[-1].partition.participants == ("p",)
    member = cluster.primary.monitor.get("a")
    assert member is not None
    assert "invalid message" in (member.refused or "")


@pytest.mark.parametrize("data", [b"\x01 no msgpack", b"?", random.Random(0).randbytes(50)])
def test_who_sends_garbage_while_it_works_is_named_in_the_fault(cluster: FakeCluster, data: bytes) -> None:
    """Who reads the reply must learn whom to look at; one of three, and not the two that only stopped."""
    machines = {name: cluster.add(name) for name in "abc"}
    cluster.primary.wait_for(3, 10.0)

    def lie(work: Compute) -> None:
        if work.kernel == "rest" and work.layer == 1:
            del cluster.before["b"]
            machines["b"].control.post("p", data)
            for _ in range(500):  # its part of the layer comes after its lie was read
                if "refused b" in "".join(cluster.events):
                    break
                time.sleep(0.01)

    cluster.before["b"] = lie
    led = check(cluster)
    assert [(v.member, v.is_liar) for f in led.faults for v in f.verdicts] == [("b", True)]
    assert led.plans[-1].partition.participants == ("p", "a", "c")
    assert sum("refused b" in event for event in cluster.events) == 1
    machines["b"].control.post("p", data[::-1])
    check(cluster)
    assert sum("refused b" in event for event in cluster.events) == 1


def test_a_stranger_that_sends_garbage_is_listed(cluster: FakeCluster) -> None:
    """It never said hello, and is left out by its name all the same: also once it says one."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    cluster.primary.handle_message("z", UnreadableMessage("z sent an invalid message", False))
    cluster.primary.handle_message("z", Hello("1", "", 1, 1, ()))
    member = cluster.primary.monitor.get("z")
    assert member is not None
    assert "invalid message" in (member.refused or "")
    assert check(cluster).plans[0].partition.participants == ("p", "a")


def test_a_worker_that_claims_the_last_epoch_leaves_numbers_for_others(cluster: FakeCluster) -> None:
    """Epochs start after the last one that any worker has seen, as it says."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    cluster.primary.handle_message("z", StatusUpdate(1, 1 << 62))
    for seed in range(2):
        led = check(cluster, seed)
        assert led.plans[-1].partition.participants == ("p", "a")
        assert not led.faults


def test_answers_to_questions_that_nobody_asked_take_no_place(cluster: FakeCluster) -> None:
    """Those with the highest numbers are kept the longest: honest answers were let go for them at once."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    for i in range(300):
        number = (1 << 60) + i
        for message in (
            PrepareSuccess(number, 0.0, 0, 0),
            MeasureReply(number, None, ()),
            SpanReport(number, ()),
        ):
            cluster.primary.handle_message("z", message)
    led = check(cluster)
    assert led.plans[-1].partition.participants == ("p", "a")
    assert not led.faults


def test_who_accuses_a_member_that_there_is_not_is_at_fault(cluster: FakeCluster) -> None:
    """Nobody was left out, and the segment was repeated until the run failed."""
    machines = {name: cluster.add(name) for name in "ab"}
    cluster.primary.wait_for(2, 10.0)

    def accuse() -> None:
        epoch = cluster.executor.epoch
        assert epoch is not None
        machines["a"].control.send("p", SegmentFailure(epoch, 2, "ghost", True, "it is no number"))
        for _ in range(500):
            if cluster.primary.has_epoch_failed:
                break
            time.sleep(0.01)

    cluster.before["a"] = once_at(1, "rest", accuse)
    led = check(cluster)
    assert [v.member for f in led.faults for v in f.verdicts] == ["a"]


def test_a_worker_without_the_model_is_left_out_and_named(cluster: FakeCluster) -> None:
    """Weights never come from the primary."""
    cluster.add("a", models=("another",))
    cluster.add("b")
    cluster.primary.wait_for(2, 10.0)
    led = check(cluster)
    assert led.plans[0].partition.participants == ("p", "b")
    assert any("a is excluded" in event and "--model" in event for event in cluster.events)


def test_a_failure_of_the_primary_itself_is_raised(cluster: FakeCluster) -> None:
    """Nobody else is to blame, and repeating would not help."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)

    def fail(work: Compute) -> None:
        raise MemoryError("no memory here")

    cluster.before["p"] = fail
    with pytest.raises(LaneError, match="no memory here"):
        cluster.run()
    del cluster.before["p"]
    check(cluster)


def test_a_version_that_is_no_neighbour_is_refused(cluster: FakeCluster) -> None:
    """Two versions may cut a layer differently and would disagree silently."""
    machine = cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    for _ in range(3):
        cluster.primary.handle_message("z", UnreadableMessage(f"'z' {version_refusal(VERSION + 2)}", True))
    assert machine.worker.refusals == {}
    assert [m.name for m in cluster.primary.monitor.usable()] == ["a"]
    assert [event for event in cluster.events if "refused z" in event] == [
        f"refused z: 'z' speaks version {VERSION + 2} of the protocol, this device version {VERSION}: "
        "versions may differ by one. Install the same pliant on both."
    ]
    with pytest.raises(ClusterError, match=r"1 of 2 .* Refused: z \('z' speaks version .* on both\)\. "):
        cluster.primary.wait_for(2, 0.05)
    cluster.primary.handle_message("z", Hello("1", "", 1, 1, ()))
    assert [m.name for m in cluster.primary.monitor.usable()] == ["a", "z"], "it was updated"


def test_a_plan_changes_at_a_boundary_while_the_run_goes_on(cluster: FakeCluster) -> None:
    """Adaptation must not show in the answer: members enter, leave and enter again."""
    for name in "abc":
        cluster.add(name)
    cluster.primary.wait_for(3, 10.0)

    def plan(*devices: str) -> ReadyPlan:
        partition = spread(cluster.spec, 7, "p", devices, len(devices))
        return cluster.primary.plans.prepare(cluster.source, partition, "fp32")[0]

    cluster.steer.switches = {2: plan("a", "b"), 3: plan(), 4: plan("a", "b", "c")}
    led = check(cluster)
    taking_part = [set(held.partition.participants) for held in led.plans]
    assert taking_part[2:5] == [{"p", "a", "b"}, {"p"}, {"p", "a", "b", "c"}]
    assert not led.faults
    assert all(span.state is SpanState.RAN for span in led.spans)


def test_a_member_of_an_older_release_gets_no_coded_layers(cluster: FakeCluster) -> None:
    """It would read a partition without its bits, and hold float32."""
    for name in "ab":
        cluster.add(name)
    cluster.primary.wait_for(2, 10.0)
    old = cluster.primary.monitor.get("a")
    assert old is not None
    cluster.primary.monitor.register("a", Hello("0", "", 1, old.free_bytes, old.hello.models))
    coded = replace(spread(cluster.spec, 7, "p", "ab", 2), bits=(4,) * cluster.spec.n_layers)
    with pytest.raises(PlanNotReadyError, match="no coded weights") as error:
        cluster.primary.plans.prepare(cluster.source, coded, "fp32")
    assert error.value.reasons.keys() == {"a"}


@pytest.mark.parametrize(
    ("a_before", "a_after"), [(0, 2), (0, 0)], ids=["it gets heads", "it gets other rows"]
)
def test_a_member_that_had_rows_alone_is_given_what_its_new_share_needs(
    cluster: FakeCluster, a_before: int, a_after: int
) -> None:
    """Who runs no heads receives its own rows of a layer's input: the others' are of an earlier layer."""
    for name in "ab":
        cluster.add(name)
    cluster.primary.wait_for(2, 10.0)
    n_heads = cluster.spec.n_heads

    def plan(heads_of_a: int, rows: tuple[int, int, int]) -> ReadyPlan:
        heads = n_heads - heads_of_a - 1, heads_of_a, 1
        shares = tuple(Share(*one) for one in zip("pab", heads, rows, strict=True))
        return cluster.primary.plans.prepare(cluster.source, Partition("ws", "p", shares, 7), "fp32")[0]

    first = plan(a_before, (4, 2, 1))
    cluster.steer.switches = {2: first, 3: plan(a_after, (1, 4, 2)), 4: first}
    led = check(cluster)
    assert led.plans[2] is led.plans[4] is first
    assert not led.faults


def test_a_worker_that_did_not_hear_the_primary_for_a_while_is_not_waited_for() -> None:
    """Its silence is noticed on its side alone: it gave up the run, and says hello again."""
    with FakeCluster(patience=replace(CALM, least_s=600.0)) as cluster:
        for name in "ab":
            cluster.add(name)
        cluster.primary.wait_for(2, 10.0)
        worker = cluster.machines["a"].worker
        cluster.before["a"] = once_at(1, "rest", lambda: worker.handle_lost_peer("p"))
        led = check(cluster)
        (fault,) = led.faults
        assert not fault.verdicts
        assert set(led.plans[-1].partition.participants) == {"p", "a", "b"}


def test_a_worker_that_says_hello_again_is_not_waited_for_and_not_at_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be a new process, which never got the plan: the run waited for its answer as long as it may take
    to load weights. Nor is it excluded: its hello may only have been repeated."""
    send, is_lost = Primary.send, [True]

    def lossy(self: Primary, peer: str, message: AnyMessage) -> None:
        if isinstance(message, PrepareRequest) and is_lost:
            is_lost.clear()
            member = self.monitor.get(peer)
            assert member is not None
            self.monitor.register(peer, member.hello, message.plan + 1)
        else:
            send(self, peer, message)

    monkeypatch.setattr(Primary, "send", lossy)
    with FakeCluster(patience=replace(CALM, prepare_s=600.0)) as cluster:
        cluster.add("a")
        cluster.primary.wait_for(1, 10.0)
        assert check(cluster).plans[-1].partition.participants == ("p",)
        member = cluster.primary.monitor.get("a")
        assert member is not None
        assert (member.n_faults, member.is_usable(cluster.primary.clock())) == (0, True)
        assert check(cluster).plans[-1].partition.participants == ("p", "a")


def test_a_wait_for_workers_ends_when_a_penalty_does(cluster: FakeCluster) -> None:
    """Nobody tells that a penalty is over: a wait that only listens for news would go on to its end."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    cluster.primary.monitor.record_failure("a")
    start_s = time.monotonic()
    cluster.primary.wait_for(1, 30.0)
    assert time.monotonic() - start_s < 15.0


@pytest.mark.parametrize("is_now", [False, True], ids=["announced", "at once"])
def test_a_run_stops_at_a_boundary_for_a_plan_that_has_no_room_beside_the_current_one(
    cluster: FakeCluster, is_now: bool
) -> None:
    """Weights are replaced in place, between two layers, and nobody is at fault.

    At once, what was announced of the next layer, and perhaps begun, is given up.
    """
    for name in "abc":
        cluster.add(name)
    cluster.primary.wait_for(3, 10.0)
    cluster.steer.pauses, cluster.steer.halts = ((), (3,)) if is_now else ((3,), ())
    led = check(cluster)
    assert not led.faults
    assert led.tasks[0].epoch < led.tasks[-1].epoch
    with pytest.raises(ClusterError, match="has ended"):  # nothing of it stays in memory
        cluster.comm.receive("a", Tag(led.tasks[0].epoch, 0, 0), np.zeros(1), 0.0)
    before, after = led.tasks[2], led.tasks[3]
    assert after.epoch > before.epoch
    assert led.plans[2] is not led.plans[3]
    exchanged = [step.work for step in after.segment.steps if isinstance(step.work, Exchange)]
    assert {work.dst for work in exchanged if work.tensor == "x.2"} == {"a", "b", "c"}


def test_numbers_too_large_to_be_embedded_are_the_inputs_fault(cluster: FakeCluster) -> None:
    """Nobody is taken for a liar for what it was sent."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    x = np.full((7, cluster.spec.hidden), np.inf, np.float32)
    with pytest.raises(InputError, match="not finite"):
        cluster.lead.run(cluster.source, [PreparedInput(7, {"x": x})], 7)
    assert not check(cluster).faults


@pytest.mark.parametrize("kernel", ["attend", "rest"])
def test_an_input_that_no_device_can_compute_is_refused_and_no_worker_is_punished(
    cluster: FakeCluster, kernel: str
) -> None:
    """One image with pixels of 1e30 barred every worker of a cluster until its primary restarted."""
    for name in "abc":
        cluster.add(name)
    cluster.primary.wait_for(3, 10.0)
    compute = FakeStageRunner.compute

    def overflow(self: FakeStageRunner, step: int, work: Compute, lengths: tuple[int, ...]) -> None:
        compute(self, step, work, lengths)
        if (work.kernel, work.layer) == (kernel, 2):
            self.tensors["attended" if kernel == "attend" else "x.3"][...] = np.nan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeStageRunner, "compute", overflow)
        with pytest.raises(InputError, match="too small for layer 2: its output is not finite"):
            cluster.run()
    assert not [m.name for m in cluster.primary.monitor.members if m.n_faults or m.refused]
    led = check(cluster, 1)
    assert not led.faults
    assert set(led.plans[0].partition.participants) == {"p", "a", "b", "c"}


def test_a_primary_that_computes_no_numbers_of_a_workers_is_not_stopped(cluster: FakeCluster) -> None:
    """Finite but huge numbers of a worker overflow on the primary: alone, it answers."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    compute = FakeStageRunner.compute

    def overflow(self: FakeStageRunner, step: int, work: Compute, lengths: tuple[int, ...]) -> None:
        compute(self, step, work, lengths)
        if self.name == "p" and work.layer == 1 and len(self.partition.participants) > 1:
            self.tensors["x.2"][self.partition.rows("p").start] = np.inf

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeStageRunner, "compute", overflow)
        led = check(cluster)
    assert led.plans[-1].partition.participants == ("p",)
    assert [v.is_liar for fault in led.faults for v in fault.verdicts] in ([], [False])


def test_large_finite_numbers_are_exchanged(cluster: FakeCluster) -> None:
    """Their float32 sum is infinite, which was taken for a lie of the primary."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    x = np.zeros((7, cluster.spec.hidden), np.float32)
    x[:, 0] = 2e38
    led = cluster.lead.run(cluster.source, [PreparedInput(7, {"x": x})], 7)
    assert not led.faults
    assert led.plans[-1].partition.participants == ("p", "a")


def test_texts_that_run_together_continue_by_another_plan(cluster: FakeCluster) -> None:
    """A switch moves their rows, and each still attends to itself alone."""
    cluster.add("a")
    cluster.primary.wait_for(1, 10.0)
    rows = packed_rows(lengths := (5, 1, 9, 4), cluster.spec.max_rows)
    later = cluster.steer.begin(cluster.source, rows, ())
    cluster.steer.switches = dict.fromkeys(range(3, 5), later)
    led = check(cluster, lengths=lengths)
    assert led.plans[3] is later is not led.plans[0]
    assert not led.faults
