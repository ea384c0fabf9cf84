"""Simulate requests with deadlines in a fleet of nodes, under a virtual clock.

A discrete-event simulation. Each node decides as a real one: its `Router` chooses and hedges (`hedge`), its
machines trade accuracy for time as sessions do (`LevelSelector`), and the work in `Router.take_due_tasks` is
performed. The behaviour of serve/ is modelled: slots at upstreams, queues, forwarding with the remaining
deadline, refusals, and failover. Requests arrive at given times, or from clients in a closed loop. All random
values are drawn beforehand, so a run is reproducible.
"""

from collections.abc import Callable
from itertools import count
from math import inf
from random import Random
from time import perf_counter
from typing import Any, final

from pliant.ir.link import Link
from pliant.ir.times.level_selector import LevelChoice
from pliant.route.choice.choose_endpoint import Choice
from pliant.route.choice.request_progress import answer_timeout, network_s, patience_s
from pliant.route.curve_advert import CurveAdvert, Trail
from pliant.route.router_settings import RouterSettings
from research.fleet_changes import Changes
from research.fleet_choice import FleetChoice
from research.fleet_dispatch import FleetDispatch
from research.fleet_node import LEAST_S, Answer, FleetNode, ForwardedRequest, Job, Machine, Request
from research.fleet_policies import Policy, routed
from research.fleet_run import FleetRun, Row, run_of
from research.fleet_upkeep import Upkeep
from research.fleet_world import Fleet
from research.virtual_clock import VirtualClock

_HOP_S = 60.0
"""The limit of a response from an upstream (`serve/http/limits.py`)."""
_SENT_BYTES, _PER_WORD_BYTES, _RECEIVED_BYTES = 400, 6, 300


def simulate_fleet(
    fleet: Fleet,
    settings: RouterSettings,
    policy: Policy = routed,
    seed: int = 0,
    clients: tuple[int, float] | None = None,
) -> FleetRun:
    """Run all requests, with `policy` at every node. Deterministic.

    With `clients` (number, duration), clients send the fleet's requests cyclically, each client's next one
    when it has its answer; the requests' arrival times are not used.
    """
    return _Simulation(fleet, settings, policy, seed).run(clients)


