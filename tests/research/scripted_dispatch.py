"""One request at a node whose endpoints follow a script: of the real dispatcher, and of the simulated one.

Both run under virtual time, with equal routers. A log has a row for each endpoint that is started, each
answer that is overdue, and the end, with its time.
"""

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any, final

from pliant.errors import NodeError, PliantError
from pliant.ir.endpoint import Request as Input
from pliant.ir.link import Link
from pliant.route.choice.choose_endpoint import CLUSTER, LOCAL, Choice
from pliant.route.choice.request_progress import AnswerTimeout, answer_timeout, patience_s
from pliant.route.choice.request_terms import NO_TERMS
from pliant.route.curve_advert import CurveAdvert, Trail
from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.serve.answers.dispatch import Dispatcher
from pliant.serve.answers.metrics import Metrics
from pliant.serve.answers.routed_request import RoutedRequest
from pliant.serve.answers.work_item import WorkResult, WorkStart
from pliant.serve.protocol.inference import InferBody, InferRequest, signature
from pliant.serve.protocol.pending_request import PendingRequest
from pliant.serve.upstream.slots import UpstreamSlot, UpstreamSlots
from pliant.serve.upstream.upstreams import UpstreamAnswer
from research.fleet_choice import FleetChoice
from research.fleet_dispatch import FleetDispatch
from research.fleet_node import QUEUE, Answer, FleetNode, ForwardedRequest, Job, Machine, Request, trade_of
from research.fleet_policies import routed
from research.fleet_world import ElasticLevel, MachineSpec, NodeSpec
from research.virtual_clock import VirtualClock
from tests.serve.models import Upper, texts

Row = tuple[float, str, str, float]
"""Time, event, endpoint (empty for a refusal of the node), and how late an overdue answer is."""
BEGIN_S, N, HOP_S = 10.0, 24, 60.0
LEVELS = (ElasticLevel(0.8, 0.3), ElasticLevel(0.9, 1.0))


@dataclass(frozen=True, slots=True)
class LocalScript:
    """A request's turn comes after `turn_s`; its work takes `work_s`, None: it is refused in its turn."""

    turn_s: float
    work_s: float | None


@dataclass(frozen=True, slots=True)
class UpstreamScript:
    """An answer after `seconds` (inf: never), or the loss of the connection."""

    seconds: float
    is_lost: bool


@dataclass(frozen=True, slots=True)
class Script:
    """`here` and `above` are what endpoints do with each try in turn, the last again.

    None is a refusal at once.
    """

    spec: NodeSpec
    above_s: dict[str, float]
    waits_s: dict[str, float]
    deadline_s: float
    floor: float
    here: dict[str, tuple[LocalScript | None, ...]]
    above: dict[str, tuple[UpstreamScript, ...]]


def draw_script(random: Random) -> Script:
    """Endpoints that are quick and slow, busy and idle, that keep, break and refuse what they announce."""
    names = (LOCAL, *((CLUSTER,) if random.random() < 0.7 else ()))
    ups = [f"up{i}" for i in range(random.choice((0, 1, 1, 2, 3, 3)))]
    machines = tuple(MachineSpec(name, _spread(random, 0.02, 0.4), LEVELS) for name in names)
    links = tuple((i + 1, Link(_spread(random, 0.005, 0.08), 1e9)) for i in range(len(ups)))
    waits_s = {name: random.choice((0.0, _spread(random, 0.01, 0.3))) for name in names}
    above_s = {name: _spread(random, 0.01, 0.3) for name in ups}
    here = {m.name: tuple(_local(random, m.whole_s, waits_s[m.name]) for _ in range(4)) for m in machines}
    above = {name: tuple(_upstream(random, above_s[name]) for _ in range(4)) for name in ups}
    deadline_s, floor = _spread(random, 0.05, 6.0), random.choice((0.0, 0.85))
    return Script(NodeSpec("me", 0, machines, links), above_s, waits_s, deadline_s, floor, here, above)


def run_simulated(script: Script) -> list[Row]:
    clock, node = VirtualClock(), _node(script)
    clock.run_until(BEGIN_S)
    work = _SimulatedWork(script, clock)
    due_s, trail = BEGIN_S + script.deadline_s, Trail(("me",))
    asked = Request(node, 0, N, due_s, script.floor, trail, BEGIN_S, work.end)
    work.dispatch.dispatch(asked)
    while not asked.is_over:
        clock.step()
    return work.log


def run_real(script: Script) -> list[Row]:
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(_answer(script))


def _spread(random: Random, least: float, most: float) -> float:
    return float(least * (most / least) ** random.random())


def _local(random: Random, whole_s: float, wait_s: float) -> LocalScript | None:
    kind = random.random()
    if kind < 0.2:
        return None
    turn_s = 0.0 if kind < 0.5 and not wait_s else _spread(random, 0.3, 6.0) * max(wait_s, 0.01)
    return LocalScript(turn_s, None if random.random() < 0.15 else whole_s * _spread(random, 0.3, 8.0))


