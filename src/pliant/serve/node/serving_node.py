"""A node: send each request to where it is answered soonest, here or upstream."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any, final

from pliant.errors import InputError, NodeError, RouteError
from pliant.ir.endpoint import Request
from pliant.ir.reply import Reply
from pliant.route.choose_endpoint import LOCAL, TIME, Choice, Objective
from pliant.route.curve_advert import CurveAdvert, Trail
from pliant.route.node_identity import Identity
from pliant.route.node_messages import RouteMessage, Spent
from pliant.route.predecessors import Listener
from pliant.route.router import Router
from pliant.run.session.session import Session
from pliant.serve.http.limits import Limits
from pliant.serve.node.admission import Admission, Done
from pliant.serve.node.explain_choice import Explanation, explain
from pliant.serve.node.local_answers import LocalAnswers
from pliant.serve.node.metrics import HERE, Metrics, State
from pliant.serve.protocol.idempotency import IdempotencyCache
from pliant.serve.protocol.inference import (
    Body,
    InferRequest,
    check_reply,
    read_request,
    signature,
    with_parameter,
    write_reply,
)
from pliant.serve.protocol.terms import PendingRequest, Terms
from pliant.serve.upstream.upstreams import BLAMES_INPUT, UpstreamAnswer, Upstreams

_LOG = logging.getLogger("pliant.serve")
_MOST_FAILURES = 2
"""Upstreams that may fail a request before it is answered here: each of them costs it time."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it came, from the address `client`.

    It has `route` and `id` where a node passed it on, or a client wants it run once.
    """

    body: bytes
    header_bytes: int | None = None
    route: RouteMessage | None = None
    id: str | None = None
    client: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, whose it is (an upstream's, or HERE), and what was spent on it.

    `node` is the name of the node that made it, however many hops away. What was spent is the wait and the
    work, or the time away; not what reading the request took, which whoever asks counts as the way.
    """

    body: Body
    target: str
    node: str
    spent: Spent


