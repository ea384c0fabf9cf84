"""A queue for the request slots of each upstream, first come, first served."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import final

from pliant.errors import NodeError, RouteError
from pliant.ir.endpoint import ServiceLevel
from pliant.route.router import Router
from pliant.route.upstream.upstream_queue import QueueTicket


@dataclass(slots=True)
class _SlotWaiter:
    ticket: QueueTicket
    is_sent: "asyncio.Future[bool]"


@dataclass(frozen=True, slots=True)
class UpstreamSlot:
    """A slot of a request at an upstream, after a wait of `waited_s`."""

    ticket: QueueTicket
    waited_s: float


@final
@dataclass(slots=True)
class UpstreamSlots:
    """The router limits the concurrent requests at each upstream; `most` more may wait.

    `on_joules` is called with the radio energy of each request on this device, answered or not.
    """

    router: Router
    clock: Callable[[], float]
    most: int
    on_joules: Callable[[str, float], None] = lambda upstream, joules: None
    _pending: dict[str, deque[_SlotWaiter]] = field(default_factory=dict)

    @property
    def full(self) -> tuple[str, ...]:
        """Upstreams with a full queue."""
        return tuple(
            name
            for name, pending in self._pending.items()
            if len(pending) >= self.most and not self.router.has_room(name)
        )

    @asynccontextmanager
    async def take(
        self, upstream: str, n: int, patience_s: float, level: ServiceLevel | None = None
    ) -> AsyncIterator[UpstreamSlot]:
        """A slot for an input of length n at the chosen `level`, released at the end of the context.

        Raises NodeError if the queue is full (503), if `upstream` fails in the meantime (502), or after
        `patience_s` seconds (504); the caller should then use another endpoint.
        """
        start_s = self.clock()
        try:
            ticket = self.router.enter(upstream, n, start_s, level)
        except RouteError as error:
            raise NodeError(str(error), status=502) from error
        try:
            pending = self._pending.setdefault(upstream, deque())
            if not pending and self.router.has_room(upstream):
                self.router.send(upstream, ticket, start_s)
            else:
                await self._wait_for_slot(upstream, pending, ticket, patience_s)
            yield UpstreamSlot(ticket, self.clock() - start_s)
        finally:
            self.router.leave(upstream, ticket, self.clock())
            if ticket.joules is not None:
                self.on_joules(upstream, ticket.joules)
            self._grant(upstream)

    def refuse(self, upstream: str) -> None:
        """Fail all requests that wait for `upstream`, so that they use other endpoints."""
        for pending in self._pending.pop(upstream, ()):
            if not pending.is_sent.done():
                pending.is_sent.set_result(False)

    async def _wait_for_slot(
        self, upstream: str, pending: deque[_SlotWaiter], ticket: QueueTicket, patience_s: float
    ) -> None:
        if len(pending) >= self.most:  # several requests were routed here at once
            raise NodeError(f"the queue for {upstream} is full.", status=503)
        mine = _SlotWaiter(ticket, asyncio.get_running_loop().create_future())
        pending.append(mine)
        try:
            async with asyncio.timeout(patience_s if isfinite(patience_s) else None):
                is_sent = await mine.is_sent
        except TimeoutError:
            raise NodeError(
                f"no request could be sent to {upstream} within {patience_s:.3g} s.", status=504
            ) from None
        finally:
            if mine in pending:
                pending.remove(mine)
        if not is_sent:
            raise NodeError(f"{upstream} failed before its turn came.", status=502)

    def _grant(self, upstream: str) -> None:
        pending = self._pending.get(upstream)
        while pending and self.router.has_room(upstream):
            first = pending.popleft()
            if not first.is_sent.done():
                self.router.send(upstream, first.ticket, self.clock())
                first.is_sent.set_result(True)
