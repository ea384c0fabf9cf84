"""The endpoint that answers when others fail meanwhile: with an upstream that does as the test says."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from pliant.errors import ClusterError, NodeError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import Estimate, Request, ServiceLevel
from pliant.ir.link import Link
from pliant.ir.reply import Reply
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL
from pliant.route.choice.request_terms import NO_TERMS
from pliant.route.curve_advert import CurveAdvert, Trail
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.serve.answers.admission import Admission
from pliant.serve.answers.dispatch import Dispatcher
from pliant.serve.answers.metrics import Metrics
from pliant.serve.answers.routed_request import RoutedAnswer, RoutedRequest
from pliant.serve.answers.session_endpoint import SessionEndpoint
from pliant.serve.protocol.inference import InferBody, InferRequest, signature
from pliant.serve.protocol.pending_request import PendingRequest
from pliant.serve.upstream.slots import UpstreamSlot
from tests.serve.models import Upper, texts
from tests.serve.nodes import PATIENCE_S

T = TypeVar("T")
ABOVE = "http://above"
DEADLINE_S, LONG_S = 6000.0, 5713.5
"""An endpoint here that says it takes so long is begun 0.8 s after an upstream was asked, and has minutes to
spare for a slow machine."""


class Endpoint(Upper):
    """Says that an answer takes `says_s`; gives one, or what `fails` makes, once it may."""

    def __init__(self, mark: str, says_s: float, fails: Callable[[], Exception] | None = None) -> None:
        super().__init__(mark=mark)
        self._said = (ServiceLevel(Curve(((0, says_s),))),)
        self.fails, self.begun = fails, threading.Event()

    def levels(self) -> tuple[ServiceLevel, ...]:
        return self._said

    def answer(self, request: Request) -> Reply[None]:
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)
        self.answered.append(b"")
        if self.fails is not None:
            raise self.fails()
        return self._reply(request)


class Above:
    """Stands for `Upstreams`: `act` decides what becomes of a request."""

    def __init__(self, act: Callable[[], Awaitable[None]]) -> None:
        self.act = act
        self.slots = SimpleNamespace(full=(), take=self._take)
        self.blamed: list[str] = []
        self.n_overdue = 0

    @asynccontextmanager
    async def _take(self, upstream: str, n: int, patience_s: float) -> AsyncIterator[UpstreamSlot]:
        yield UpstreamSlot(None, 0.0)  # type: ignore[arg-type]

    async def ask(self, *_: Any) -> Any:
        await self.act()
        raise AssertionError("an upstream of these tests gives no answer")

    def failed(self, upstream: str, reason: str) -> None:
        self.blamed.append(upstream)

    def overdue(self, *_: Any) -> None:
        self.n_overdue += 1


def dispatcher(above: Above, **here: Endpoint) -> Dispatcher:
    """`here` by name, and `above` as an upstream that says it takes 1 ms."""
    router = Router("me", RouterSettings(1000))
    metrics = Metrics(lambda: iter(()))
    local = {}
    for name, served in here.items():
        if name != LOCAL:
            router.add_endpoint(name)
        local[name] = SessionEndpoint(served, router, Admission(8), metrics, lambda: None, name=name)
    router.add_successor(ABOVE, Link(1e-4, 1e9))
    quick = (ServiceLevel(Curve(((0, 1e-3),))),)
    router.record_ping(ABOVE, 1e-4, 0.0, CurveAdvert("above", quick, frozenset({"above"})), 0.0)
    made = Dispatcher(router, local, metrics, signature(here[LOCAL]))
    made.upstreams = above  # type: ignore[assignment]
    return made


def answer(made: Dispatcher) -> RoutedAnswer:
    """What a request under DEADLINE_S gets."""

    async def asked() -> RoutedAnswer:
        return await made.answer(_inquiry(DEADLINE_S))

    return _ended(made, asked())


def _inquiry(deadline_s: float | None) -> RoutedRequest:
    clock = asyncio.get_running_loop().time  # time.monotonic
    due_s = None if deadline_s is None else clock() + deadline_s
    pending = PendingRequest(Request(1, tensors={"text": texts("x")}), due_s)
    return RoutedRequest(
        InferRequest("id", {}, (), NO_TERMS), pending, Trail().visit("me"), "id", lambda: InferBody(b"", None)
    )


async def _fails() -> None:
    raise NodeError("it is gone", status=502)


def _ended(made: Dispatcher, asked: Coroutine[Any, Any, T]) -> T:
    async def in_time() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await asked

    try:
        return asyncio.run(in_time())
    finally:
        for local in made.here.values():
            local.close()


def word(found: RoutedAnswer) -> bytes:
    assert isinstance(found.content, Reply)
    text: bytes = found.content.outputs["upper"][0]
    return text


def n_of(made: Dispatcher, name: str) -> dict[tuple[str, ...], float]:
    """A counter's values by its labels."""
    (family,) = getattr(made.metrics, name).collect()
    return {
        tuple(sample.labels.values()): sample.value
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def lost() -> ClusterError:
    return ClusterError("its workers are gone.")


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


class Held(Endpoint):
    """Works on the first request until `gate` opens, and expects to take what it says."""

    def estimate(self, request: Request) -> Estimate:
        return replace(super().estimate(request), seconds=self._said[0].curve.at(request.length))

    def answer(self, request: Request) -> Reply[None]:
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)
        return super().answer(request)