def _upstream(random: Random, whole_s: float) -> UpstreamScript:
    seconds = inf if random.random() < 0.25 else whole_s * _spread(random, 0.5, 8.0)
    return UpstreamScript(seconds, seconds < inf and random.random() < 0.3)


def _node(script: Script) -> FleetNode:
    node = FleetNode(script.spec, 0, RouterSettings(48), 48)
    node.start(("me", *script.above_s))
    for (name, whole_s), (_, link) in zip(script.above_s.items(), script.spec.ups, strict=True):
        levels = trade_of(MachineSpec(name, whole_s, LEVELS), 48).levels()
        node.router.record_ping(
            name, link.latency_s, 0.0, CurveAdvert(name, levels, frozenset({name})), BEGIN_S
        )
    for name, wait_s in script.waits_s.items():
        if wait_s:
            node.machines[name].add(Job(N, wait_s, BEGIN_S))
    return node


class _Tries:
    """What each endpoint does next."""

    def __init__(self, script: Script) -> None:
        self._script, self._n = script, dict[str, int]()

    def here(self, name: str) -> LocalScript | None:
        return self._script.here[name][self._next(name)]

    def above(self, name: str) -> UpstreamScript:
        return self._script.above[name][self._next(name)]

    def _next(self, name: str) -> int:
        self._n[name] = self._n.get(name, -1) + 1
        return min(self._n[name], 3)


@final
class _SimulatedWork:
    """`FleetWork` by the script."""

    def __init__(self, script: Script, clock: VirtualClock) -> None:
        self._tries, self._clock = _Tries(script), clock
        self.dispatch = FleetDispatch(clock, FleetChoice(clock, routed, Random(0)), self)
        self.log: list[Row] = []

    def end(self, asked: Request, answer: Answer | None) -> None:
        self._add("end", "" if answer is None else answer.endpoint)

    def admit(self, machine: Machine, asked: Request, then: Callable[[Answer | None], None]) -> Job | None:
        name = machine.spec.name
        self._add("start", name)
        told = self._tries.here(name)
        if told is None:
            then(None)
            return None
        job = Job(N, 0.0, self._clock.now_s, asked, then)
        machine.add(job)
        if told.turn_s:
            self._clock.after(told.turn_s, self._begin, machine, job, told)
        else:
            self._begin(machine, job, told)
        return job

    def _begin(self, machine: Machine, job: Job, told: LocalScript) -> None:
        if job not in machine.jobs or (job.asked is not None and job.asked.is_over):
            return
        assert job.then is not None
        machine.jobs.remove(job)
        if told.work_s is None:
            machine.end(job)
            job.then(None)
        else:
            machine.begin(job, self._clock.now_s)
            self._clock.after(told.work_s, self._done, machine, job)

    def _done(self, machine: Machine, job: Job) -> None:
        assert job.then is not None
        machine.running = None
        machine.end(job)
        job.then(Answer(0, machine.spec.name, 0.9, 0.0))

    def send_away(self, asked: Request, choice: Choice) -> ForwardedRequest:
        router, now_s, target = asked.node.router, self._clock.now_s, choice.target
        self._add("start", target)
        ticket = router.enter(target, N, now_s, choice.option.level)
        router.send(target, ticket, now_s)
        most_s = patience_s(asked.terms_at(now_s), None)
        timeout = answer_timeout(choice.seconds, most_s, HOP_S)
        away = ForwardedRequest(
            asked, target, ticket, 0.0, now_s, asked.node.n_starts, choice.seconds, most_s, timeout, now_s
        )
        told = self._tries.above(target)
        self._clock.after(min(told.seconds, timeout.seconds), self._ended, away, told, timeout)
        return away

    def _ended(self, away: ForwardedRequest, told: UpstreamScript, timeout: AnswerTimeout) -> None:
        if away.is_over:
            return
        router, now_s = away.asked.node.router, self._clock.now_s
        is_late = told.seconds > timeout.seconds
        if is_late and not timeout.is_failure:
            router.record_overdue(away.target, N, now_s - away.entered_s - away.expected_s, now_s)
        elif is_late or told.is_lost:
            router.record_failure(away.target, now_s)
        self._leave(away)
        if is_late or told.is_lost:
            self.dispatch.fail(away)
        else:
            self.dispatch.end(away.asked, Answer(1, away.target, 0.9, 0.0))

    def overdue(self, away: ForwardedRequest, late_s: float) -> None:
        self._add("overdue", away.target, late_s)
        away.asked.node.router.record_overdue(away.target, N, late_s, self._clock.now_s)
        self._leave(away)

    def _leave(self, away: ForwardedRequest) -> None:
        away.is_over = True
        away.asked.node.router.leave(away.target, away.ticket, self._clock.now_s)

    def wake(self, node: FleetNode) -> None: ...

    def _add(self, event: str, name: str, late_s: float = 0.0) -> None:
        self.log.append((self._clock.now_s, event, name, late_s))


