"""One node's decisions for one model, driven by events (CRIME 4).

Nodes and the simulator use the same object: it receives every event with its time (`now_s`, monotonic
seconds), and returns where an input goes (`choose`), a predecessor's advert (`advertise`) and other tasks
(`take_due_tasks`).

Loops and counting to infinity are excluded. A node's advert carries the set of nodes that its curve depends
on (`CurveAdvert.through`, the path vector of BGP as a set). Two rules follow: a successor whose curve depends
on this node is no candidate, and a predecessor's advert omits successors whose curves depend on that
predecessor. A time that once went through this node therefore never returns as news, however late it arrives,
so no two nodes can raise each other's curves step by step. Requests also carry their path and a hop limit
(`Trail`), which holds while adverts are in transit.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import inf

from pliant.errors import RouteError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.link import Link
from pliant.route.advert_cache import AdvertCache, wait_beyond
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import LOCAL, Choice, Option, choose, rank
from pliant.route.choice.input_needs import NO_NEEDS, InputNeeds
from pliant.route.choice.objective import TIME, Objective
from pliant.route.choice.radio_use import RadioUse
from pliant.route.choice.request_terms import NO_TERMS, Terms
from pliant.route.curve_advert import CurveAdvert, Trail, check_node_name
from pliant.route.local_endpoint import LocalEndpoint, note_dependent
from pliant.route.predecessors import Listener, Predecessors
from pliant.route.router_settings import RouterSettings
from pliant.route.router_tasks import BroadcastTask, ProbeTask, RouterTask
from pliant.route.upstream.peer_state import PeerState
from pliant.route.upstream.ping_schedule import PingSchedule
from pliant.route.upstream.successor import Successor
from pliant.route.upstream.upstream_queue import QueueTicket


class Router:
    """A node's complete decision state for one model.

    `prior` is this device's curve before its first inference; without it the first input is answered here.
    `started` distinguishes this run of the node from earlier ones (milliseconds of any clock).
    """

    def __init__(
        self, name: str, settings: RouterSettings, prior: Curve | None = None, started: int = 0
    ) -> None:
        self.name = check_node_name(name)
        self.settings = settings
        self._here = {LOCAL: LocalEndpoint(LOCAL, settings, prior)}
        self._successors: dict[str, Successor] = {}
        self._radio = None if settings.radio is None else RadioUse(settings.radio)
        self.predecessors = Predecessors(settings.expire_after_s)
        self._ways: list[Candidate] = []
        """This device's endpoints and every successor that is ready, without their queues."""
        self._adverts = AdvertCache(name, started, settings.max_n, self._dependencies)
        self._pings = PingSchedule(settings)
        self._last_n = 1
        self._expects_until_s = inf
        self._is_stale, self._is_checked = True, False
        self._next_due_s = -inf

    # -- decisions

    def choose(
        self,
        n: int,
        now_s: float,
        objective: Objective = TIME,
        exclude: Collection[str] = (),
        trail: Trail | None = None,
        terms: Terms = NO_TERMS,
        *,
        is_coming: bool = True,
    ) -> Choice:
        """Choose where an input of length n goes, or would go: an endpoint here or a successor.

        `exclude` names candidates tried before (`LOCAL` too); a `trail` excludes nodes it has passed, and
        all successors after its last hop. Raises RouteError if none is left, and as `choose_endpoint.choose`.
        """
        self._update_expected(now_s)
        candidates, n_here = self._candidates(now_s), len(self._here)
        above = candidates[n_here:]
        if trail is not None:
            above = [c for c in above if trail.may_reach(c.name, self._successors[c.name].advert)]
        allowed = [c for c in (*candidates[:n_here], *above) if c.name not in exclude]
        try:
            return choose(n, allowed, objective, terms)
        finally:
            if is_coming:
                self._pings.add(n)
                self._last_n = n
                note_dependent(n, self._here, above, terms)

    def options(
        self, n: int, now_s: float, objective: Objective = TIME, terms: Terms = NO_TERMS
    ) -> tuple[Option, ...]:
        """Return each candidate's best option for an input of length n, best first."""
        self._update_expected(now_s)
        return rank(n, self._candidates(now_s), objective, terms)

    def advertise(self, now_s: float, predecessor: str | None = None) -> CurveAdvert:
        """Return this node's advert (CRIME 4.2); records that `predecessor` (a node's name) received it."""
        self._update_expected(now_s)
        advert, ways = self._adverts.get(predecessor, self._refresh_ways())
        if predecessor is not None and self.predecessors.listener_of(predecessor) is not None:
            self.predecessors.record_advert(predecessor, self._add_wait(advert, ways, now_s))
        return self._add_wait(advert, ways, now_s, is_now=True)

    def take_due_tasks(self, now_s: float) -> tuple[RouterTask, ...]:
        """Return the tasks that are due now; each is returned once."""
        if now_s < self._next_due_s and self._is_checked:
            return ()
        self.predecessors.expire(now_s)
        self._next_due_s, self._is_checked = self._next_event_s(), True
        if now_s < self._next_due_s:
            return tuple(self._broadcasts(now_s))
        pings = self._pings.due(self._successors.values(), partial(self._candidates, now_s), now_s)
        found: list[RouterTask] = [*pings, *self._broadcasts(now_s), *self._probes(now_s)]
        self._next_due_s = self._next_event_s()
        return tuple(found)

    def next_due_s(self, now_s: float) -> float:
        """Return when to call `take_due_tasks` next, if no event occurs before; infinity if never."""
        return self._next_due_s if self._is_checked else now_s

    # -- successors

    def add_successor(self, name: str, prior: Link) -> None:
        """Add an upstream; it is pinged at once, and becomes a candidate when it has answered."""
        if name in self._successors or name in self._here:
            raise RouteError(
                f"{name!r} is already an upstream, or not a valid name; give each upstream its own."
            )
        self._successors[name] = Successor(name, prior, self.settings, self.name, self._radio)
        self._successors[name].assume(self._here[LOCAL].way.best.accuracy)
        self._mark_changed()

    def remove_successor(self, name: str) -> None:
        """Remove an upstream."""
        if self._successors.pop(name, None) is not None:
            self._mark_changed()

    def record_answer(
        self,
        successor: str,
        n: int,
        sent_bytes: int,
        received_bytes: int,
        away_s: float,
        spent_s: float,
        advert: CurveAdvert | None,
        now_s: float,
        waited_s: float = 0.0,
        ticket: QueueTicket | None = None,
    ) -> None:
        """Record an answer of `successor` after `away_s`, of which it spent `spent_s` by its own clock.

        Of that, the input was queued for `waited_s`; `ticket` is the result of `enter`.
        """
        peer = self._successors.get(successor)
        if peer is None:
            return
        otherwise_s = partial(self._least_s, without=successor, now_s=now_s)
        sizes = (sent_bytes, received_bytes)
        if peer.record_answer(n, *sizes, away_s, spent_s, advert, now_s, otherwise_s, waited_s, ticket):
            self._is_stale = True
        self._is_checked = False
        self._expects_until_s = min(self._expects_until_s, peer.transfer.changes_at_s)

    def enter(self, successor: str, n: int, now_s: float, level: ServiceLevel | None = None) -> QueueTicket:
        """Register an input for `successor` until `leave`, at `level`. Raises RouteError if there is none."""
        peer = self._successors.get(successor)
        if peer is None:
            raise RouteError(f"{successor} is not an upstream any more.")
        return peer.enter(n, now_s, level)

    def has_room(self, successor: str) -> bool:
        """Return whether another input may be sent to `successor` now; more would only queue there."""
        peer = self._successors.get(successor)
        return peer is not None and peer.queue.has_room

    def send(self, successor: str, ticket: QueueTicket, now_s: float) -> None:
        """Record that the input of `ticket` is sent now."""
        ticket.queue.send(ticket, now_s)

    def leave(self, successor: str, ticket: QueueTicket, now_s: float) -> None:
        """Record that the input of `ticket` was answered, failed, or will not be sent."""
        ticket.queue.leave(ticket, now_s)  # `successor` may have been removed and added since

    def record_ping(
        self, successor: str, away_s: float, spent_s: float, advert: CurveAdvert, now_s: float
    ) -> None:
        """Record a ping's answer from `successor`."""
        self._update(successor, lambda peer: peer.record_ping(away_s, spent_s, advert, now_s))

    def record_advert(self, successor: str, advert: CurveAdvert, now_s: float) -> None:
        """Record an advert of `successor`, from an answer without information on the way there."""
        peer = self._successors.get(successor)
        if peer is not None and peer.set_advert(advert, now_s):
            self._mark_changed()

    def handle_broadcast(self, successor: str, advert: CurveAdvert, now_s: float) -> None:
        """Handle a broadcast in the name of `successor` (CRIME 4.3.3 ii).

        Broadcasts are not authenticated, so it is only a hint to ping `successor`, and its curve changes no
        choice. With `trusts_broadcasts`, as in the paper, it is taken as the advert of `successor`.
        """
        peer = self._successors.get(successor)
        if self.settings.trusts_broadcasts:
            self.record_advert(successor, advert, now_s)
        elif peer is not None:
            peer.record_hint(now_s)
            self._is_checked = False

    def record_failure(self, successor: str, now_s: float, reason: str = "no answer") -> None:
        """Record that `successor` was unreachable, or returned its own error; `reason` is for people."""
        self._update(successor, lambda peer: peer.record_failure(now_s, reason))

    def record_mismatch(self, successor: str, now_s: float, reason: str = "does not fit") -> None:
        """Record that `successor` holds another model, or has another protocol: it gets no requests."""
        self._update(successor, lambda peer: peer.record_mismatch(now_s, reason))

    def record_doubt(self, successor: str, now_s: float) -> None:
        """Record that the wait for an answer of `successor` was ended before its possible time."""
        self._update(successor, lambda peer: peer.record_doubt(now_s))

    def record_overdue(self, successor: str, n: int, late_s: float, now_s: float) -> None:
        """Record that an answer of `successor` is `late_s` later than expected, and no longer waited for."""
        self._update(successor, lambda peer: peer.record_overdue(n, late_s, now_s))

    def record_misbehaviour(self, successor: str, now_s: float, reason: str = "sent what cannot be") -> None:
        """Record invalid data from `successor` (PeerCurveError): it is excluded for a while."""
        self._update(successor, lambda peer: peer.set_aside(now_s, reason))

    def has_successors(self) -> bool:
        return bool(self._successors)

    # -- this device

    def add_endpoint(self, name: str, prior: Curve | None = None, watts: float | None = None) -> None:
        """Add an endpoint of this device, such as `CLUSTER`; its initial power is `watts`."""
        if name in self._here or name in self._successors:
            raise RouteError(f"{name!r} is an endpoint already; give each its own name.")
        self._here[name] = LocalEndpoint(name, self.settings, prior, watts)
        self._mark_changed()

    def offer(self, levels: tuple[ServiceLevel, ...], endpoint: str = LOCAL) -> None:
        """Set an endpoint's current `levels`, worst first (`Endpoint.levels`)."""
        if self._here[endpoint].offer(levels):
            for peer in self._successors.values():
                peer.assume(self._here[LOCAL].way.best.accuracy)
            self._mark_changed()
            self._next_due_s = min(self._next_due_s, self._here[endpoint].probe_at_s)

    def record_local_answer(
        self, n: int, seconds: float, now_s: float, endpoint: str = LOCAL, joules: float | None = None
    ) -> None:
        """Record an answer of this device after `seconds` of work and `joules`, without queueing."""
        here = self._here[endpoint]
        if here.record_answer(n, seconds, self._last_n, now_s, joules):
            self._mark_changed()
        self._next_due_s = min(self._next_due_s, here.probe_at_s)

    def set_wait(
        self, wait_s: float, now_s: float, endpoint: str = LOCAL, needs: InputNeeds = NO_NEEDS
    ) -> None:
        """Set the time that an input arriving now would wait before its work here starts, and its `needs`.

        The next choice here, answers and pings use it as it is. Broadcasts carry the average of the last
        `wait_memory_s`: otherwise all predecessors at once would alternately fill and empty a queue.
        """
        if self._here[endpoint].set_wait(wait_s, now_s, needs):
            self._is_checked = False

    # -- predecessors

    def add_predecessor(self, predecessor: str, listener: Listener | None, now_s: float) -> None:
        """Record a request or ping of `predecessor`; broadcasts go to its `listener`, until it expires."""
        self.predecessors.register(predecessor, listener, now_s)
        self._next_due_s = min(self._next_due_s, now_s + self.settings.expire_after_s)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The names of this device's own endpoints."""
        return tuple(self._here)

    def curve_here(self, endpoint: str = LOCAL) -> Curve | None:
        """Return T_l(n) of an endpoint of this device, without queueing; None before it is known."""
        return self._here[endpoint].curve

    @property
    def ways_here(self) -> list[Candidate]:
        """This device's endpoints, including the wait of an input that arrives now."""
        return [endpoint.candidate for endpoint in self._here.values()]

    def state(self, successor: str, now_s: float) -> PeerState | None:
        """Return a successor's current state; None if there is none of that name."""
        peer = self._successors.get(successor)
        return None if peer is None else peer.state(now_s)

    def states(self, now_s: float) -> tuple[PeerState, ...]:
        """Return every successor's current state."""
        return tuple(s.state(now_s) for s in self._successors.values())

    def _mark_changed(self) -> None:
        self._is_stale, self._is_checked = True, False

    def _update(self, successor: str, act: Callable[[Successor], None]) -> None:
        if (peer := self._successors.get(successor)) is not None:
            act(peer)
            self._mark_changed()

    def _update_expected(self, now_s: float) -> None:
        """Update the expected ways to upstreams: the latest observation loses weight with time."""
        if now_s < self._expects_until_s:
            return
        for peer in self._successors.values():
            if now_s >= peer.transfer.changes_at_s and peer.update_expected(now_s):
                self._is_stale = True
        self._plan_update()

    def _plan_update(self) -> None:
        self._expects_until_s = min((p.transfer.changes_at_s for p in self._successors.values()), default=inf)

    def _refresh_ways(self) -> list[Candidate]:
        """Return this device and its upstreams as currently known, without their queues."""
        if not self._is_stale:
            return self._ways
        here = [endpoint.way for endpoint in self._here.values()]
        self._ways = [*here, *[s.way() for s in self._successors.values() if s.is_ready]]
        self._adverts.set_ways(self._ways)
        self._plan_update()
        self._is_stale = False
        return self._ways

    def _candidates(self, now_s: float) -> list[Candidate]:
        """Return the same, with the wait of an input that arrives now."""
        for endpoint in self._here.values():
            endpoint.dependents.pass_time(now_s)
        above = self._refresh_ways()[len(self._here) :]
        return [*self.ways_here, *[self._successors[way.name].candidate(now_s) for way in above]]

    def _add_wait(
        self, advert: CurveAdvert, ways: Sequence[Candidate], now_s: float, *, is_now: bool = False
    ) -> CurveAdvert:
        """Return `advert`, made of `ways`, with the current or recent wait."""
        waits_s = [self._wait_s(way, now_s, is_now=is_now) for way in ways]
        wait_s = wait_beyond(advert, self._last_n, ways, waits_s) if any(waits_s) else 0.0
        return advert.with_wait(wait_s) if wait_s else advert

    def _dependencies(self, name: str) -> frozenset[str]:
        """Return the nodes that the curve of a candidate depends on."""
        advert = None if name in self._here else self._successors[name].advert
        return frozenset() if advert is None else advert.through

    def _wait_s(self, way: Candidate, now_s: float, *, is_now: bool) -> float:
        if way.name in self._here:
            here = self._here[way.name]
            return here.wait_s if is_now else here.usual_wait_s(now_s)
        queue = self._successors[way.name].queue
        return (queue.wait_s if is_now else queue.usual_wait_s)(way.fixed_s, now_s)

    def _broadcasts(self, now_s: float) -> list[BroadcastTask]:
        if not self.predecessors:
            return []
        settings, ways, of = self.settings, self._refresh_ways(), self._adverts.get
        made = of(None, ways)  # without listeners too: the ways are compared with its ways later
        if not self.predecessors.has_listeners:
            return []
        common = self._add_wait(*made, now_s)
        limits = (settings.max_n, settings.threshold_s, settings.threshold_ratio)
        behind = self.predecessors.take_outdated(
            lambda name: self._add_wait(*of(name, ways), now_s) if name in common.through else common, *limits
        )
        return [BroadcastTask(names, advert) for advert, names in behind]

    def _probes(self, now_s: float) -> list[ProbeTask]:
        found, n_inputs, is_awaited = list[ProbeTask](), self._pings.n_inputs, bool(self.predecessors)
        for name, here in self._here.items():
            if now_s >= here.probe_at_s:
                others_s = partial(self._least_s, without=name, now_s=now_s)
                n = here.probe_length(self._last_n, others_s, now_s, n_inputs, is_awaited=is_awaited)
                found += [ProbeTask(n, name)] if n else []
        return found

    def _least_s(self, n: int, without: str, now_s: float) -> float:
        """Return the time of length n at the best other candidate; 0 if there is none."""
        return min((c.seconds(n) for c in self._candidates(now_s) if c.name != without), default=0.0)

    def _next_event_s(self) -> float:
        at_s = self.predecessors.expires_at_s
        for here in self._here.values():
            at_s = min(at_s, here.probe_at_s)
        for peer in self._successors.values():
            at_s = min(at_s, peer.ping_at_s, peer.queue.news_at_s)
        return at_s
