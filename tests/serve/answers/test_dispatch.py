"""The endpoint that answers when others fail meanwhile: with an upstream that does as the test says."""

import asyncio
from contextlib import suppress

import pytest

from pliant.errors import NodeError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import Request, ServiceLevel
from pliant.ir.reply import Reply
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL, choose
from pliant.route.choice.energy import PowerModel
from pliant.serve.answers.answer_energy import AnswerEnergy
from pliant.serve.answers.routed_request import RoutedAnswer, Tries, UnusedWork
from pliant.serve.answers.work_item import WorkStart
from tests.serve.answers.dispatch_fakes import (
    ABOVE,
    DEADLINE_S,
    LONG_S,
    Above,
    Endpoint,
    Held,
    answer,
    dispatcher,
    inquiry,
    lost,
    n_of,
    run_to_end,
    upstream_fails,
    word,
)

POWER = PowerModel("four watts", 0.0, 4.0, "assumed")


def test_a_hedge_over_the_cluster_that_fails_before_the_upstream_does_leaves_the_device() -> None:
    """The cluster's error counts as the cluster's, and it is not asked again."""
    cluster = Endpoint("@cluster", LONG_S - 1.0, lost)

    async def act() -> None:
        while not n_of(made, "fallbacks").get((CLUSTER,)):
            await asyncio.sleep(0.001)
        raise NodeError("it is gone", status=502)

    made = dispatcher(Above(act), local=Endpoint("@local", LONG_S), cluster=cluster)
    found = answer(made)
    assert (word(found), found.target) == (b"X@local", LOCAL)
    assert len(cluster.answered) == 1
    assert n_of(made, "fallbacks") == {(CLUSTER,): 1, (ABOVE,): 1}


def test_a_hedge_over_the_cluster_that_fails_after_the_upstream_did_leaves_the_device() -> None:
    """The client got the cluster's error, as if the upstream had raised it."""
    cluster = Endpoint("@cluster", LONG_S - 1.0, lost)
    cluster.gate.clear()

    async def act() -> None:
        while not cluster.begun.is_set():
            await asyncio.sleep(0.001)
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, cluster.gate.set)  # this coroutine has ended then
        raise NodeError("it is gone", status=502)

    made = dispatcher(Above(act), local=Endpoint("@local", LONG_S), cluster=cluster)
    assert word(answer(made)) == b"X@local"
    assert n_of(made, "fallbacks") == {(CLUSTER,): 1, (ABOVE,): 1}


def test_an_endpoint_that_failed_a_request_is_no_hedge_for_it() -> None:
    """The cluster is the soonest again when the upstream is late, and would fail again."""
    cluster = Endpoint("@cluster", 1e-6, lost)
    above = Above(asyncio.Event().wait)  # type: ignore[arg-type]
    made = dispatcher(above, local=Endpoint("@local", LONG_S), cluster=cluster)
    found = answer(made)
    assert word(found) == b"X@local"
    assert len(cluster.answered) == 1
    assert found.is_hedged
    assert n_of(made, "hedges") == {(ABOVE, "here"): 1}
    assert above.n_overdue == 1


def test_a_cluster_that_does_not_answer_in_time_is_hedged_by_the_device() -> None:
    """A worker that becomes slow in the middle of a run holds that up for a second."""
    cluster = Endpoint("@cluster", 1e-6, lost)
    cluster.gate.clear()

    class Device(Endpoint):
        def answer(self, request: Request) -> Reply[None]:
            assert cluster.begun.is_set()
            reply = super().answer(request)
            cluster.gate.set()
            return reply

    made = dispatcher(Above(asyncio.Event().wait), local=Device("@local", LONG_S), cluster=cluster)  # type: ignore[arg-type]
    found = answer(made)
    assert (word(found), found.target) == (b"X@local", LOCAL)
    assert n_of(made, "hedges") == {(CLUSTER, "here"): 1}


def test_work_beyond_its_bound_is_begun_elsewhere_and_the_first_answer_counts() -> None:
    local = Held("@local", 1e-3)
    local.gate.clear()
    made = dispatcher(Above(upstream_fails), local=local, cluster=Endpoint("@cluster", 1.0))
    made.here[LOCAL].energy = AnswerEnergy(POWER)

    async def run() -> RoutedAnswer:
        try:
            return await made.answer(inquiry(DEADLINE_S))
        finally:
            local.gate.set()

    found = run_to_end(made, run())
    assert found.target == CLUSTER
    assert found.unused is not None
    assert found.unused.seconds >= 1e-3
    unused_s = n_of(made, "unused_seconds")
    assert unused_s.keys() == {(LOCAL, "hedge")}, "that of the work that went on, not that of the answer"
    assert n_of(made, "unused_joules")[(LOCAL, "hedge")] == n_of(made, "joules")[(LOCAL,)]
    assert n_of(made, "unused_joules")[(LOCAL, "hedge")] <= POWER.compute_W * unused_s[(LOCAL, "hedge")]
    counted = n_of(made, "hedges")
    assert counted.pop((LOCAL, "here")) == 1
    assert set(counted) <= {(LOCAL, "none")}  # on a busy machine the cluster is late as well


