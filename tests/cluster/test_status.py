"""A primary tells its state to whoever holds the key and asks, at any time, and nothing changes by it."""

from queue import SimpleQueue
from threading import Event, Thread

from pliant.cluster.control.messages import AnyMessage, StatusReply, StatusRequest
from pliant.cluster.lead.status_report import ClusterStatus
from pliant.ir.program import Compute
from tests.cluster.fakes import FakeCluster

WAIT_S = 10.0


def ask(cluster: FakeCluster) -> ClusterStatus:
    """What a member that never said hello is told over the control channel."""
    answers: SimpleQueue[AnyMessage] = SimpleQueue()
    watcher = cluster.wires.join("watcher")
    watcher.start(lambda peer, message: answers.put(message), lambda peer: None)
    watcher.send("p", StatusRequest())
    try:
        while True:
            message = answers.get(timeout=WAIT_S)
            if isinstance(message, StatusReply):
                return message.status
    finally:
        watcher.close()


def test_a_run_that_is_under_way_is_told_and_not_disturbed() -> None:
    """A cluster is watched because something runs; an answer only between runs would be none."""
    begun, asked = Event(), Event()

    def wait(work: Compute) -> None:
        if work.kernel == "head":
            begun.set()
            assert asked.wait(WAIT_S)

    with FakeCluster() as cluster:
        cluster.add("a")
        cluster.primary.wait_for(1, WAIT_S)
        before = ask(cluster)
        cluster.before["p"] = wait
        runs: list[object] = []
        running = Thread(target=lambda: runs.append(cluster.run()[2]))
        running.start()
        assert begun.wait(WAIT_S)
        during = ask(cluster)
        asked.set()
        running.join(WAIT_S)
        after = ask(cluster)
    assert (before.is_running, before.n_runs, before.plan) == (False, 0, None)
    assert (during.is_running, during.n_runs) == (True, 0)
    assert during.plan is not None
    assert during.plan.model == "made-up"
    assert set(during.plan.partition.participants) == {"p", "a"}
    assert (after.is_running, after.n_runs, after.n_failed) == (False, 1, 0)
    assert [m.name for m in after.members] == ["a"], "who asks is no worker"
    assert runs


def test_faults_and_failures_are_told() -> None:
    """What went wrong while nobody looked: who was left out, and why."""

    def fail(work: Compute) -> None:
        raise RuntimeError("out of order")

    with FakeCluster() as cluster:
        cluster.add("a")
        cluster.primary.wait_for(1, WAIT_S)
        cluster.before["a"] = fail
        cluster.run()
        found = ask(cluster)
    assert (found.n_runs, len(found.faults)) == (1, 1)
    (fault,) = found.faults
    assert fault.members == ("a",)
    assert "out of order" in fault.reasons[0]
    assert fault.ago_s >= 0
    (member,) = found.members
    assert (member.name, member.n_faults) == ("a", 1)