class _NoWait(selectors.DefaultSelector):
    """Advances the time instead of waiting."""

    now_s = BEGIN_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is scheduled, so nothing would ever happen"
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _NoWait()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


async def _answer(script: Script) -> list[Row]:
    loop, node, model, log = asyncio.get_running_loop(), _node(script), Upper(), list[Row]()

    def add(event: str, name: str, late_s: float = 0.0) -> None:
        log.append((loop.time(), event, name, late_s))

    tries = _Tries(script)
    here: Any = {name: _Here(node, name, tries, add) for name in node.machines}
    made = Dispatcher(node.router, here, Metrics(), signature(model), loop.time)
    made.upstreams = _Above(node.router, tries, add)  # type: ignore[assignment]
    pending = PendingRequest(
        Input(N, tensors={"text": texts("x")}), loop.time() + script.deadline_s, script.floor
    )
    asked = RoutedRequest(
        InferRequest("id", {}, (), NO_TERMS), pending, Trail(("me",)), "id", lambda: InferBody(b"", None)
    )
    try:
        add("end", (await made.answer(asked)).target)
    except PliantError:
        add("end", "")
    return log


class _Here:
    """An endpoint of the real dispatcher, by the script."""

    backlog_s = 0.0

    def __init__(self, node: FleetNode, name: str, tries: _Tries, add: Callable[[str, str], None]) -> None:
        self.name = name
        self._node, self._machine, self._tries, self._add = node, node.machines[name], tries, add

    def offer(self, pending: PendingRequest | None = None) -> None:
        self._node.offer(asyncio.get_running_loop().time())

    def has_room(self, client: str) -> bool:
        return self._machine.has_room

    async def answer(self, pending: PendingRequest, start: WorkStart | None) -> Any:
        loop, machine = asyncio.get_running_loop(), self._machine
        self._add("start", self.name)
        told = self._tries.here(self.name)
        if told is None:
            raise NodeError("it has no room", status=503)
        job = Job(N, 0.0, loop.time())
        machine.add(job)
        try:
            if told.turn_s:
                await asyncio.sleep(told.turn_s)
        finally:
            machine.jobs.remove(job)
            machine.end(job)
        if told.work_s is None:
            raise NodeError("its turn is late", status=503)
        machine.begin(job, loop.time())
        if start is not None:
            start.begun_s = loop.time()
        done = loop.create_future()
        loop.call_later(told.work_s, done.set_result, None)
        while not done.done():  # work that has begun runs to its end
            with suppress(asyncio.CancelledError):
                await asyncio.shield(done)
        machine.running = None
        machine.end(job)
        reply = SimpleNamespace(energy_j=None, accuracy=0.9, details=None)
        return WorkResult(reply, told.turn_s, told.work_s, told.work_s, told.work_s)


class _Above:
    """The upstreams of the real dispatcher, by the script."""

    def __init__(self, router: Router, tries: _Tries, add: Callable[..., None]) -> None:
        self._router, self._tries, self._add = router, tries, add
        self._slots = UpstreamSlots(router, asyncio.get_running_loop().time, QUEUE)
        self.slots = SimpleNamespace(full=(), take=self._take)

    @asynccontextmanager
    async def _take(self, name: str, n: int, patience_s: float, level: Any) -> AsyncIterator[UpstreamSlot]:
        self._add("start", name)
        async with self._slots.take(name, n, patience_s, level) as slot:
            yield slot

    async def ask(
        self, name: str, n: int, expected_s: float, trail: Trail, id: str, body: InferBody, *more: Any
    ) -> UpstreamAnswer:
        slot, _, left_s, _ = more
        now_s, told = asyncio.get_running_loop().time, self._tries.above(name)
        timeout = answer_timeout(expected_s, left_s, HOP_S)
        await asyncio.sleep(min(told.seconds, timeout.seconds))
        if told.seconds > timeout.seconds and not timeout.is_failure:
            late_s = slot.waited_s + timeout.seconds - expected_s
            self._router.record_overdue(name, n, late_s, now_s())
            raise NodeError("it did not answer", status=504)
        if told.seconds > timeout.seconds or told.is_lost:
            self._router.record_failure(name, now_s())
            raise NodeError("it is gone", status=502)
        content = b'{"model_name": "upper", "id": "id", "outputs": []}'
        return UpstreamAnswer(InferBody(content, None), name, 0.0)

    def overdue(self, name: str, n: int, late_s: float) -> None:
        self._add("overdue", name, late_s)
        self._router.record_overdue(name, n, late_s, asyncio.get_running_loop().time())
