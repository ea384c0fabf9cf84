"""Upstream nodes: forwarded requests, pings and other due actions, reported to the router."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite
from typing import final

from pliant.errors import InputError, NodeError, PeerCurveError, RouteError
from pliant.ir.link import Link
from pliant.route.choice.objective import Objective
from pliant.route.choice.request_progress import answer_timeout
from pliant.route.choice.request_terms import Terms
from pliant.route.curve_advert import NAME, Trail
from pliant.route.node_identity import NODE_HEADER, PROTOCOL_HEADER, Identity, mismatch, read_identity
from pliant.route.node_messages import (
    CURVE_HEADER,
    ROUTE_HEADER,
    NodeTime,
    RouteMessage,
    decode_advert,
    encode_advert,
    encode_route,
)
from pliant.route.router import Router
from pliant.route.router_tasks import BroadcastTask, PingTask, ProbeTask
from pliant.serve.answers.metrics import Metrics
from pliant.serve.http.limits import Limits
from pliant.serve.protocol.inference import BINARY, HEADER_LENGTH, JSON, InferBody, header_bytes
from pliant.serve.telemetry.request_context import current_headers
from pliant.serve.upstream.broadcasts import Broadcasts
from pliant.serve.upstream.client import Client, Response, checked_url
from pliant.serve.upstream.discovered_upstreams import DiscoveredUpstreams
from pliant.serve.upstream.slots import UpstreamSlot, UpstreamSlots

_LOG = logging.getLogger("pliant.serve")
REQUEST_HEADER = "Pliant-Request"
"""The id of a request on all hops: a node that has already received it does not run it again."""
CURVE_PATH = "/v2/pliant/curve"
FIRST_GUESS = Link(latency_s=0.05, bandwidth_Bps=1e7)
"""Assumed link before its first use; no request is sent before a ping succeeded."""
_PING_S = 10.0
_FIRST_PINGS = 3  # on a new connection: a stall in a single ping would count until the next T_ping
_FIRST_CONTACT_S = 2.0
_THROTTLE_S, _PAUSE_S = 0.02, 1.0
_OWN_ERRORS = (422, 503, 508)
"""Statuses of a healthy node: accuracy not available, overloaded, routing loop."""
MISMATCH = 409
"""Status of a node with another model or an incompatible protocol version."""
BLAMES_INPUT = (400, 500)
"""Statuses for unreadable input or a failing model: the upstream is at fault if another endpoint answers."""


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """The response to a forwarded request, and the name of the node that computed it.

    `waited_s` is the time that the request waited in queues there.
    """

    body: InferBody
    node: str
    waited_s: float


@final
class Upstreams:
    """Calls upstreams on the event loop; `run` performs the router's due actions until cancelled.

    `address` is the callback address of this node, None if it is unreachable. `token` is sent to upstreams;
    downstream nodes are called with their own token, since a callback address is not verified. `probe` runs
    an input of a given length locally when the device is idle. Up to `queue` requests may wait for each
    upstream. An upstream whose identity does not match `identity`, this node's, gets no requests.
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
        self.slots = UpstreamSlots(router, clock, queue, lambda url, j: metrics.joules.labels(url).inc(j))
        self._router, self._client, self._clock = router, client, clock
        self._address, self._token, self._probe = address, token, probe
        self._model, self._metrics, self._limits = model, metrics, limits
        self._changed = asyncio.Event()
        self._warm, self._under_way = set[str](), set[asyncio.Task[None]]()
        self._broadcasts = Broadcasts(router.predecessors, client, identity, metrics)
        self._states: dict[str, tuple[str, str | None]] = {}
        configured = tuple(map(checked_url, urls))
        self.discovered = DiscoveredUpstreams(self, router, clock, configured)
        for url in configured:
            self.add(url)

    def add(self, url: str) -> None:
        """Add the upstream `url`, unless it exists, and ping it at once."""
        if self._router.state(url, self._clock()) is None:
            self._router.add_successor(url, FIRST_GUESS)
            self._metrics.begin(url, is_upstream=True)
            self.changed()

    def replace_token(self, token: str | None) -> None:
        """Send `token` to upstreams from now on."""
        self._token = token

    def remove(self, url: str) -> None:
        """Remove `url`. Waiting requests use other endpoints; requests in flight still complete."""
        self._router.remove_successor(url)
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
        body: InferBody,
        slot: UpstreamSlot,
        terms: Terms = Terms(),  # noqa: B008 - frozen
        patience_s: float = inf,
        objective: Objective | None = None,
    ) -> UpstreamAnswer:
        """Forward an input of length n to `upstream` in `slot` and return its response.

        `objective` is the request's own. Raises NodeError if there is no response, or none within
        `patience_s`; the caller should then use another endpoint. After a status of BLAMES_INPUT the caller
        reports the upstream as `failed` if another endpoint succeeds.
        """
        timeout = answer_timeout(expected_s, patience_s, self._limits.hop_s)
        if timeout.seconds <= 0.0:  # it waited too long for its slot
            raise NodeError(f"no time is left to ask {upstream}.", status=504)
        sent = trail.next_hop()
        message = RouteMessage(
            sent.path,
            sent.hops_left,
            self._router.name,
            self._address,
            objective=None if objective is None else (objective.per_second, objective.per_joule),
            deadline_s=terms.deadline_s,
            accuracy_floor=terms.accuracy_floor,
            best_effort=bool(terms.best_effort),
            patience_s=timeout.seconds,
        )
        headers = {**self._headers(message), **current_headers(), REQUEST_HEADER: id, "content-type": JSON}
        if body.header_bytes is not None:
            headers |= {HEADER_LENGTH: str(body.header_bytes), "content-type": BINARY}
        url = f"{upstream}/v2/models/{self._model}/infer"
        try:
            self._client.spare(upstream)
            response = await self._client.call(
                "POST", url, headers, body.content, timeout.seconds, self._token
            )
            now_s = self._clock()
            self._metrics.child(self._metrics.upstream_bytes, upstream, "out").inc(response.sent_bytes)
            self._metrics.child(self._metrics.upstream_bytes, upstream, "in").inc(response.received_bytes)
            self._check_identity(upstream, response)
            spent = self._report_response(upstream, n, response, slot, now_s)
        except NodeError as error:
            if error.status == MISMATCH:
                pass  # `_check_identity` has excluded it
            elif error.status == 504 and not timeout.is_failure:
                self.overdue(upstream, n, slot.waited_s + timeout.seconds - expected_s)
            else:
                self.failed(upstream, str(error))
            raise
        except RouteError as error:
            self.misbehaved(upstream, str(error))
            raise NodeError(f"{upstream} sent an invalid response: {error}", status=502) from error
        if response.status == 200:
            waited_s = 0.0 if spent is None else spent.waited_s
            return UpstreamAnswer(self._body(upstream, response), self._node_of(upstream, response), waited_s)
        if response.status not in (*_OWN_ERRORS, *BLAMES_INPUT):
            self.failed(upstream, f"answered with status {response.status}")
        status = response.status if response.status in BLAMES_INPUT else 502
        raise NodeError(f"{upstream} answered with status {response.status}.", status=status)

    def failed(self, upstream: str, reason: str) -> None:
        """Report a failure: the upstream is not chosen until it answers a ping."""
        self._warm.discard(upstream)
        self._router.record_failure(upstream, self._clock(), reason)
        self._report_state(upstream)

    def overdue(self, upstream: str, n: int, late_s: float) -> None:
        """Report that a response for length n was given up `late_s` after its expected time."""
        self._router.record_overdue(upstream, n, late_s, self._clock())
        self._report_state(upstream)

    def misbehaved(self, upstream: str, reason: str) -> None:
        """Report an invalid response: the upstream is excluded for a while."""
        self._router.record_misbehaviour(upstream, self._clock(), reason)
        self._report_state(upstream)

    def _report_state(self, upstream: str) -> None:
        """After an event of `upstream`, log and count whether it became or ceased to be a candidate.

        If it is no longer a candidate, waiting requests use other endpoints.
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
        self.discovered.failed(upstream)

    def changed(self) -> None:
        """Wake up `run`: the router may have a due action."""
        self._changed.set()

    def receive_broadcast(self, body: bytes) -> None:
        """Handle a broadcast, a hint to ping the upstream that it names.

        Raises RouteError if it is invalid, and NodeError (404) if it names no upstream.
        """
        told, _ = decode_advert(body)
        now_s = self._clock()
        names = [state.name for state in self._router.states(now_s) if state.node == told.node]
        if not names:
            raise NodeError(f"{told.node} is not an upstream of {self._router.name}.", status=404)
        for name in names:
            self._router.handle_broadcast(name, told, now_s)
        self.changed()

    async def first_contacts(self, most_s: float = _FIRST_CONTACT_S) -> None:
        """Wait until every upstream has answered or failed its first ping, at most `most_s`."""
        deadline_s = self._clock() + most_s
        while self._clock() < deadline_s and any(
            state.contact_s is None and state.state == "unknown"
            for state in self._router.states(self._clock())
        ):
            await asyncio.sleep(_THROTTLE_S)

    async def run(self) -> None:
        """Send due pings and broadcasts and run due probes until cancelled; then cancel all of them.

        Errors are logged and retried: without pings, no excluded upstream would return.
        """
        try:
            while True:
                try:
                    await self._due_once()
                except Exception:  # noqa: BLE001 - the task would end, and nobody notice
                    _LOG.exception("%s: a due action failed", self._router.name)
                    await asyncio.sleep(_PAUSE_S)
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _due_once(self) -> None:
        """Perform all due actions, then wait for the next one."""
        self._changed.clear()
        self._do_due()
        wait_s = self._router.next_due_s(self._clock()) - self._clock()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s if isfinite(wait_s) else None):
                await self._changed.wait()
        await asyncio.sleep(_THROTTLE_S)  # limits the rate: under load there are always changes

    def _do_due(self) -> None:
        for action in self._router.take_due_tasks(self._clock()):
            match action:
                case PingTask(upstream):
                    self._start(self._ping(upstream))
                case BroadcastTask(predecessors, told):
                    body = encode_advert(told).encode()
                    for name in predecessors:
                        if self._broadcasts.replace(name, body):
                            self._start(self._broadcasts.send(name))
                case ProbeTask(length, endpoint):
                    self._probe(length, endpoint)

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _ping(self, upstream: str) -> None:
        """Measure the round trip and fetch the curve; an extra first call opens a new connection."""
        message = RouteMessage(sender=self._router.name, address=self._address)
        headers = self._headers(message)
        url = f"{upstream}{CURVE_PATH}?model={self._model}"
        n = 1
        try:
            if upstream not in self._warm:
                await self._client.call("GET", url, {}, b"", _PING_S, self._token)
                if self._router.state(upstream, self._clock()) is None:
                    return  # it was removed in the meantime
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
        told, spent = decode_advert(response.content)
        if upstream not in self._warm:
            return  # a request failed in the meantime: a later ping tells whether it is back
        spent_s = 0.0 if spent is None else spent.seconds
        self._router.record_ping(upstream, response.away_s, spent_s, told, now_s)
        self._metrics.pings.labels(upstream, "ok").inc()
        self.discovered.answered(upstream)
        self._report_state(upstream)

    def _headers(self, message: RouteMessage) -> dict[str, str]:
        return {ROUTE_HEADER: encode_route(message), **self._identity.headers()}

    def _check_identity(self, upstream: str, response: Response) -> None:
        """Exclude `upstream` if its identity does not match this node's.

        Raises NodeError with status MISMATCH in that case, and RouteError for an invalid identity. A refusal
        by token or by a proxy has no identity header.
        """
        if response.status != 200 and PROTOCOL_HEADER not in response.headers:
            return
        other = read_identity(response.headers)
        reason = mismatch(self._identity, other)
        if reason is not None:
            self._warm.discard(upstream)
            self._router.record_mismatch(upstream, self._clock(), reason)
            self._metrics.mismatches.labels(upstream).inc()
            self._report_state(upstream)
            raise NodeError(f"{upstream} does not fit: {reason}.", status=MISMATCH)

    def _node_of(self, upstream: str, response: Response) -> str:
        """The node that computed a response, as stated by the upstream, or else the upstream itself."""
        said = response.headers.get(NODE_HEADER, "")
        if NAME.fullmatch(said):
            return said
        names = [peer.node for peer in self._router.states(self._clock()) if peer.name == upstream]
        return names[0] if names and names[0] is not None else upstream

    def _body(self, upstream: str, response: Response) -> InferBody:
        try:
            return InferBody(response.content, header_bytes(response.headers.get(HEADER_LENGTH)))
        except InputError as error:
            self.misbehaved(upstream, str(error))
            raise NodeError(f"{upstream} sent an invalid response: {error}", status=502) from error

    def _report_response(
        self, upstream: str, n: int, response: Response, slot: UpstreamSlot, now_s: float
    ) -> NodeTime | None:
        """Report a response's headers to the router; returns the time that the upstream spent."""
        text = response.headers.get(CURVE_HEADER)
        if text is None:
            return None
        try:
            told, spent = decode_advert(text)
        except PeerCurveError as error:
            self.misbehaved(upstream, str(error))
            return None
        if response.status == 200:
            sizes = (response.sent_bytes, response.received_bytes)
            seconds, waited_s = (0.0, 0.0) if spent is None else (spent.seconds, spent.waited_s)
            self._router.record_answer(
                upstream, n, *sizes, response.away_s, seconds, told, now_s, waited_s, slot.ticket
            )
        else:
            self._router.record_advert(upstream, told, now_s)
        self._report_state(upstream)
        return spent
