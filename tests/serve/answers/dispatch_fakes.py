"""A dispatcher whose endpoints and upstream do as the test says."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

from pliant.errors import ClusterError, NodeError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import Estimate, Request, ServiceLevel
from pliant.ir.link import Link
from pliant.ir.reply import Reply
from pliant.route.choice.choose_endpoint import LOCAL
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
    async def _take(
        self, upstream: str, n: int, patience_s: float, level: ServiceLevel | None = None
    ) -> AsyncIterator[UpstreamSlot]:
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
    metrics = Metrics()
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
        return await made.answer(inquiry(DEADLINE_S))

    return run_to_end(made, asked())


def inquiry(deadline_s: float | None) -> RoutedRequest:
    clock = asyncio.get_running_loop().time  # time.monotonic
    due_s = None if deadline_s is None else clock() + deadline_s
    pending = PendingRequest(Request(1, tensors={"text": texts("x")}), due_s)
    return RoutedRequest(
        InferRequest("id", {}, (), NO_TERMS), pending, Trail().visit("me"), "id", lambda: InferBody(b"", None)
    )


async def upstream_fails() -> None:
    raise NodeError("it is gone", status=502)


def run_to_end(made: Dispatcher, asked: Coroutine[Any, Any, T]) -> T:
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


class Held(Endpoint):
    """Works on the first request until `gate` opens, and expects to take what it says."""

    def estimate(self, request: Request) -> Estimate:
        return replace(super().estimate(request), seconds=self._said[0].curve.at(request.length))

    def answer(self, request: Request) -> Reply[None]:
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)
        return super().answer(request)