@final
class _Simulation:
    def __init__(self, fleet: Fleet, settings: RouterSettings, policy: Policy, seed: int) -> None:
        self._fleet, self._clock = fleet, VirtualClock()
        choice = FleetChoice(self._clock, policy, Random(seed))
        self._dispatch = FleetDispatch(self._clock, choice, self)
        requests = fleet.requests
        self._words, self._kind = requests.words.tolist(), requests.kind.tolist()
        self._work: list[float] = requests.work.tolist()
        self._way: list[float] = requests.way.tolist()
        max_n = max(self._words)
        self._nodes = [FleetNode(spec, i, settings, max_n) for i, spec in enumerate(fleet.nodes)]
        self._names = tuple(node.name for node in self._nodes)
        self._upkeep = Upkeep(self._clock, self._nodes, self._work_on)
        self._again: Callable[[], None] | None = None
        self._rows: list[Row] = []
        self._work_s = self._unused_s = 0.0

    def run(self, clients: tuple[int, float] | None) -> FleetRun:
        begun_s = perf_counter()
        for node in self._nodes:
            node.start(self._names)
            self._upkeep.wake(node)
        Changes(self._clock, self._fleet, self._nodes, self._unreachable, self._upkeep).schedule()
        if clients is None:
            self._play()
        else:
            self._play_closed(*clients)
        counts = (self._upkeep.n_pings, self._upkeep.n_broadcasts, self._dispatch.n_hedged)
        work = (self._work_s, self._unused_s)
        return run_of(self._rows, counts, work, perf_counter() - begun_s)

    # -- requests come

    def _play(self) -> None:
        """Run the fleet's requests at their arrival times, until all have ended."""
        requests = self._fleet.requests
        times, source = requests.at_s.tolist(), requests.source.tolist()
        clock = self._clock
        for number, at_s in enumerate(times):
            clock.run_until(at_s)
            self._come(self._nodes[source[number]], number)
        while len(self._rows) < len(times):
            clock.step()

    def _play_closed(self, n_clients: int, duration_s: float) -> None:
        numbers, node = count(), self._nodes[0]

        def again() -> None:
            if self._clock.now_s < duration_s:
                self._come(node, next(numbers) % len(self._words))

        self._again = again
        for _ in range(n_clients):
            self._clock.at(0.1, again)  # after the first pings have returned
        while self._clock.now_s < duration_s:
            self._clock.step()

    def _come(self, node: FleetNode, number: int) -> None:
        kind = self._fleet.requests.kinds[self._kind[number]]
        due_s, trail = self._clock.now_s + kind.deadline_s, Trail((node.name,))
        n = self._words[number]
        asked = Request(node, number, n, due_s, kind.floor, trail, self._clock.now_s, self._ended)
        self._dispatch.dispatch(asked)

    def _ended(self, asked: Request, answer: Answer | None) -> None:
        took_s = self._clock.now_s - asked.asked_s
        if answer is None:
            self._rows.append((asked.number, asked.asked_s, inf, 0.0, -1, None))
        else:
            row = (asked.number, asked.asked_s, took_s, answer.accuracy, answer.by, answer.endpoint)
            self._rows.append(row)
        if self._again is not None:
            # A refused client retries a little later.
            self._clock.after((0.0 if answer is not None else 0.05), self._again)

    def wake(self, node: FleetNode) -> None:
        self._upkeep.wake(node)

    # -- here (serve/answers/session_endpoint.py, admission.py)

    def admit(self, machine: Machine, asked: Request, then: Callable[[Answer | None], None]) -> Job | None:
        now_s = self._clock.now_s
        pick = machine.pick(asked, now_s + machine.backlog_s(now_s)) if machine.has_room else None
        if pick is None:
            then(None)
            return None
        job = Job(asked.n, pick.time.median_s, now_s, asked, then)
        is_idle = machine.running is None
        machine.add(job)
        self._work_on(asked.node, machine, pick if is_idle else None)
        return job

    def _work_on(self, node: FleetNode, machine: Machine, picked: LevelChoice | None = None) -> None:
        """Begin the next job; `picked` is the level of one that was admitted now, and is the only one."""
        while machine.running is None and machine.jobs:
            job = machine.jobs.popleft()
            asked = job.asked
            if asked is None:
                pick = machine.trade.pick(job.n, None, LEAST_S)  # the quickest
            else:
                is_wanted = not (asked.is_over or asked.is_dropped)
                found = picked or (machine.pick(asked, self._clock.now_s) if is_wanted else None)
                if found is None or self._clock.now_s + found.time.median_s > asked.due_s:
                    machine.end(job)
                    if job.then is not None:
                        job.then(None)
                    continue
                pick = found
            machine.begin(job, self._clock.now_s)
            factor = 1.0 if asked is None else self._work[asked.number]
            usual_s = machine.usual_s(job.n, pick.level.accuracy)
            seconds = usual_s * factor * machine.spec.slower.at(self._clock.now_s)
            self._clock.after(seconds, self._done, node, node.n_starts, machine, job, pick, seconds)

    def _done(
        self, node: FleetNode, n_starts: int, machine: Machine, job: Job, pick: Any, seconds: float
    ) -> None:
        if n_starts != node.n_starts:
            return  # its process has ended
        machine.running = None
        machine.end(job)
        self._count_work(job.asked, seconds)
        trade, n = machine.trade, job.n
        expected_s = pick.level.at(n).median_s
        trade.observe(pick.level, n, seconds)
        whole_s = trade.best_level(n).at(n).median_s / expected_s * seconds
        node.router.record_local_answer(n, whole_s, self._clock.now_s, machine.spec.name)
        self._work_on(node, machine)
        node.offer(self._clock.now_s)
        if job.then is not None:
            waited_s = self._clock.now_s - seconds - job.came_s
            job.then(Answer(node.index, machine.spec.name, pick.level.accuracy, waited_s))
        self._upkeep.wake(node)

    def _count_work(self, asked: Request | None, seconds: float) -> None:
        self._work_s += seconds
        if asked is not None and asked.is_unused:
            self._unused_s += seconds

    # -- above (serve/upstream)

    def send_away(self, asked: Request, choice: Choice) -> ForwardedRequest:
        node, now_s, target, n = asked.node, self._clock.now_s, choice.target, asked.n
        router = node.router
        state = router.state(target, now_s)
        way_s = network_s(choice, n, 0.0 if state is None else state.wait_s)
        ticket = router.enter(target, n, now_s, choice.option.level)
        most_s = patience_s(asked.terms_at(now_s), asked.patience_s)
        away = ForwardedRequest(asked, target, ticket, way_s, now_s, node.n_starts, choice.seconds, most_s)
        pending = node.pending[target]
        if not pending and router.has_room(target):
            self._send(away)
        else:
            pending.append(away)
        self._clock.after(most_s, self._give_up, away)
        return away

    def _send(self, away: ForwardedRequest) -> None:
        node, now_s = away.asked.node, self._clock.now_s
        node.router.send(away.target, away.ticket, now_s)
        away.sent_s = now_s
        left_s = away.patience_s - (now_s - away.entered_s)
        away.timeout = answer_timeout(away.expected_s, left_s, _HOP_S)
        if away.timeout.seconds < left_s:
            self._clock.after(away.timeout.seconds, self._give_up, away)
        to, link = node.links[away.target]
        peer = self._nodes[to]
        if link is None:
            return  # the message is lost; the request times out
        if peer.is_up(now_s):
            peer.guests[id(away)] = away
            self._clock.at(now_s + self._one_way_s(away, link), self._reach, away, peer, peer.n_starts)
        else:
            self._clock.at(now_s + link.latency_s, self._unreachable, away)

    def _one_way_s(self, away: ForwardedRequest, link: Link, n_bytes: int | None = None) -> float:
        if n_bytes is None:
            n_bytes = _SENT_BYTES + _PER_WORD_BYTES * away.asked.n
        return link.latency_s / 2.0 * self._way[away.asked.number] + n_bytes / link.bandwidth_Bps

    def _reach(self, away: ForwardedRequest, peer: FleetNode, n_starts: int) -> None:
        if away.is_over or n_starts != peer.n_starts:
            return
        asked, node = away.asked, away.asked.node
        peer.router.add_predecessor(node.name, node.listener if node.spec.tier else None, self._clock.now_s)
        due_s = self._clock.now_s + max(asked.due_s - away.sent_s - away.way_s, LEAST_S)
        trail = asked.trail.next_hop().visit(peer.name)

        def reply(above: Request, answer: Answer | None) -> None:
            told = peer.router.advertise(self._clock.now_s, node.name)
            _, link = node.links[away.target]
            if link is None:
                return
            spent_s = self._clock.now_s - above.asked_s
            back_s = self._one_way_s(away, link, _RECEIVED_BYTES)
            self._clock.after(back_s, self._back, away, answer, told, spent_s)

        assert away.timeout is not None
        above = Request(peer, asked.number, asked.n, due_s, asked.floor, trail, self._clock.now_s, reply)
        above.patience_s, above.sender, away.above = away.timeout.seconds, asked, above
        self._dispatch.dispatch(above)

    def _back(self, away: ForwardedRequest, answer: Answer | None, told: CurveAdvert, spent_s: float) -> None:
        """Handle an answer or a refusal from upstream; it is ignored if the request timed out, or its sender
        has failed.
        """
        if away.is_over or away.life != away.asked.node.n_starts:
            return
        asked, node, now_s = away.asked, away.asked.node, self._clock.now_s
        if answer is None:
            node.router.record_advert(away.target, told, now_s)
            self._leave(away)
            self._dispatch.fail(away)
        else:
            sizes = (_SENT_BYTES + _PER_WORD_BYTES * asked.n, _RECEIVED_BYTES)
            waits = (answer.waited_s, away.ticket)
            away_s = now_s - away.sent_s
            node.router.record_answer(away.target, asked.n, *sizes, away_s, spent_s, told, now_s, *waits)
            self._leave(away)
            waited_s = away.sent_s - away.entered_s + answer.waited_s
            self._dispatch.end(asked, Answer(answer.by, answer.endpoint, answer.accuracy, waited_s))
        self._upkeep.wake(node)

    def _unreachable(self, away: ForwardedRequest) -> None:
        if not (away.is_over or away.life != away.asked.node.n_starts):
            away.asked.node.router.record_failure(away.target, self._clock.now_s)
            self._lose(away)

    def _give_up(self, away: ForwardedRequest) -> None:
        """Time out a request, which may have waited here all the time."""
        if away.is_over or away.life != away.asked.node.n_starts:
            return
        router, now_s = away.asked.node.router, self._clock.now_s
        if away.timeout is not None and away.timeout.is_failure:
            router.record_failure(away.target, now_s)
        elif away.timeout is not None:
            late_s = now_s - away.entered_s - away.expected_s
            router.record_overdue(away.target, away.asked.n, late_s, now_s)
        self._lose(away)

    def overdue(self, away: ForwardedRequest, late_s: float) -> None:
        node, now_s = away.asked.node, self._clock.now_s
        node.router.record_overdue(away.target, away.asked.n, late_s, now_s)
        self._end([], away)

    def _lose(self, away: ForwardedRequest) -> None:
        self._end([away], away)
        self._upkeep.wake(away.asked.node)

    def _end(self, failed: list[ForwardedRequest], away: ForwardedRequest) -> None:
        """End `away`; `failed` go elsewhere, and those that wait for an upstream that is no candidate now."""
        node, target = away.asked.node, away.target
        pending = node.pending[target]
        state = node.router.state(target, self._clock.now_s) if pending else None
        if pending and (state is None or state.state != "ready"):
            failed += [other for other in pending if not (other.is_over or other is away)]
            pending.clear()
        self._leave(away)
        for one in failed:
            if one is not away:
                self._leave(one)
        for one in failed:
            self._dispatch.fail(one)

    def _leave(self, away: ForwardedRequest) -> None:
        """Remove a request from its upstream or the upstream's queue; the next one may be sent."""
        away.is_over = True
        node, router = away.asked.node, away.asked.node.router
        if away.above is not None:
            away.above.is_hedged |= away.asked.is_hedged
            away.above.is_dropped, away.above = True, None  # it references `away`: break the cycle
        router.leave(away.target, away.ticket, self._clock.now_s)
        self._nodes[node.links[away.target][0]].guests.pop(id(away), None)
        pending = node.pending[away.target]
        while pending and router.has_room(away.target):
            first = pending.popleft()
            if not first.is_over:
                self._send(first)