def test_a_request_whose_turn_is_late_leaves_the_queue_for_the_next_best() -> None:
    """One that hangs took all that waited behind it along, while other endpoints were idle."""
    local = Held("@local", 1e-3)
    local.gate.clear()
    made = dispatcher(Above(_fails), local=local, cluster=Endpoint("@cluster", 1.0))

    async def run() -> tuple[RoutedAnswer, RoutedAnswer]:
        first = asyncio.ensure_future(made.answer(_inquiry(None)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        second = await made.answer(_inquiry(DEADLINE_S))
        local.gate.set()
        return await first, second

    first, second = _ended(made, run())
    assert (first.target, second.target) == (LOCAL, CLUSTER)
    assert local.answered.count(b"") == 1, "who left the queue is not answered there"
    assert n_of(made, "hedges") == {(LOCAL, "here"): 1}
    assert second.spent.waited_s >= 0.01, "who asks would take the wait for work, and set this node aside"


def test_an_upstream_that_hangs_is_hedged_for_who_left_a_queue_for_it_too() -> None:
    """Such a request waited out its deadline there, though the device had time for it."""
    local = Held("@local", 1e-3)
    local.gate.clear()
    made = dispatcher(Above(asyncio.Event().wait), local=local, cluster=Endpoint("@cluster", LONG_S))  # type: ignore[arg-type]
    half_s = (ServiceLevel(Curve(((0, 0.5),))),)
    made.router.record_ping(ABOVE, 1e-4, 0.0, CurveAdvert("above", half_s, frozenset({"above"})), 0.0)

    async def run() -> RoutedAnswer:
        first = asyncio.ensure_future(made.answer(_inquiry(None)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        second = await made.answer(_inquiry(DEADLINE_S))
        local.gate.set()
        await first
        return second

    assert _ended(made, run()).target == CLUSTER
    assert n_of(made, "hedges") == {(LOCAL, "here"): 1, (ABOVE, "here"): 1}


def test_no_more_leave_a_queue_at_once_than_another_endpoint_can_answer_in_time() -> None:
    """All that were late at the same moment went there, as none saw the others: most were late there too."""
    local, cluster = Held("@local", 1e-3), Held("@cluster", DEADLINE_S / 2.75)
    # two are in time there even if the first is planned with 1.5 times its time, as it has not begun yet
    local.gate.clear()
    cluster.gate.clear()
    made = dispatcher(Above(_fails), local=local, cluster=cluster)
    made.router.remove_successor(ABOVE)

    async def run() -> int:
        first = asyncio.ensure_future(made.answer(_inquiry(None)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        others = [asyncio.ensure_future(made.answer(_inquiry(DEADLINE_S))) for _ in range(6)]
        await asyncio.to_thread(cluster.begun.wait, PATIENCE_S)
        await asyncio.wait(others, timeout=0.1)
        n_waiting = made.here[LOCAL].n_waiting
        local.gate.set()
        cluster.gate.set()
        await asyncio.gather(first, *others)
        return n_waiting

    assert _ended(made, run()) == 4, "two leave: the third would be late there"


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
    made = dispatcher(Above(_fails), local=local, cluster=Endpoint("@cluster", 1.0, lost))
    made.router.remove_successor(ABOVE)

    def clock() -> float:
        if not held.is_set() and any(task.cancelling() for task in asyncio.all_tasks()):
            held.set()
            assert again.wait(PATIENCE_S)
        return time.monotonic()

    async def run() -> tuple[RoutedAnswer, RoutedAnswer]:
        first = asyncio.ensure_future(made.answer(_inquiry(None)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        second = await made.answer(_inquiry(DEADLINE_S))
        return await first, second

    made = Dispatcher(made.router, made.here, made.metrics, signature(local), clock)
    first, second = _ended(made, run())
    assert (first.target, second.target) == (LOCAL, LOCAL)
    assert local.answered.count(b"") == 2, "once each"


def test_an_endpoint_that_says_no_to_who_left_another_queue_is_not_asked_again() -> None:
    """It was, every ten milliseconds until the deadline, while the request lost its place each time."""
    cluster = Held("@cluster", 1e-3)
    cluster.gate.clear()

    local = Endpoint("@local", LONG_S, lambda: ZeroDivisionError("a bug"))
    made = dispatcher(Above(_fails), local=local, cluster=cluster)

    async def run() -> RoutedAnswer:
        first = asyncio.ensure_future(made.answer(_inquiry(None)))
        await asyncio.to_thread(cluster.begun.wait, PATIENCE_S)
        second = asyncio.ensure_future(made.answer(_inquiry(DEADLINE_S)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        await asyncio.wait({second}, timeout=0.1)
        cluster.gate.set()
        return (await asyncio.gather(second, first))[0]

    assert _ended(made, run()).target == CLUSTER
    assert len(local.answered) == 1


def test_work_beyond_its_bound_is_begun_elsewhere_and_the_first_answer_counts() -> None:
    local = Held("@local", 1e-3)
    local.gate.clear()
    made = dispatcher(Above(_fails), local=local, cluster=Endpoint("@cluster", 1.0))

    async def run() -> RoutedAnswer:
        try:
            return await made.answer(_inquiry(DEADLINE_S))
        finally:
            local.gate.set()

    assert _ended(made, run()).target == CLUSTER
    assert n_of(made, "hedges") == {(LOCAL, "here"): 1}


def test_who_is_refused_by_one_endpoint_here_is_answered_by_another() -> None:
    """An endpoint says by its queue and its latest times what the choice could not know yet."""

    def busy() -> Exception:
        return NodeError("its turn would be late", status=503)

    made = dispatcher(Above(_fails), local=Endpoint("@local", 1e-6, busy), cluster=Endpoint("@cluster", 1.0))
    made.router.remove_successor(ABOVE)
    assert answer(made).target == CLUSTER
    is_late_to_begin = n_of(made, "hedges") == {(LOCAL, "here"): 1}  # the thread of a busy machine
    assert is_late_to_begin or n_of(made, "fallbacks") == {(LOCAL,): 1}


def test_where_everybody_refuses_so_does_the_node() -> None:
    """Once, with what the endpoint here says."""

    def busy() -> Exception:
        return NodeError("its turn would be late", status=503)

    local = Endpoint("@local", 1e-6, busy)
    made = dispatcher(Above(_fails), local=local)
    made.router.record_failure(ABOVE, 0.0)
    with pytest.raises(NodeError, match="late"):
        answer(made)
    assert len(local.answered) == 1, "an upstream that is down gives it no second turn in the queue"


def test_where_nothing_else_answers_in_time_a_late_turn_is_waited_for() -> None:
    local = Held("@local", 1e-3)
    local.gate.clear()
    made = dispatcher(Above(_fails), local=local, cluster=Endpoint("@cluster", 10.0 * DEADLINE_S))

    async def run() -> RoutedAnswer:
        first = asyncio.ensure_future(made.answer(_inquiry(None)))
        await asyncio.to_thread(local.begun.wait, PATIENCE_S)
        second = asyncio.ensure_future(made.answer(_inquiry(DEADLINE_S)))
        await asyncio.wait({second}, timeout=0.1)
        local.gate.set()
        await first
        return await second

    assert _ended(made, run()).target == LOCAL
    assert n_of(made, "hedges") == {}


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