@final
class Node:
    """Call on one event loop. Without `upstreams`, set once there is a loop, all is answered here.

    `terms` and `objective` hold for requests that start here and say nothing else. Routes are chosen among
    whole answers; where none of these is in time, the device's own endpoint answers with less accuracy, or
    sooner.
    """

    def __init__(
        self,
        served: Session[Any],
        router: Router,
        admission: Admission,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        terms: Terms = Terms(),  # noqa: B008 - frozen
        objective: Objective = TIME,
        version: str | None = None,
    ) -> None:
        self.identity = Identity(served.identity, version)
        self.terms, self.objective = terms, objective
        self.served, self.router, self.limits, self.clock = served, router, limits, clock
        self.signature = signature(served)
        self.upstreams: Upstreams | None = None
        self.is_draining = False
        self.n_open = 0
        self.metrics = Metrics(lambda: admission.n_waiting, self._states)
        self.local = LocalAnswers(served, router, admission, self.metrics, self._refitted, clock)
        self._once: IdempotencyCache[Answer] = IdempotencyCache(
            clock, lambda answer: len(answer.body.content)
        )

    @property
    def name(self) -> str:
        return self.router.name

    async def infer(self, call: Call) -> Answer:
        """The answer, made here or above; a request that came before under its id is not run again.

        Raises InputError for what the model does not take, BudgetError for an accuracy that it does not have
        and an input too long for its memory, NodeError for a circle (508), where nobody has room (503), and
        for a model that fails (500).
        """
        start_s = self.clock()
        served = self.served
        request = read_request(call.body, call.header_bytes, self.signature, self.limits, served.max_items)
        given = served.request(request.tensors)
        n = given.length
        if n > served.max_length:
            raise InputError(f"the input has length {n}; at most {served.max_length} is read.")
        trail, wish = self._trail(call), self._wish(call, request, given, start_s)
        target, outcome = HERE, "failed"
        self.n_open += 1
        try:
            if call.id is None:
                answer = await self._answer(call, request, wish, trail)
            else:  # the same id with another body is another request
                key = f"{call.id} {len(call.body)} {hash(call.body)}"
                answer = await self._once(key, lambda: self._answer(call, request, wish, trail))
            target, outcome = answer.target, "ok"
        except NodeError as error:
            outcome = "refused" if error.status == 503 else "failed"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self.n_open -= 1
            self.metrics.requests.labels(target, outcome).inc()
            self.metrics.request_seconds.labels(target).observe(self.clock() - start_s)
        return answer

    def tell(self, predecessor: str | None) -> CurveAdvert:
        """This node's word, for the node that asks."""
        self.router.waits(self.local.backlog_s, self.clock())
        return self.router.tell(self.clock(), predecessor)

    def heard_of(self, route: RouteMessage, listener: Listener | None) -> None:
        """A request or ping came from another node, which hears of changes by `listener`."""
        if route.sender is not None and route.sender != self.name:
            self.router.heard_of(route.sender, listener, self.clock())

    def explain(self, n: int) -> Explanation:
        """What would be chosen now for an input of length n on the terms of this node, and why."""
        now_s, backlog_s = self.clock(), self.local.backlog_s
        self.router.waits(backlog_s, now_s)
        due_s = None if self.terms.deadline_s is None else now_s + self.terms.deadline_s
        wish = PendingRequest(
            Request(n, text=""), due_s, self.terms.accuracy_floor, bool(self.terms.best_effort)
        )

        def is_asked(choice: Choice) -> bool:
            return self._patience_s(choice, wish) > 0.0

        refusal = None
        try:
            self.local.check_in_time(wish, backlog_s)
        except NodeError as late:
            refusal = str(late)
        return explain(self.router, n, self.objective, backlog_s, now_s, is_asked, refusal)

    def probe(self, n: int) -> None:
        """Answer a sample of length n here, unless the model is busy: then its requests say as much."""
        if not self.is_draining:
            self.local.probe(n)

    def drain(self) -> None:
        """Say from now on that the node is not ready; it answers what comes nevertheless."""
        self.is_draining = True

    def close(self) -> None:
        """Once all that was let in is answered."""
        self.local.close()

    async def _answer(self, call: Call, request: InferRequest, wish: PendingRequest, trail: Trail) -> Answer:
        """From where it is chosen; where that fails, from the next best, and at last from here."""
        id = call.id or secrets.token_hex(8)
        is_source = call.route is None or not call.route.path  # elsewhere time alone counts (CRIME 4.4)
        asked = call.route.wanted if call.route is not None else None
        objective = asked or self.objective if is_source else TIME
        failed: tuple[str, ...] = ()
        blaming: list[str] = []
        start_s = self.clock()
        while len(failed) < _MOST_FAILURES:
            choice = self._choose(wish, objective, failed, trail)
            if choice is None or choice.target == LOCAL:
                break
            patience_s = self._patience_s(choice, wish)
            if patience_s <= 0.0:
                break
            try:
                answer = await self._there(choice, call, request, wish, trail, id, patience_s)
                self._disprove(blaming)
                spent = Spent(self.clock() - start_s, answer.waited_s)
                return Answer(answer.body, choice.target, answer.node, spent)
            except NodeError as error:
                _LOG.info("%s: %s", id, error)
                failed = (*failed, choice.target)
                if error.status in BLAMES_INPUT:
                    blaming.append(choice.target)
                self.metrics.fallbacks.labels(choice.target).inc()
        tried_s = self.clock() - start_s
        body, done = await self._here(request, wish, id)
        self._disprove(blaming)
        spent = Spent(tried_s + done.waited_s + done.spent_s, done.waited_s)
        return Answer(body, HERE, self.name, spent)

    def _disprove(self, blaming: Iterable[str]) -> None:
        """There is an answer: upstreams that said there can be none have failed."""
        for upstream in blaming:
            assert self.upstreams is not None
            self.upstreams.failed(upstream, "blamed an input that others answer")

    def _choose(
        self, wish: PendingRequest, objective: Objective, failed: tuple[str, ...], trail: Trail
    ) -> Choice | None:
        """None where nobody is left: the queue here is full, and nobody above answers."""
        now_s = self.clock()
        self.router.waits(self.local.backlog_s, now_s)
        full = self.upstreams.slots.full if self.upstreams is not None else ()
        has_room = self.local.has_room(wish.client)
        exclude = (*failed, *full) if has_room else (*failed, *full, LOCAL)
        with suppress(RouteError):
            return self.router.choose(wish.length, now_s, objective, exclude, trail)
        return None

    def _patience_s(self, choice: Choice, wish: PendingRequest) -> float:
        """How long an answer from above is waited for; 0 where one from here is better.

        Such a one has to be in time where the whole answer is not, or, by best effort, sooner where neither
        is; or only a floor was asked for. An answer that is on its way in time is given up when the device's
        fastest could just make it; but not before it is half as late again as it was expected.
        """
        endpoint, now_s = self.served, self.clock()
        if wish.is_free or not self.local.has_room(wish.client):
            return inf
        wait_s, left_s = self.local.backlog_s, wish.left_s(now_s)
        if wish.due_s is None or choice.seconds > left_s:
            asked = wish.at(now_s + wait_s)
            here_s = wait_s + endpoint.estimate(asked).seconds
            if here_s <= left_s:
                return 0.0
            if not wish.best_effort:  # the node above may have a less accurate answer in time
                return max(left_s, 0.0)
            return 0.0 if here_s < choice.seconds else inf
        fastest_s = wait_s + endpoint.curve(wish.floor or 0.0).at(wish.length)
        return max(left_s - fastest_s, 1.5 * choice.seconds)

    def _way_s(self, choice: Choice, n: int, now_s: float) -> float:
        """What of `choice` is spent on the way, neither waiting there nor answering."""
        peer = self.router.state(choice.target, now_s)
        return 0.0 if peer.curve is None else max(0.0, choice.seconds - peer.wait_s - peer.curve.at(n))

    async def _there(
        self,
        choice: Choice,
        call: Call,
        request: InferRequest,
        wish: PendingRequest,
        trail: Trail,
        id: str,
        patience_s: float,
    ) -> UpstreamAnswer:
        assert self.upstreams is not None
        _LOG.info("%s: length %d, to %s, %.6f s expected", id, wish.length, choice.target, choice.seconds)
        n, target = wish.length, choice.target
        if call.route is not None and call.route.patience_s is not None:
            patience_s = min(patience_s, call.route.patience_s / 2.0)  # the rest is for another try
        way_s = 0.0 if wish.is_free else self._way_s(choice, n, self.clock())
        async with self.upstreams.slots.take(target, n, patience_s) as slot:
            terms = Terms() if wish.is_free else wish.passed_on(self.clock(), way_s)
            left_s = patience_s - slot.waited_s
            answer = await self.upstreams.ask(
                target, n, choice.seconds, trail, id, Body(call.body, call.header_bytes), slot, terms, left_s
            )
        try:
            check_reply(answer.body, request, self.signature)
        except InputError as error:
            self.upstreams.misbehaved(target, f"answered what was not asked: {error}")
            raise NodeError(f"{target} answered what was not asked: {error}", status=502) from error
        body = answer.body
        if wish.due_s is not None:
            body = with_parameter(answer.body, "met", self.clock() <= wish.due_s)
        return replace(answer, body=body, waited_s=slot.waited_s + answer.waited_s)

    async def _here(
        self, request: InferRequest, wish: PendingRequest, id: str
    ) -> tuple[Body, Done[Reply[Any]]]:
        done = await self.local.answer(wish)
        _LOG.info("%s: length %d, answered here in %.6f s", id, wish.length, done.spent_s)
        said: dict[str, object] = {}
        if done.result.accuracy is not None:
            said["accuracy"] = done.result.accuracy
        if done.result.cut is not None:
            said["cut"] = done.result.cut
        if wish.due_s is not None:
            said["met"] = self.clock() <= wish.due_s
        return write_reply(request, done.result.outputs, self.signature, said), done

    def _refitted(self) -> None:
        if self.upstreams is not None:
            self.upstreams.changed()

    def _wish(self, call: Call, request: InferRequest, given: Request, start_s: float) -> PendingRequest:
        """The request with its terms: its source's, where another node passed it on.

        Raises BudgetError for an accuracy that this device has not: those above it hold the same model.
        """
        is_passed_on = call.route is not None and bool(call.route.path)
        terms = request.terms.over(self.terms)
        if is_passed_on and call.route is not None:
            terms = Terms(call.route.deadline_s or None, call.route.accuracy_floor, call.route.best_effort)
        due_s = None if terms.deadline_s is None else start_s + terms.deadline_s
        wish = PendingRequest(given, due_s, terms.accuracy_floor, bool(terms.best_effort), call.client)
        self.served.estimate(wish.at(start_s))
        return wish

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
                ("pliant_upstream_wait_seconds", "What a request would wait there.", peer.wait_s),
                ("pliant_upstream_in_flight", "Requests of this node there.", float(peer.n_in_flight)),
                ("pliant_upstream_limit", "Requests that may be there at once.", float(peer.limit)),
                ("pliant_upstream_waiting", "Requests here that wait for a turn.", float(peer.n_waiting)),
            ]
            for name, about, number in rows:
                yield State(name, about, "upstream", peer.name, number)
        yield State(
            "pliant_predecessors", "Nodes that are told.", "node", self.name, len(self.router.predecessors)
        )
