"""One node: each request to where it is answered soonest, here or above. Knows no server and no timer."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import final

from pliant.errors import InputError, NodeError, PliantError, RouteError
from pliant.route.choose import LOCAL, Choice, Objective
from pliant.route.endpoint import Request
from pliant.route.router import Router
from pliant.route.tell import Told, Trail
from pliant.route.wire import RouteMessage
from pliant.serve.admission import Admission
from pliant.serve.explain import Explanation, explain
from pliant.serve.inference import Body, InferRequest, check_reply, read_request, write_reply
from pliant.serve.limits import Limits
from pliant.serve.metrics import HERE, Metrics, State
from pliant.serve.once import Once
from pliant.serve.served import Served, Tensors
from pliant.serve.upstreams import Upstreams

_LOG = logging.getLogger("pliant.serve")
_MOST_FAILURES = 2
"""Upstreams that may fail a request before it is answered here: each of them costs it time."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it came; `route` and `id` where a node passed it on, or a client wants it run once."""

    body: bytes
    header_bytes: int | None = None
    route: RouteMessage | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, and whose it is: an upstream's, or HERE."""

    body: Body
    target: str


@final
class Node:
    """Call on one event loop. Without `upstreams`, set once there is a loop, all is answered here."""

    def __init__(
        self,
        served: Served,
        router: Router,
        admission: Admission,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.served, self.router, self.limits, self.clock = served, router, limits, clock
        self.upstreams: Upstreams | None = None
        self.is_draining = False
        self.n_open = 0
        self.metrics = Metrics(lambda: admission.n_waiting, self._states)
        self._admission = admission
        self._once: Once[Answer] = Once(clock, lambda answer: len(answer.body.content))
        self._probing: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.router.name

    async def infer(self, call: Call) -> Body:
        """The answer, made here or above; a request that came before under its id is not run again.

        Raises InputError for what the model does not take, NodeError for a circle (508), where nobody has
        room (503), and for a model that fails (500).
        """
        start_s = self.clock()
        request = read_request(call.body, call.header_bytes, self.served.signature, self.limits)
        given = self.served.read(request.tensors)
        n = given.length
        if n > self.served.max_length:
            raise InputError(f"the input has length {n}; at most {self.served.max_length} is read.")
        trail = self._trail(call)
        target, outcome = HERE, "failed"
        self.n_open += 1
        try:
            if call.id is None:
                answer = await self._answer(call, request, given, trail)
            else:  # the same id with another body is another request
                key = f"{call.id} {len(call.body)} {hash(call.body)}"
                answer = await self._once(key, lambda: self._answer(call, request, given, trail))
            target, outcome = answer.target, "ok"
        except NodeError as error:
            outcome = "refused" if error.status == 503 else "failed"
            raise
        finally:
            self.n_open -= 1
            self.metrics.requests.labels(target, outcome).inc()
            self.metrics.request_seconds.labels(target).observe(self.clock() - start_s)
        return answer.body

    def tell(self, predecessor: str | None) -> Told:
        """This node's word, for the node that asks."""
        self.router.waits(self._admission.backlog_s, self.clock())
        return self.router.tell(self.clock(), predecessor)

    def heard_of(self, route: RouteMessage, address: str | None) -> None:
        """A request or ping came from another node, which listens at `address`."""
        if route.sender is not None and route.sender != self.name:
            self.router.heard_of(route.sender, address, self.clock())

    def explain(self, n: int) -> Explanation:
        """What would be chosen now for an input of length n, and why."""
        self.router.waits(self._admission.backlog_s, self.clock())
        return explain(self.router, n, self._admission.backlog_s, self.clock())

    def learn(self, lengths: tuple[int, ...], most_s: float) -> None:
        """Answer samples of `lengths` before anybody asks: a first curve. Takes about `most_s` at most."""
        start_s = self.clock()
        for n in tuple(n for n in lengths if n <= self.served.max_length) * 3:
            sample = self.served.read(self.served.sample(n))
            done = self._admission.run_now(partial(self._compute, sample))
            self._answered_here(sample.length, done.spent_s)
            if self.clock() - start_s > most_s:
                return

    def probe(self, n: int) -> None:
        """Answer a sample of length n here, unless the model is busy: then its requests say as much."""
        if self._admission.backlog_s == 0.0 and not self.is_draining:
            self._probing = asyncio.get_running_loop().create_task(self._probe(n))

    def drain(self) -> None:
        """Say from now on that the node is not ready; it answers what comes nevertheless."""
        self.is_draining = True

    def close(self) -> None:
        """Once all that was let in is answered."""
        self._admission.close()
        self.served.close()

    async def _answer(self, call: Call, request: InferRequest, given: Request, trail: Trail) -> Answer:
        """From where it is chosen; where that fails, from the next best, and at last from here."""
        id = call.id or secrets.token_hex(8)
        is_source = call.route is None or not call.route.path  # elsewhere time alone counts (CRIME 4.4)
        objective = call.route.wanted if call.route is not None and is_source else None
        failed: tuple[str, ...] = ()
        while len(failed) < _MOST_FAILURES:
            choice = self._choose(given.length, objective, failed, trail)
            if choice is None or choice.target == LOCAL:
                break
            try:
                return await self._there(choice, call, request, given.length, trail, id)
            except NodeError:
                failed = (*failed, choice.target)
                self.metrics.fallbacks.labels(choice.target).inc()
        return await self._here(request, given)

    def _choose(
        self, n: int, objective: Objective | None, failed: tuple[str, ...], trail: Trail
    ) -> Choice | None:
        """None where nobody is left: the queue here is full, and nobody above answers."""
        now_s = self.clock()
        self.router.waits(self._admission.backlog_s, now_s)
        exclude = (*failed, LOCAL) if self._admission.is_full else failed
        with suppress(RouteError):
            return self.router.choose(n, now_s, objective, exclude, trail)
        return None

    async def _there(
        self, choice: Choice, call: Call, request: InferRequest, n: int, trail: Trail, id: str
    ) -> Answer:
        assert self.upstreams is not None
        body = Body(call.body, call.header_bytes)
        answer = await self.upstreams.ask(choice.target, n, choice.seconds, trail, id, body)
        try:
            check_reply(answer, request, self.served.signature)
        except InputError as error:
            self.upstreams.misbehaved(choice.target)
            raise NodeError(f"{choice.target} answered what was not asked: {error}", status=502) from error
        return Answer(answer, choice.target)

    async def _here(self, request: InferRequest, given: Request) -> Answer:
        curve = self.router.local_curve
        expected_s = 0.0 if curve is None else curve.at(given.length)
        done = await self._admission.run(partial(self._compute, given), expected_s)
        self.metrics.waiting_seconds.observe(done.waited_s)
        self.metrics.compute_seconds.observe(done.spent_s)
        self._answered_here(given.length, done.spent_s)
        return Answer(write_reply(request, done.result, self.served.signature), HERE)

    def _answered_here(self, n: int, spent_s: float) -> None:
        before = self.router.local_curve
        self.router.answered_here(n, spent_s, self.clock())
        if self.router.local_curve is not before:
            self.metrics.refits.inc()
            if self.upstreams is not None:
                self.upstreams.changed()

    async def _probe(self, n: int) -> None:
        with suppress(PliantError):
            sample = self.served.read(self.served.sample(n))
            done = await self._admission.run(partial(self._compute, sample), 0.0)
            self._answered_here(sample.length, done.spent_s)

    def _compute(self, request: Request) -> Tensors:
        """On the worker thread. A model's own mistake is this request's end, not the connection's."""
        try:
            return self.served.answer(request)
        except PliantError:
            raise
        except Exception as error:
            _LOG.exception("%s failed", self.served.signature.name)
            raise NodeError("the model failed on this input; the node's log says how.", status=500) from error

    def _trail(self, call: Call) -> Trail:
        """Where the request has been, this node included. Raises NodeError where that is a circle."""
        given = Trail() if call.route is None or not call.route.path else call.route.trail
        try:
            return Trail(given.path, min(given.hops_left, self.limits.hops)).at(self.name)
        except RouteError as error:
            raise NodeError(str(error), status=508) from error

    def _states(self) -> Iterator[State]:
        """What Prometheus reads of the router."""
        now_s = self.clock()
        for n, seconds in self.router.curve(now_s).points:
            yield State("pliant_curve_seconds", "What predecessors are told.", "length", str(n), seconds)
        for peer in self.router.states(now_s):
            rows = [
                ("pliant_upstream_rtt_seconds", "Round trip.", peer.rtt_s),
                ("pliant_upstream_bandwidth_bytes", "Bytes a second.", peer.bandwidth_Bps),
                ("pliant_upstream_ready", "Whether requests may go there.", float(peer.state == "ready")),
            ]
            for name, about, number in rows:
                yield State(name, about, "upstream", peer.name, number)
        yield State(
            "pliant_predecessors", "Nodes that are told.", "node", self.name, len(self.router.predecessors)
        )
