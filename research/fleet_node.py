"""A node of a simulated fleet: its router, its machines with their queues, and the requests waiting for
upstreams.

Machines work as in serve/answers: one request after another, each at the level that meets its remaining time,
refused if even the fastest level would be late.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import final

from pliant.errors import BudgetError
from pliant.ir.link import Link
from pliant.ir.times.level_selector import Level, LevelChoice, LevelSelector
from pliant.ir.times.timing import Timing
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.choice.request_progress import AnswerTimeout
from pliant.route.choice.request_terms import Terms
from pliant.route.curve_advert import Trail
from pliant.route.predecessors import Listener
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.route.upstream.upstream_queue import QueueTicket
from research.fleet_world import MachineSpec, NodeSpec, part_of_length

QUEUE = 64
"""Requests that may wait for a machine, or for an upstream (`pliant node --queue`)."""
LEAST_S = 1e-6
_BOUND = 1.2
"""The bounds of a session's profile before any observation, relative to the medians."""


@dataclass(slots=True, eq=False)
class Request:
    """A request at one node. `reply` is called exactly once, with the answer, or None if there is none."""

    node: "FleetNode"
    number: int
    n: int
    due_s: float
    floor: float
    trail: Trail
    asked_s: float
    reply: Callable[["Request", "Answer | None"], None]
    failed: tuple[str, ...] = ()
    """Endpoints that failed or refused it, in order."""
    refused: tuple[str, ...] = ()
    """Those of them that are endpoints of the node: they had no room or no time."""
    is_over: bool = False
    is_dropped: bool = False
    """The client no longer waits."""
    is_hedged: bool = False
    """A second endpoint got it as well, here or at the node that sent it."""
    second_failed: Callable[[], object] | None = None
    """Called if a second answer fails while the first still runs; None while none runs beside a first."""
    most_s: float | None = None
    """The limit of its processing time here, if other nodes depend on this endpoint."""
    patience_s: float | None = None
    """How long the node that sent it waits; None for a client's."""
    sender: "Request | None" = None
    """The same request at the node that sent it; None for a client's."""

    _terms: tuple[float, Terms] | None = None
    """The last result of `terms_at`, with its time."""

    @property
    def is_unused(self) -> bool:
        """Whether a second endpoint has answered instead, here or at a node on the way to the client."""
        at: Request | None = self
        while at is not None:
            if at.is_hedged and (at.is_over or at.is_dropped):
                return True
            at = at.sender
        return False

    def terms_at(self, now_s: float) -> Terms:
        if self._terms is None or self._terms[0] != now_s:
            self._terms = now_s, Terms(max(self.due_s - now_s, LEAST_S), self.floor)
        return self._terms[1]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the machine `endpoint` of the node with index `by`; `waited_s` is the waiting time
    there.
    """

    by: int
    endpoint: str
    accuracy: float
    waited_s: float


@dataclass(slots=True, eq=False)
class ForwardedRequest:
    """A request sent upstream through `target` at `sent_s`; `hedged` is the state of a hedge here.

    Its answer is expected `expected_s` after it has `entered`. It is awaited for `patience_s` in all, and
    from `sent_s` on for `timeout`.
    """

    asked: Request
    target: str
    ticket: QueueTicket
    way_s: float
    entered_s: float
    life: int
    """The life of the sending node: the state of a process is lost when it ends."""
    expected_s: float
    patience_s: float
    timeout: AnswerTimeout | None = None
    sent_s: float = inf
    above: Request | None = None
    is_over: bool = False
    is_lost: bool = False
    hedged: bool | None = None
    """None without a hedge, True while it is in progress, False if it failed."""


@dataclass(slots=True, eq=False)
class Job:
    """A request at a machine; a probe if `asked` is None."""

    n: int
    expected_s: float
    came_s: float
    asked: Request | None = None
    then: Callable[[Answer | None], None] | None = None


@final
@dataclass(slots=True)
class Machine:
    """An endpoint of a node with its jobs; `running` is one of them."""

    spec: MachineSpec
    trade: LevelSelector
    jobs: deque[Job] = field(default_factory=deque)
    running: Job | None = None
    _backlog_s: float = 0.0
    begun_s: float = 0.0
    _parts: dict[float | None, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._parts = {level.accuracy: level.part for level in self.spec.levels}

    @property
    def has_room(self) -> bool:
        return len(self.jobs) + (self.running is not None) <= QUEUE

    def backlog_s(self, now_s: float) -> float:
        """The waiting time of a job that arrived now: the rest of the running job, and the queued ones."""
        if self.running is None:
            return self._backlog_s
        expected_s = self.running.expected_s  # what is late goes on for as long again as it is late
        return self._backlog_s - expected_s + abs(expected_s - (now_s - self.begun_s))

    def add(self, job: Job) -> None:
        self.jobs.append(job)
        self._backlog_s += job.expected_s

    def begin(self, job: Job, now_s: float) -> None:
        self.running, self.begun_s = job, now_s

    def end(self, job: Job) -> None:
        """Subtract the time of an ended job from the backlog, which is exactly 0 without jobs."""
        self._backlog_s = self._backlog_s - job.expected_s if self.jobs or self.running else 0.0

    def usual_s(self, n: int, accuracy: float | None) -> float:
        """The true mean time of an input of length n at a level, without slowdowns."""
        return self.spec.whole_s * self._parts[accuracy] * part_of_length(n)

    def pick(self, asked: Request, now_s: float) -> LevelChoice | None:
        """The level that a session would pick at `now_s`; None if it cannot meet the floor."""
        try:
            left_s = asked.due_s - now_s
            left_s = left_s if asked.most_s is None else min(left_s, asked.most_s)
            return self.trade.pick(asked.n, asked.floor, max(left_s, LEAST_S))
        except BudgetError:
            return None


@final
class FleetNode:
    """A node of the fleet; `index` is its number. A restart loses its state."""

    def __init__(self, spec: NodeSpec, index: int, settings: RouterSettings, max_n: int) -> None:
        self.spec, self.index, self.name = spec, index, spec.name
        self._settings, self._max_n = settings, max_n
        self.listener = Listener(f"sim://{spec.name}")
        self.n_starts = 0
        self.links: dict[str, tuple[int, Link | None]] = {}
        """The links by upstream; None while one is down."""
        self.guests: dict[int, ForwardedRequest] = {}
        """Requests received from other nodes, by the id of their `ForwardedRequest`; the senders notice when
        this node fails.
        """
        self.wakes_at_s = inf
        self.wakes_s = set[float]()
        """The times of events for due work: the next one and later ones."""
        self.due_done_s = -inf
        self.router: Router
        self.machines: dict[str, Machine]
        self.pending: dict[str, deque[ForwardedRequest]]

    def start(self, names: tuple[str, ...]) -> None:
        """Start a new, warm process: it knows the times of its machines, but no upstream. `names` are those
        of all nodes.
        """
        self.n_starts += 1
        self.router = Router(self.name, self._settings, started=self.n_starts)
        self.machines = {m.name: Machine(m, trade_of(m, self._max_n)) for m in self.spec.machines}
        for name, machine in self.machines.items():
            if name != LOCAL:
                self.router.add_endpoint(name)
            self.router.offer(machine.trade.levels(), name)
        self.links = {names[to]: (to, link) for to, link in self.spec.ups}
        for to, link in self.spec.ups:
            self.router.add_successor(names[to], link)
        self.pending = {name: deque() for name in self.links}
        self.guests.clear()

    @property
    def is_alone(self) -> bool:
        """Whether the node has one endpoint, and no upstream."""
        return len(self.machines) == 1 and not self.links

    def is_up(self, now_s: float) -> bool:
        return self.spec.machines[0].slower.at(now_s) < inf

    def offer(self, now_s: float) -> None:
        """Update the router with the state of the machines."""
        for name, machine in self.machines.items():
            self.router.offer(machine.trade.levels(), name)
            self.router.set_wait(machine.backlog_s(now_s), now_s, name)

    def excluded(self) -> tuple[str, ...]:
        """Endpoints whose queues are full."""
        router = self.router
        full = [
            name for name, wait in self.pending.items() if len(wait) >= QUEUE and not router.has_room(name)
        ]
        return (*full, *[name for name, machine in self.machines.items() if not machine.has_room])


def trade_of(spec: MachineSpec, max_n: int) -> LevelSelector:
    """The levels of a session on this machine, by its profile."""
    levels = []
    for level in spec.levels:
        first_s, last_s = (spec.whole_s * level.part * part_of_length(n) for n in (0, max_n))
        ends = (Timing(first_s, _BOUND * first_s), Timing(last_s, _BOUND * last_s))
        levels.append(Level(0, max_n, level.accuracy, level.accuracy, level.accuracy, ends))
    return LevelSelector(levels, spec.name)
