"""Requests whose turn is late leave the queue of an endpoint, for another that answers in time."""

import asyncio
import threading
import time

from pliant.ir.curve import Curve
from pliant.ir.endpoint import Request, ServiceLevel
from pliant.ir.reply import Reply
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL
from pliant.route.curve_advert import CurveAdvert
from pliant.serve.answers.dispatch import Dispatcher
from pliant.serve.answers.routed_request import RoutedAnswer
from pliant.serve.protocol.inference import signature
from tests.serve.answers.dispatch_fakes import (
    ABOVE,
    DEADLINE_S,
    LONG_S,
    Above,
    Endpoint,
    Held,
    dispatcher,
    inquiry,
    lost,
    n_of,
    run_to_end,
    upstream_fails,
)
from tests.serve.nodes import PATIENCE_S


def test_a_request_whose_turn_is_late_leaves_the_queue_for_the_next_best() -> None:
    """One that hangs took all that waited behind it along, while other endpoints were idle."""
    local = Held("@local", 1e-3)
    local.gate.clear()
    made = dispatcher(Above(upstream_fails), local=local, cluster=Endpoint("@cluster", 1.0))

    async def run() -> tuple[RoutedAnswer, RoutedAnswer]:
        first = asyncio.ensure_future(made.answer(inquiry(None)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        second = await made.answer(inquiry(DEADLINE_S))
        local.gate.set()
        return await first, second

    first, second = run_to_end(made, run())
    assert (first.target, second.target) == (LOCAL, CLUSTER)
    assert local.answered.count(b"") == 1, "who left the queue is not answered there"
    hedges = n_of(made, "hedges")
    hedges.pop((LOCAL, "none"), None)  # a busy machine may be late with the cluster's start as well
    assert hedges == {(LOCAL, "here"): 1}
    assert second.spent.waited_s >= 0.01, "who asks would take the wait for work, and set this node aside"


def test_an_upstream_that_hangs_is_hedged_for_who_left_a_queue_for_it_too() -> None:
    """Such a request waited out its deadline there, though the device had time for it."""
    local = Held("@local", 1e-3)
    local.gate.clear()
    made = dispatcher(Above(asyncio.Event().wait), local=local, cluster=Endpoint("@cluster", LONG_S))  # type: ignore[arg-type]
    half_s = (ServiceLevel(Curve(((0, 0.5),))),)
    made.router.record_ping(ABOVE, 1e-4, 0.0, CurveAdvert("above", half_s, frozenset({"above"})), 0.0)

    async def run() -> RoutedAnswer:
        first = asyncio.ensure_future(made.answer(inquiry(None)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        second = await made.answer(inquiry(DEADLINE_S))
        local.gate.set()
        await first
        return second

    assert run_to_end(made, run()).target == CLUSTER
    assert n_of(made, "hedges") == {(LOCAL, "here"): 1, (ABOVE, "here"): 1}


def test_no_more_leave_a_queue_at_once_than_another_endpoint_can_answer_in_time() -> None:
    """All that were late at the same moment went there, as none saw the others: most were late there too."""
    local, cluster = Held("@local", 1e-3), Held("@cluster", DEADLINE_S / 2.75)
    # two are in time there even if the first is planned with 1.5 times its time, as it has not begun yet
    local.gate.clear()
    cluster.gate.clear()
    made = dispatcher(Above(upstream_fails), local=local, cluster=cluster)
    made.router.remove_successor(ABOVE)

    async def run() -> int:
        first = asyncio.ensure_future(made.answer(inquiry(None)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        others = [asyncio.ensure_future(made.answer(inquiry(DEADLINE_S))) for _ in range(6)]
        await asyncio.to_thread(cluster.begun.wait, PATIENCE_S)
        await asyncio.wait(others, timeout=0.1)
        n_waiting = made.here[LOCAL].n_waiting
        local.gate.set()
        cluster.gate.set()
        await asyncio.gather(first, *others)
        return n_waiting

    assert run_to_end(made, run()) == 4, "two leave: the third would be late there"


def test_an_answer_that_begins_as_it_is_called_off_counts_where_the_other_fails() -> None:
    """It was computed and thrown away, and the request began anew."""
    held, again = threading.Event(), threading.Event()

    class Device(Endpoint):
        def answer(self, request: Request) -> Reply[None]:
            if self.begun.is_set():
                again.set()
            self.begun.set()
            assert held.wait(PATIENCE_S)
            return super().answer(request)

    local = Device("@local", 1e-3)
    made = dispatcher(Above(upstream_fails), local=local, cluster=Endpoint("@cluster", 1.0, lost))
    made.router.remove_successor(ABOVE)

    def clock() -> float:
        if not held.is_set() and any(task.cancelling() for task in asyncio.all_tasks()):
            held.set()
            assert again.wait(PATIENCE_S)
        return time.monotonic()

    async def run() -> tuple[RoutedAnswer, RoutedAnswer]:
        first = asyncio.ensure_future(made.answer(inquiry(None)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        second = await made.answer(inquiry(DEADLINE_S))
        return await first, second

    made = Dispatcher(made.router, made.here, made.metrics, signature(local), clock)
    first, second = run_to_end(made, run())
    assert (first.target, second.target) == (LOCAL, LOCAL)
    assert local.answered.count(b"") == 2, "once each"
    assert not any(n_of(made, "unused_seconds").values()), "both answers were used"


def test_an_endpoint_that_says_no_to_who_left_another_queue_is_not_asked_again() -> None:
    """It was, every ten milliseconds until the deadline, while the request lost its place each time."""
    cluster = Held("@cluster", 1e-3)
    cluster.gate.clear()

    local = Endpoint("@local", LONG_S, lambda: ZeroDivisionError("a bug"))
    made = dispatcher(Above(upstream_fails), local=local, cluster=cluster)

    async def run() -> RoutedAnswer:
        first = asyncio.ensure_future(made.answer(inquiry(None)))
        await asyncio.to_thread(cluster.begun.wait, PATIENCE_S)
        second = asyncio.ensure_future(made.answer(inquiry(DEADLINE_S)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        await asyncio.wait({second}, timeout=0.1)
        cluster.gate.set()
        return (await asyncio.gather(second, first))[0]

    assert run_to_end(made, run()).target == CLUSTER
    assert len(local.answered) == 1


def test_where_nothing_else_answers_in_time_a_late_turn_is_waited_for() -> None:
    local = Held("@local", 1e-3)
    local.gate.clear()
    made = dispatcher(Above(upstream_fails), local=local, cluster=Endpoint("@cluster", 10.0 * DEADLINE_S))

    async def run() -> RoutedAnswer:
        first = asyncio.ensure_future(made.answer(inquiry(None)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        second = asyncio.ensure_future(made.answer(inquiry(DEADLINE_S)))
        await asyncio.wait({second}, timeout=0.1)
        local.gate.set()
        await first
        return await second

    assert run_to_end(made, run()).target == LOCAL
    assert n_of(made, "hedges") == {}