def test_work_for_a_caller_that_has_gone_is_counted_as_unused() -> None:
    """Also a hedge of the node below, which takes the answer of another endpoint and ends its request."""
    local = Held("@local", 1e-3)
    local.gate.clear()
    made = dispatcher(Above(upstream_fails), local=local)
    made.router.record_failure(ABOVE, 0.0)

    async def run() -> None:
        asked = asyncio.ensure_future(made.answer(inquiry(None)))
        while not local.begun.is_set():
            await asyncio.sleep(0.001)
        asked.cancel()
        local.gate.set()
        with suppress(asyncio.CancelledError):
            await asked

    run_to_end(made, run())
    assert n_of(made, "unused_seconds")[(LOCAL, "gone")] > 0.0
    assert n_of(made, "unused_joules") == {}, "its power is not known"


def test_the_unused_work_of_an_answer_is_what_has_begun_elsewhere_on_this_device() -> None:
    """The upstream's own work counts there; what waits leaves its queue."""
    level = ServiceLevel(Curve(((0, 2.0), (10, 4.0))))
    choices = [choose(5, [Candidate(name, (level,), watts=2.0)]) for name in (LOCAL, CLUSTER, "waits")]
    begun = (WorkStart(90.0), WorkStart(99.0), WorkStart())
    tries = Tries(here={one.target: (one, start) for one, start in zip(choices, begun, strict=True)})
    assert tries.unused_work(ABOVE, 5, 100.0) == UnusedWork(10.0 + 3.0, 2 * 2.0 * 3.0)
    assert tries.unused_work(LOCAL, 5, 100.0) == UnusedWork(3.0, 2.0 * 3.0)
    assert Tries().unused_work(LOCAL, 5, 100.0) == UnusedWork(0.0, None)


def test_who_is_refused_by_one_endpoint_here_is_answered_by_another() -> None:
    """An endpoint says by its queue and its latest times what the choice could not know yet."""

    def busy() -> Exception:
        return NodeError("its turn would be late", status=503)

    made = dispatcher(
        Above(upstream_fails), local=Endpoint("@local", 1e-6, busy), cluster=Endpoint("@cluster", 1.0)
    )
    made.router.remove_successor(ABOVE)
    assert answer(made).target == CLUSTER
    is_late_to_begin = n_of(made, "hedges") == {(LOCAL, "here"): 1}  # the thread of a busy machine
    assert is_late_to_begin or n_of(made, "fallbacks") == {(LOCAL,): 1}


def test_where_everybody_refuses_so_does_the_node() -> None:
    """Once, with what the endpoint here says."""

    def busy() -> Exception:
        return NodeError("its turn would be late", status=503)

    local = Endpoint("@local", 1e-6, busy)
    made = dispatcher(Above(upstream_fails), local=local)
    made.router.record_failure(ABOVE, 0.0)
    with pytest.raises(NodeError, match="late"):
        answer(made)
    assert len(local.answered) == 1, "an upstream that is down gives it no second turn in the queue"


@pytest.mark.parametrize("status", [400, 500])
def test_an_upstream_that_blamed_an_input_has_failed_where_its_hedge_answers(status: int) -> None:
    """It was believed wherever the answer here had been begun before it spoke."""
    local = Endpoint("@local", LONG_S)
    local.gate.clear()

    async def act() -> None:
        while not local.begun.is_set():
            await asyncio.sleep(0.001)
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, local.gate.set)
        raise NodeError("it cannot be read", status=status)

    above = Above(act)
    made = dispatcher(above, local=local)
    assert word(answer(made)) == b"X@local"
    assert above.blamed == [ABOVE]
    assert n_of(made, "fallbacks") == {(ABOVE,): 1}


def test_an_upstream_is_not_blamed_for_what_this_devices_model_fails_on() -> None:
    """A model that failed as a hedge made the upstream, which was only gone, one that blames inputs."""

    def bug() -> Exception:
        return ZeroDivisionError("a bug")

    local = Endpoint("@local", LONG_S, bug)

    async def act() -> None:
        while not local.answered:
            await asyncio.sleep(0.001)
        raise NodeError("it is gone", status=502)

    above = Above(act)
    made = dispatcher(above, local=local)
    with pytest.raises(NodeError, match="the model failed on this input") as failed:
        answer(made)
    assert failed.value.status == 500
    assert above.blamed == []
    assert len(local.answered) == 2, "as a hedge, and as the last that is left"
    assert n_of(made, "hedges") == {(ABOVE, "none"): 1}


def test_a_hedge_counts_although_the_request_is_given_up() -> None:
    """Its work was begun; a client that goes away while it runs left no trace of it."""
    local = Endpoint("@local", LONG_S)
    local.gate.clear()
    made = dispatcher(Above(asyncio.Event().wait), local=local)  # type: ignore[arg-type]

    async def given_up() -> None:
        asked = asyncio.create_task(made.answer(inquiry(DEADLINE_S)))
        while not local.begun.is_set():
            await asyncio.sleep(0.001)
        asked.cancel()
        local.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await asked

    run_to_end(made, given_up())
    assert n_of(made, "hedges") == {(ABOVE, "none"): 1}


def test_an_answer_without_a_hedge_says_so() -> None:
    """A busy machine may start a thread late, which is hedged: then the next answer is looked at."""
    for _ in range(9):
        made = dispatcher(Above(upstream_fails), local=Endpoint("@local", 1.0), cluster=Endpoint("@b", 2.0))
        made.router.remove_successor(ABOVE)
        if not answer(made).is_hedged:
            break
    else:
        pytest.fail("nine idle endpoints in turn were hedged")
    assert n_of(made, "hedges") == {}
