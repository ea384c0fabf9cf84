"""Clients that each send an input as soon as the last is answered, through a node to one above it.

A discrete-event simulation: both nodes' decisions are a `Router`'s, both devices work on one input after
another, and the clock is virtual. `simulate` has one input at a time; here they meet in queues.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from pliant.ir.curve import Curve
from pliant.ir.link import Link
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.route.upstream.upstream_queue import QueueTicket

N = 10
SETTINGS = RouterSettings(N)


@dataclass
class Device:
    """Works on one input after another, each for `work_s`."""

    loop: "ClosedLoop"
    work_s: float
    n_servers: int = 1
    free_at_s: list[float] = field(default_factory=list)

    def backlog_s(self) -> float:
        waits = [max(at - self.loop.now_s, 0.0) for at in self.free_at_s]
        return min(waits) if len(waits) >= self.n_servers else 0.0

    def work(self, then: Callable[[float], None]) -> None:
        """`then` is told what the input waited once it is done."""
        waited_s = self.backlog_s()
        done_s = self.loop.now_s + waited_s + self.work_s
        if len(self.free_at_s) >= self.n_servers:
            heapq.heapreplace(self.free_at_s, done_s)
        else:
            heapq.heappush(self.free_at_s, done_s)
        self.loop.at(done_s, lambda: then(waited_s))


class ClosedLoop:
    """`work_s` above, `slower` times that here, `way_s` there and back; `others` clients ask above directly.

    `told_s` is what the node above tells of its work, and what it takes unless it lies.
    """

    def __init__(
        self,
        n_clients: int,
        work_s: float,
        slower: float = 100.0,
        way_s: float = 1e-3,
        others: int = 0,
        n_servers: int = 1,
        told_s: float | None = None,
    ) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.above, self.here = Device(self, work_s, n_servers), Device(self, slower * work_s)
        told = Curve(((0, work_s if told_s is None else told_s),))
        self.up = Router("up", SETTINGS, told)
        self.node = Router("node", SETTINGS, Curve(((0, slower * work_s),)))
        self.node.add_successor("up", Link(way_s, 1e9))
        self.node.record_ping("up", way_s, 0.0, self.up.advertise(0.0, "node"), 0.0)
        self._way_s = way_s
        self._pending: deque[QueueTicket] = deque()
        self.n_above = self.n_here = self.n_others = self.most_in_flight = 0
        for _ in range(n_clients):
            self.at(0.0, self._arrive)
        for _ in range(others):
            self.at(0.0, self._arrive_directly)

    def run(self, seconds: float) -> "ClosedLoop":
        while self._events[0][0] < seconds:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        return self

    def at(self, when_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), event))

    def _arrive(self) -> None:
        self.node.set_wait(self.here.backlog_s(), self.now_s)
        if self.node.choose(N, self.now_s).target == LOCAL:
            self.here.work(lambda _: self._answered_here())
            return
        self._pending.append(self.node.enter("up", N, self.now_s))
        self._send()

    def _answered_here(self) -> None:
        self.n_here += 1
        self._arrive()

    def _send(self) -> None:
        while self._pending and self.node.has_room("up"):
            ticket, sent_s = self._pending.popleft(), self.now_s
            self.node.send("up", ticket, sent_s)
            in_flight = self.node.state("up", sent_s).n_in_flight
            self.most_in_flight = max(self.most_in_flight, in_flight)
            self.at(sent_s + self._way_s / 2.0, lambda p=ticket, s=sent_s: self._reach(p, s))  # type: ignore[misc]

    def _reach(self, ticket: QueueTicket, sent_s: float) -> None:
        def done(waited_s: float) -> None:
            self.up.set_wait(self.above.backlog_s(), self.now_s)
            told = self.up.advertise(self.now_s, "node")
            back_s = self.now_s + self._way_s / 2.0
            self.at(back_s, lambda: self._return(ticket, sent_s, told, waited_s))

        self.above.work(done)

    def _return(self, ticket: QueueTicket, sent_s: float, told: object, waited_s: float) -> None:
        self.n_above += 1
        spent_s = waited_s + self.above.work_s
        times = (self.now_s - sent_s, spent_s, told, self.now_s, waited_s, ticket)
        self.node.record_answer("up", N, 100, 100, *times)  # type: ignore[arg-type]
        self.node.leave("up", ticket, self.now_s)
        self._send()
        self._arrive()

    def _arrive_directly(self) -> None:
        def done(_: float) -> None:
            self.n_others += 1
            self._arrive_directly()

        self.up.set_wait(self.above.backlog_s(), self.now_s)
        self.above.work(done)
