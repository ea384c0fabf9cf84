"""The nodes above this one: requests passed on, pings, and what else is due; the router learns from each."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite
from typing import final

from pliant.errors import InputError, NodeError, PeerCurveError, PliantError, RouteError
from pliant.ir.link import Link
from pliant.route.choice.terms import Terms
from pliant.route.curve_advert import NAME, Trail
from pliant.route.due import Broadcast, Ping, Probe
from pliant.route.node_identity import NODE_HEADER, PROTOCOL_HEADER, Identity, mismatch, read_identity
from pliant.route.node_messages import (
    CURVE_HEADER,
    ROUTE_HEADER,
    RouteMessage,
    Spent,
    decode_told,
    encode_route,
    encode_told,
)
from pliant.route.router import Router
from pliant.serve.answers.metrics import Metrics
from pliant.serve.http.limits import Limits
from pliant.serve.protocol.inference import BINARY, HEADER_LENGTH, JSON, Body, header_bytes
from pliant.serve.telemetry.request_context import current_headers
from pliant.serve.upstream.broadcasts import Broadcasts
from pliant.serve.upstream.client import Client, Response, checked_url
from pliant.serve.upstream.found_upstreams import FoundUpstreams
from pliant.serve.upstream.slots import Slot, Slots

_LOG = logging.getLogger("pliant.serve")
REQUEST_HEADER = "Pliant-Request"
"""A request's id from its first hop on: a node that has it already runs it no second time."""
CURVE_PATH = "/v2/pliant/curve"
FIRST_GUESS = Link(latency_s=0.05, bandwidth_Bps=1e7)
"""What is believed of a link that was never used; no request goes there before a ping came back."""
SHORTEST_S = 2.0
PATIENCE = 10.0
_PING_S = 10.0
_FIRST_PINGS = 3
_FIRST_CONTACT_S = 2.0
_THROTTLE_S = 0.02
_PAUSE_S = 1.0
_OWN_ERRORS = (422, 503, 508)
"""Of a node that is well: not as accurate as asked, too busy now, a request that came in a circle."""
MISMATCH = 409
"""Of a node that holds another model, or speaks a protocol too far from this one's."""
BLAMES_INPUT = (400, 500)
"""The input cannot be read, or the model fails on it: true if nobody else answers it either."""
_FAIR = 0.25
"""Who is waited for less than that part of the usual patience, as a deadline or a client would have it, has
not failed by that. Nodes below that have half of each other's patience are three hops away by then."""


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """What came back for a request that was passed on, and the name of the node that made it.

    Of the time it took, the request waited `waited_s` in queues there.
    """

    body: Body
    node: str
    waited_s: float


