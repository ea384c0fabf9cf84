"""A node of a simulated fleet: its router, its machines with their queues, and what waits for upstreams.

Machines work as nodes do (serve/answers): one request after another, each at the level that keeps what is
left of its time, refused where even the quickest would be late.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import final

from pliant.errors import BudgetError
from pliant.ir.link import Link
from pliant.ir.times.timing import Timing
from pliant.ir.times.trade import Level, Pick, Trade
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.choice.terms import Terms
from pliant.route.curve_advert import Trail
from pliant.route.predecessors import Listener
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.route.upstream.upstream_queue import Passage
from research.fleet_world import MachineSpec, NodeSpec, part_of_length

QUEUE = 64
"""Requests that may wait for a machine, or for an upstream (`pliant node --queue`)."""
LEAST_S = 1e-6
_BOUND = 1.2
"""What a session's profile says of bounds before anything was observed, as a part of medians."""


@dataclass(slots=True)
class Inquiry:
    """A request at one node. `reply` is told the answer, or None where there is none; exactly once."""

    node: "FleetNode"
    number: int
    n: int
    due_s: float
    floor: float
    trail: Trail
    asked_s: float
    reply: Callable[["Inquiry", "Answer | None"], None]
    failed: tuple[str, ...] = ()
    is_over: bool = False
    is_dropped: bool = False
    """Whoever asked waits no more."""
    most_s: float | None = None
    """Of work on it here, where others depend on this endpoint."""

    def terms_at(self, now_s: float) -> Terms:
        return Terms(max(self.due_s - now_s, LEAST_S), self.floor)


@dataclass(frozen=True, slots=True)
class Answer:
    """By the machine `endpoint` of the node with index `by`; `waited_s` is what the request waited there."""

    by: int
    endpoint: str
    accuracy: float
    waited_s: float


@dataclass(slots=True)
class Away:
    """A request on its way through `target`, sent at `sent_s`; `hedged` says how an answer here stands.

    Its answer is expected `expected_s` after it has `entered`.
    """

    asked: Inquiry
    target: str
    passage: Passage
    way_s: float
    entered_s: float
    life: int
    """Of the node that asks: nothing of a process outlives it."""
    expected_s: float
    sent_s: float = inf
    above: Inquiry | None = None
    is_over: bool = False
    is_lost: bool = False
    hedged: bool | None = None
    """Under way (True), or failed (False)."""


@dataclass(slots=True)
class Job:
    """A request at a machine; a probe where `asked` is None."""

    n: int
    expected_s: float
    came_s: float
    asked: Inquiry | None = None
    then: Callable[[Answer | None], None] | None = None


@final
@dataclass(slots=True)
class Machine:
    """An endpoint of a node, and the jobs that it has; `running` is one of them."""

    spec: MachineSpec
    trade: Trade
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
        """What a job that came now would wait for: what is left of the one that runs, and the others."""
        if self.running is None:
            return self._backlog_s
        return self._backlog_s - min(now_s - self.begun_s, self.running.expected_s)

    def add(self, job: Job) -> None:
        self.jobs.append(job)
        self._backlog_s += job.expected_s

    def begin(self, job: Job, now_s: float) -> None:
        self.running, self.begun_s = job, now_s

    def ended(self, job: Job) -> None:
        """Without rounding errors of sums."""
        self._backlog_s = self._backlog_s - job.expected_s if self.jobs or self.running else 0.0

    def usual_s(self, n: int, accuracy: float | None) -> float:
        """What an input of length n really takes at a level, on average and while nothing slows it."""
        return self.spec.whole_s * self._parts[accuracy] * part_of_length(n)

    def pick(self, asked: Inquiry, now_s: float) -> Pick | None:
        """As a session answers at `now_s`; None where it does not reach the floor."""
        try:
            left_s = asked.due_s - now_s
            left_s = left_s if asked.most_s is None else min(left_s, asked.most_s)
            return self.trade.pick(asked.n, asked.floor, max(left_s, LEAST_S))
        except BudgetError:
            return None


@final
class FleetNode:
    """`index` is its number; it forgets all when it starts anew."""

    def __init__(self, spec: NodeSpec, index: int, settings: RouterSettings, max_n: int) -> None:
        self.spec, self.index, self.name = spec, index, spec.name
        self._settings, self._max_n = settings, max_n
        self.listener = Listener(f"sim://{spec.name}")
        self.n_starts = 0
        self.links: dict[str, tuple[int, Link | None]] = {}
        """By upstream; None while one is down."""
        self.guests: dict[int, Away] = {}
        """Requests that are here, by the id of their `Away`: who sent them notices when this node dies."""
        self.wakes_at_s = inf
        self.due_done_s = -inf
        self.router: Router
        self.machines: dict[str, Machine]
        self.pending: dict[str, deque[Away]]

    def start(self, names: tuple[str, ...]) -> None:
        """A new process, warm: its machines know their times, and no upstream. `names` are those of all."""
        self.n_starts += 1
        self.router = Router(self.name, self._settings, started=self.n_starts)
        self.machines = {m.name: Machine(m, trade_of(m, self._max_n)) for m in self.spec.machines}
        for name, machine in self.machines.items():
            if name != LOCAL:
                self.router.endpoint(name)
            self.router.offer(machine.trade.levels(), name)
        self.links = {names[to]: (to, link) for to, link in self.spec.ups}
        for to, link in self.spec.ups:
            self.router.successor(names[to], link)
        self.pending = {name: deque() for name in self.links}
        self.guests.clear()

    def is_up(self, now_s: float) -> bool:
        return self.spec.machines[0].slower.at(now_s) < inf

    def offer(self, now_s: float) -> None:
        """Tell the router how the machines stand."""
        for name, machine in self.machines.items():
            self.router.offer(machine.trade.levels(), name)
            self.router.waits(machine.backlog_s(now_s), now_s, name)

    def excluded(self) -> tuple[str, ...]:
        """Endpoints that have no room."""
        router = self.router
        full = [
            name for name, wait in self.pending.items() if len(wait) >= QUEUE and not router.has_room(name)
        ]
        return (*full, *[name for name, machine in self.machines.items() if not machine.has_room])


def trade_of(spec: MachineSpec, max_n: int) -> Trade:
    """The levels of a session there, as its profile has them."""
    levels = []
    for level in spec.levels:
        first_s, last_s = (spec.whole_s * level.part * part_of_length(n) for n in (0, max_n))
        ends = (Timing(first_s, _BOUND * first_s), Timing(last_s, _BOUND * last_s))
        levels.append(Level(0, max_n, level.accuracy, level.accuracy, level.accuracy, ends))
    return Trade(levels, spec.name)