@final
class Upstreams:
    """Calls on the event loop; `run` does what the router has due until it is cancelled.

    `address` is where this node can be told of changes, None if nobody can reach it. `token` is shown to
    upstreams; a node below is shown its own, as anybody may stand behind its address. `probe` answers an
    input of some length here, when the device is idle. `queue` requests may wait for each upstream. One
    whose identity does not fit `identity`, this node's, is never asked.
    """

    def __init__(
        self,
        router: Router,
        client: Client,
        urls: tuple[str, ...],
        model: str,
        address: str | None,
        token: str | None,
        probe: Callable[[int, str], None],
        metrics: Metrics,
        limits: Limits,
        queue: int,
        clock: Callable[[], float] = time.monotonic,
        identity: Identity = Identity(),  # noqa: B008 - frozen
    ) -> None:
        self._identity = identity
        self.slots = Slots(router, clock, queue, lambda url, joules: metrics.joules.labels(url).inc(joules))
        self._router, self._client, self._clock = router, client, clock
        self._address, self._token, self._probe = address, token, probe
        self._model, self._metrics, self._limits = model, metrics, limits
        self._changed = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        self._broadcasts = Broadcasts(router.predecessors, client, identity, metrics)
        self._warm: set[str] = set()
        self._states: dict[str, tuple[str, str | None]] = {}
        self.found = FoundUpstreams(self, router, clock)
        for url in urls:
            self.add(checked_url(url))

    def add(self, url: str) -> None:
        """`url` becomes an upstream, if it is none; it is pinged at once."""
        if self._router.state(url, self._clock()) is None:
            self._router.successor(url, FIRST_GUESS)
            self._metrics.begin(url, is_upstream=True)
            self.changed()

    def show(self, token: str | None) -> None:
        """Upstreams are shown `token` from now on."""
        self._token = token

    def remove(self, url: str) -> None:
        """`url` is no longer used. What waits for it goes elsewhere; what is on its way is still answered."""
        self._router.remove(url)
        self.slots.refuse(url)
        self._warm.discard(url)
        self._states.pop(url, None)
        self._metrics.forget(url)
        self.changed()

    async def ask(
        self,
        upstream: str,
        n: int,
        expected_s: float,
        trail: Trail,
        id: str,
        body: Body,
        slot: Slot,
        terms: Terms = Terms(),  # noqa: B008 - frozen
        patience_s: float = inf,
    ) -> UpstreamAnswer:
        """The answer of `upstream` to an input of length n, which has a `slot` there.

        Raises NodeError where there is none, or none within `patience_s`: the request is to be answered
        elsewhere. With a status of BLAMES_INPUT the upstream has `failed` if it is.
        """
        usual_s = min(self._limits.hop_s, max(SHORTEST_S, PATIENCE * expected_s))
        timeout_s = min(usual_s, patience_s)
        sent = trail.sent()
        message = RouteMessage(
            sent.path,
            sent.hops_left,
            self._router.name,
            self._address,
            deadline_s=terms.deadline_s,
            accuracy_floor=terms.accuracy_floor,
            best_effort=bool(terms.best_effort),
            patience_s=timeout_s,
        )
        headers = {**self._headers(message), **current_headers(), REQUEST_HEADER: id, "content-type": JSON}
        if body.header_bytes is not None:
            headers |= {HEADER_LENGTH: str(body.header_bytes), "content-type": BINARY}
        url = f"{upstream}/v2/models/{self._model}/infer"
        try:
            self._client.spare(upstream)
            response = await self._client.call("POST", url, headers, body.content, timeout_s, self._token)
            now_s = self._clock()
            self._metrics.of(self._metrics.upstream_bytes, upstream, "out").inc(response.sent_bytes)
            self._metrics.of(self._metrics.upstream_bytes, upstream, "in").inc(response.received_bytes)
            self._check_identity(upstream, response)
            spent = self._heard(upstream, n, response, slot, now_s)
        except NodeError as error:
            if error.status == MISMATCH:
                pass  # `_check_identity` has taken it out
            elif error.status == 504 and timeout_s < _FAIR * usual_s:
                self.overdue(upstream, n, slot.waited_s + timeout_s - expected_s)
            else:
                self.failed(upstream, str(error))
            raise
        except RouteError as error:
            self.misbehaved(upstream, str(error))
            raise NodeError(f"{upstream} answered what cannot be read: {error}", status=502) from error
        if response.status == 200:
            waited_s = 0.0 if spent is None else spent.waited_s
            return UpstreamAnswer(
                self._body(upstream, response), self._answering(upstream, response), waited_s
            )
        if response.status not in (*_OWN_ERRORS, *BLAMES_INPUT):
            self.failed(upstream, f"answered with status {response.status}")
        status = response.status if response.status in BLAMES_INPUT else 502
        raise NodeError(f"{upstream} answered with status {response.status}.", status=status)

    def failed(self, upstream: str, reason: str) -> None:
        """No answer came, or none of use: others are chosen until it answers a ping."""
        self._warm.discard(upstream)
        self._router.failed(upstream, self._clock(), reason)
        self._note(upstream)

    def overdue(self, upstream: str, n: int, late_s: float) -> None:
        """An answer to an input of length n is not waited for, `late_s` after it was expected."""
        self._router.overdue(upstream, n, late_s, self._clock())
        self._note(upstream)

    def misbehaved(self, upstream: str, reason: str) -> None:
        """What came cannot be: the node is set aside for a while."""
        self._router.misbehaved(upstream, self._clock(), reason)
        self._note(upstream)

    def _note(self, upstream: str) -> None:
        """After an event of `upstream`: log and count where it ceased to be a candidate, or is one again.

        Requests that wait for an upstream that is none any more go elsewhere.
        """
        self.changed()
        peer = self._router.state(upstream, self._clock())
        if peer is None:
            return
        state = (peer.state, peer.reason)
        before = self._states.get(upstream, ("unknown", None))
        if state == before:
            return
        self._states[upstream] = state
        if peer.state == "ready":
            _LOG.info("upstream %s: used from now on", upstream)
            return
        self.slots.refuse(upstream)
        if peer.reason is not None:
            _LOG.warning("upstream %s is not used (%s): %s", upstream, *state)
            self._metrics.exclusions.labels(upstream, peer.state).inc()
        self.found.failed(upstream)

    def changed(self) -> None:
        """The router may have something due."""
        self._changed.set()

    def told(self, body: bytes) -> None:
        """A broadcast came in, a hint to ping the upstream that it speaks of.

        Raises RouteError for one that cannot be, NodeError (404) where it speaks of no upstream.
        """
        told, _ = decode_told(body)
        now_s = self._clock()
        names = [state.name for state in self._router.states(now_s) if state.node == told.node]
        if not names:
            raise NodeError(f"{told.node} is no upstream of {self._router.name}.", status=404)
        for name in names:
            self._router.gossip(name, told, now_s)
        self.changed()

    async def first_contacts(self, most_s: float = _FIRST_CONTACT_S) -> None:
        """Return once every upstream has answered its first ping, or failed it, or `most_s` have passed."""
        deadline_s = self._clock() + most_s
        while self._clock() < deadline_s and any(
            state.contact_s is None and state.state == "unknown"
            for state in self._router.states(self._clock())
        ):
            await asyncio.sleep(_THROTTLE_S)

    async def run(self) -> None:
        """Ping, broadcast and probe when it is due; ends when it is cancelled, and all that is under way.

        What cannot be done now is logged and tried again: without pings no upstream would come back.
        """
        try:
            while True:
                try:
                    await self._due_once()
                except PliantError:
                    _LOG.exception("%s cannot do what is due", self._router.name)
                    await asyncio.sleep(_PAUSE_S)
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _due_once(self) -> None:
        """All that is due, and then until something is again."""
        self._changed.clear()
        self._do_due()
        wait_s = self._router.next_due_s(self._clock()) - self._clock()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s if isfinite(wait_s) else None):
                await self._changed.wait()
        await asyncio.sleep(_THROTTLE_S)  # under load everything changes all the time

    def _do_due(self) -> None:
        for action in self._router.due(self._clock()):
            match action:
                case Ping(upstream):
                    self._start(self._ping(upstream))
                case Broadcast(predecessors, told):
                    body = encode_told(told).encode()
                    for name in predecessors:
                        if self._broadcasts.replace(name, body):
                            self._start(self._broadcasts.send(name))
                case Probe(length, endpoint):
                    self._probe(length, endpoint)

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _ping(self, upstream: str) -> None:
        """Its round trip and its curve. On a new connection the first call only opens that, and three count:
        one alone may have met a stall, and nothing would correct it for T_ping."""
        message = RouteMessage(sender=self._router.name, address=self._address)
        headers = self._headers(message)
        url = f"{upstream}{CURVE_PATH}?model={self._model}"
        n = 1
        try:
            if upstream not in self._warm:
                await self._client.call("GET", url, {}, b"", _PING_S, self._token)
                if self._router.state(upstream, self._clock()) is None:
                    return  # it was removed meanwhile
                self._warm.add(upstream)
                n = _FIRST_PINGS
            for _ in range(n):
                await self._measure(upstream, url, headers)
        except NodeError as error:
            self._metrics.pings.labels(upstream, "mismatch" if error.status == MISMATCH else "failed").inc()
            if error.status != MISMATCH:
                self.failed(upstream, str(error))
        except RouteError as error:
            self._metrics.pings.labels(upstream, "misbehaved").inc()
            self.misbehaved(upstream, str(error))

    async def _measure(self, upstream: str, url: str, headers: dict[str, str]) -> None:
        response = await self._client.call("GET", url, headers, b"", _PING_S, self._token)
        now_s = self._clock()
        self._check_identity(upstream, response)
        if response.status != 200:
            raise NodeError(f"{upstream} answers pings with status {response.status}.", status=502)
        told, spent = decode_told(response.content)
        if upstream not in self._warm:
            return  # it failed a request meanwhile: a ping that is sent later says whether it is back
        spent_s = 0.0 if spent is None else spent.seconds
        self._router.pinged(upstream, response.away_s, spent_s, told, now_s)
        self._metrics.pings.labels(upstream, "ok").inc()
        self.found.answered(upstream)
        self._note(upstream)

    def _headers(self, message: RouteMessage) -> dict[str, str]:
        return {ROUTE_HEADER: encode_route(message), **self._identity.headers()}

    def _check_identity(self, upstream: str, response: Response) -> None:
        """Take `upstream` out of the routes where its identity does not fit this node's.

        Raises NodeError of status MISMATCH then, and RouteError for an identity that cannot be. A refusal for
        its token, or of a proxy, comes without one.
        """
        if response.status != 200 and PROTOCOL_HEADER not in response.headers:
            return
        other = read_identity(response.headers)
        reason = mismatch(self._identity, other)
        if reason is not None:
            self._warm.discard(upstream)
            self._router.mismatched(upstream, self._clock(), reason)
            self._metrics.mismatches.labels(upstream).inc()
            self._note(upstream)
            raise NodeError(f"{upstream} does not fit: {reason}.", status=MISMATCH)

    def _answering(self, upstream: str, response: Response) -> str:
        """Who made an answer, as the upstream says; the upstream itself, where it does not."""
        said = response.headers.get(NODE_HEADER, "")
        if NAME.fullmatch(said):
            return said
        names = [peer.node for peer in self._router.states(self._clock()) if peer.name == upstream]
        return names[0] if names and names[0] is not None else upstream

    def _body(self, upstream: str, response: Response) -> Body:
        try:
            return Body(response.content, header_bytes(response.headers.get(HEADER_LENGTH)))
        except InputError as error:
            self.misbehaved(upstream, str(error))
            raise NodeError(f"{upstream} answered what cannot be read: {error}", status=502) from error

    def _heard(self, upstream: str, n: int, response: Response, slot: Slot, now_s: float) -> Spent | None:
        """Tell the router what came with an answer; what that says it spent."""
        text = response.headers.get(CURVE_HEADER)
        if text is None:
            return None
        try:
            told, spent = decode_told(text)
        except PeerCurveError as error:
            self.misbehaved(upstream, str(error))
            return None
        if response.status == 200:
            sizes = (response.sent_bytes, response.received_bytes)
            seconds, waited_s = (0.0, 0.0) if spent is None else (spent.seconds, spent.waited_s)
            self._router.answered_by(
                upstream, n, *sizes, response.away_s, seconds, told, now_s, waited_s, slot.passage
            )
        else:
            self._router.told(upstream, told, now_s)
        self._note(upstream)
        return spent
