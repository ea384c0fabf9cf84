"""A router's view of one successor: its link, its advert, and whether to trust it."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from pliant.ir.endpoint import ServiceLevel
from pliant.ir.link import Link
from pliant.ir.times.bounded_level import has_moved
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.timing import Timing
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.energy import remote_candidate
from pliant.route.choice.radio_use import RadioUse
from pliant.route.curve_advert import CurveAdvert
from pliant.route.level_bounds import LevelBounds
from pliant.route.router_settings import RouterSettings
from pliant.route.upstream.advert_check import AdvertCheck
from pliant.route.upstream.peer_state import PeerHealth, PeerState
from pliant.route.upstream.silence import SilenceDetector
from pliant.route.upstream.transfer import TransferTimes
from pliant.route.upstream.upstream_queue import QueueTicket, UpstreamQueue

_CROWD = 8
"""Of this many concurrent answers, the fastest shows the time of the way."""
_N_FIRST = 40
"""A fixed bound of the way is that after this many observations (those that `AdaptiveBound` keeps)."""
_CONFIRM_S = 1.0
_RARELY = 8.0
_CALM = 4.0
"""Maximum ping interval of a stable link, in multiples of T_ping (the paper: 1 to 10 min)."""


class Successor:
    """One upstream. It is a candidate while it has a curve, answers, and is not excluded.

    Time alone makes no upstream usable: one that was down or excluded is pinged when its time is over, and
    becomes a candidate with the answer.
    """

    def __init__(
        self, name: str, prior: Link, settings: RouterSettings, me: str, radio: RadioUse | None = None
    ) -> None:
        self.name = name
        self.transfer = TransferTimes(prior, settings.transfer)
        self.queue = UpstreamQueue(settings.wait_memory_s, radio, has_news=settings.adapts_pings)
        self._radio = radio
        self.reason: str | None = None
        """Why it is no candidate; None while it is one, and before first contact."""
        self.advert: CurveAdvert | None = None
        self._due_s, self._hint_due_s = float("-inf"), float("inf")
        self._hinted_ping_s = float("-inf")
        """Time of the last ping triggered by a hint."""
        self.contact_s: float | None = None
        self.n_inputs = 0
        """The number of inputs of its router when a ping was last due."""
        self._candidate: Candidate | None = None
        self._levels: tuple[ServiceLevel, ...] = ()
        self._settings, self._me = settings, me
        self._interval_s = settings.ping_after_s
        self._failures, self._is_mismatched = 0, False
        self.is_ping_pending = False
        """Whether a ping is pending."""
        self._silence, self._check = SilenceDetector(), AdvertCheck(settings)
        self._crowded_s: deque[float] = deque(maxlen=_CROWD)
        self._way_bound, self._n_ways = AdaptiveBound(), 0
        self._bounds = LevelBounds(settings)
        self._accuracy: float | None = None

    def candidate(self, now_s: float) -> Candidate:
        """Return this successor at `now_s`, while it `is_ready`: its `way`, and the wait there."""
        way = self.way() if self._radio is None else self._radio.with_energy(self.way(), now_s)
        return way.behind(self.queue.wait_s(way.fixed_s, now_s))

    def assume(self, accuracy: float | None) -> None:
        """Assume this device's accuracy for complete answers (same model), unless it advertises one."""
        if accuracy != self._accuracy:
            self._accuracy, self._candidate, self._levels = accuracy, None, ()

    def way(self) -> Candidate:
        """Return this successor by eq. 4 (and eq. 9 if the settings have a radio), without any queue."""
        assert self.advert is not None
        if self._candidate is None:
            link = self.transfer
            told = self._levels or self._bounds.applied_to(self.advert.levels)
            self._levels = self._levels or tuple([self._judged(level) for level in told])
            self._candidate = remote_candidate(
                self.name,
                self._levels,
                (link.fixed_s, link.per_item_s),
                (link.sent.fixed, link.sent.per_item),
                (link.received.fixed, link.received.per_item),
                self._settings.radio,
                way_bound=self._way_factor,
            )
        return self._candidate

    def _judged(self, level: ServiceLevel) -> ServiceLevel:
        """Return an advertised level in the form used by choices."""
        is_unknown = level.accuracy is None and level.fidelity == 1.0
        return replace(level, accuracy=self._accuracy) if is_unknown else level

    def enter(self, n: int, now_s: float, level: ServiceLevel | None = None) -> QueueTicket:
        """Register an input of length n for it, to be answered at `level` (None: the most accurate)."""
        answering = level or (self.advert and self.advert.levels[-1])
        work_s = answering.curve.at(n) if answering else 0.0
        way_s = self.transfer.fixed_s + self.transfer.per_item_s * n
        return self.queue.enter(work_s, now_s, way_s + work_s)

    def update_expected(self, now_s: float) -> bool:
        """Update the expected way at `now_s`; return whether that can change a choice."""
        is_moved = self.transfer.update_expected(now_s)
        if is_moved:
            self._candidate = None
        return is_moved and self.is_ready

    @property
    def ping_at_s(self) -> float:
        """When to ping it: as scheduled, or sooner after a hint."""
        return min(self._due_s, self._hint_due_s)

    @property
    def is_ready(self) -> bool:
        """Whether requests may go there."""
        if self.advert is None or self._failures or self._silence.is_silent:
            return False
        return self._me not in self.advert.through

    def record_answer(
        self,
        n: int,
        sent_bytes: int,
        received_bytes: int,
        away_s: float,
        spent_s: float,
        advert: CurveAdvert | None,
        now_s: float,
        otherwise_s: Callable[[int], float],
        waited_s: float = 0.0,
        ticket: QueueTicket | None = None,
    ) -> bool:
        """Record an answer; the next best takes `otherwise_s`. Return whether it changes any choice.

        Of the `spent_s` there, the request was queued for `waited_s`.
        """
        link, was_ready = self.transfer, self.is_ready
        self._silence.record_answer()
        was = link.fixed_s, link.per_item_s
        is_surprise, is_held_up = False, self._silence.was_silent_during(away_s, now_s)
        if not is_held_up and self._shows_way(away_s - spent_s, ticket):
            way_s = link.fixed_s + link.per_item_s * n
            if self._settings.is_robust:
                self._observe_way(way_s, max(away_s - spent_s, 0.0))
            is_surprise = link.record_answer(n, sent_bytes, received_bytes, away_s, spent_s, now_s)
        if ticket is not None and self._radio is not None:
            sent_j = self._radio.model.transfer_j(sent_bytes, received_bytes)
            ticket.joules = (ticket.joules or 0.0) + sent_j
        self.queue.record_answer(ticket, away_s, spent_s, waited_s, link.least_s(n), now_s)
        is_believed = self._is_believed(n, away_s, (spent_s, waited_s), advert, otherwise_s, now_s)
        self._record_contact(is_surprise, now_s, is_held_up=is_held_up)
        is_told = is_believed and advert is not None and self.set_advert(advert, now_s)
        is_moved = was != (link.fixed_s, link.per_item_s) or self._is_other_bound()
        if is_moved:
            self._candidate = None
        return is_moved or is_surprise or is_told or was_ready is not self.is_ready

    def _is_other_bound(self) -> bool:
        """Return whether the way's variation has changed against the cached candidate."""
        candidate = self._candidate
        return candidate is not None and has_moved(self._way_factor, candidate.way_bound)

    @property
    def _way_factor(self) -> float:
        """The bound of the way as a multiple of its time."""
        if self._settings.bounds == "none":
            return 1.0
        return max(self._silence.least_bound, self._way_bound.factor())

    def _observe_way(self, way_s: float, seconds: float) -> None:
        """Update the bound of the way, expected to take `way_s`, unless it is fixed by now."""
        if self._settings.bounds != "fixed" or self._n_ways < _N_FIRST:
            self._n_ways += 1
            self._way_bound.observe(Timing(way_s, way_s), seconds)

    def _shows_way(self, took_s: float, ticket: QueueTicket | None) -> bool:
        """Return whether an answer shows the time of the way: one without concurrent requests does.

        Of concurrent ones, only those as fast as the fastest of the last few count: the others waited for
        each other, in this process or in the upstream's, which is not part of the way.
        """
        if ticket is None or not ticket.n_ahead:
            self._crowded_s.clear()
            return True
        self._crowded_s.append(took_s)
        if len(self._crowded_s) < _CROWD:
            return False
        return took_s <= min(self._crowded_s)

    def record_ping(self, away_s: float, spent_s: float, advert: CurveAdvert, now_s: float) -> None:
        if self._radio is not None:
            self._radio.end(self._radio.begin(away_s, now_s - away_s), now_s)
        is_held_up = self._silence.was_silent_during(away_s, now_s)
        is_surprise = not is_held_up and self.transfer.record_ping(away_s, spent_s, now_s)
        is_forgiven = self._silence.is_forgiven(now_s, self._settings.retry_limit_s)
        if is_forgiven and self._settings.bounds != "fixed":  # no other event shows its recovery
            self._way_bound = AdaptiveBound()
        self._record_contact(is_surprise, now_s, is_ping=True, is_held_up=is_held_up)
        self.queue.drop_observed_wait()
        self.set_advert(advert, now_s)
        self._candidate = None

    def set_advert(self, advert: CurveAdvert, now_s: float) -> bool:
        """Store its advert, in order of arrival from itself; return whether that changes anything."""
        if self._check.is_excluded(now_s):
            return False
        self.queue.record_advertised_wait(advert.wait_s, now_s)
        before, self.advert = self.advert, advert
        if self._me in advert.through:
            self.reason = "its answers would come back through this node"
        elif not self._failures:
            self.reason = None
        if before is not None and (advert.levels, advert.through) == (before.levels, before.through):
            return False
        self._candidate, self._levels = None, ()
        if self._failures:
            self._due_s = min(self._due_s, now_s)
        return True

    def record_hint(self, now_s: float) -> None:
        """Schedule a ping after a hint that its advert has changed, at most one per `retry_s`."""
        soonest_s = max(now_s, self._hinted_ping_s + self._settings.retry_s, self._check.until_s)
        self._hint_due_s = min(self._hint_due_s, soonest_s)

    def record_failure(self, now_s: float, reason: str) -> None:
        """Record a failure: it is down until a ping is answered, the first after `retry_s`, with back-off.

        Failures of requests sent before it was down are ignored.
        """
        self._is_mismatched = False
        if self._failures and not self.is_ping_pending:
            return
        self.is_ping_pending = False
        self._failures += 1
        self.reason = reason
        wait_s = self._settings.retry_s * 2.0 ** min(self._failures - 1, 16)
        self._due_s = max(now_s + min(wait_s, self._settings.retry_limit_s), self._check.until_s)

    def record_mismatch(self, now_s: float, reason: str) -> None:
        """Record another model or protocol: it is down until a ping shows a match."""
        self.record_failure(now_s, reason)
        self._is_mismatched = True

    def record_doubt(self, now_s: float) -> None:
        """Schedule a ping after a wait that was ended early, unless it was heard just before."""
        if self.is_ping_pending:
            return
        if self._settings.adapts_pings:
            self._interval_s = min(_CONFIRM_S, self._settings.ping_after_s)
        if self.contact_s is not None:
            now_s = max(now_s, self.contact_s + self._settings.retry_s)
        self._due_s = min(self._due_s, max(now_s, self._check.until_s))

    def record_overdue(self, n: int, late_s: float, now_s: float) -> None:
        """Record an answer that is later than expected by at least `late_s`; negative values are ignored.

        Beyond its bound, no request is sent there until it is heard, for which a ping is sent at once. The
        first overdue answer may be a gap of the link; further ones, without an answer in between, raise the
        bound of its answers: an upstream that hangs may still answer pings.
        """
        silence = self._silence
        if self.advert is not None and late_s > 0.0 and not silence.is_silent:
            way, way_s = self.way(), self.transfer.fixed_s + self.transfer.per_item_s * n
            level = way.best
            spread_s = way_s * (way.way_bound - 1.0) + level.bound_curve.at(n) - level.curve.at(n)
            if silence.record_overdue(late_s, spread_s, now_s):
                self._observe_way(way_s, way_s + late_s)
            self._candidate = None
        self.record_doubt(now_s)
        if silence.is_silent and not self.is_ping_pending:
            self.reason = "did not answer in time"
            self._due_s = max(now_s, self._check.until_s)

    def set_aside(self, now_s: float, reason: str) -> None:
        """Exclude it after invalid data, or times far above its advert; the exclusion doubles each time."""
        self.is_ping_pending = False
        wait_s = self._check.exclude(now_s)
        if wait_s is None:
            return
        self._due_s = self._check.until_s
        self.advert, self.reason = None, f"{reason}; excluded for {wait_s:g} s"

    def record_ping_sent(self, now_s: float) -> None:
        """Record that a ping was sent; the next one is due an interval later, whatever the result."""
        self._due_s = now_s + max(self._interval_s, self._settings.retry_s)
        if now_s >= self._hint_due_s:
            self._hint_due_s, self._hinted_ping_s = float("inf"), now_s
        self.is_ping_pending = True

    def postpone(self, now_s: float) -> None:
        """Postpone the ping, as nothing depends on it."""
        self._due_s = now_s + self._settings.ping_after_s

    def is_overdue(self, now_s: float) -> bool:
        """Return whether it is pinged even if nothing seems to depend on it."""
        if now_s >= self._hint_due_s:
            return True
        if not self.is_ready or self.contact_s is None or self._interval_s < self._settings.ping_after_s:
            return True
        return now_s - self.contact_s >= _RARELY * self._settings.ping_after_s

    def state(self, now_s: float) -> PeerState:
        """Return its state for people and metrics."""
        state: PeerHealth = "ready"
        if self._check.is_excluded(now_s):
            state = "aside"
        elif self._is_mismatched:
            state = "mismatch"
        elif self._failures or self._silence.is_silent:
            state = "down"
        elif self.advert is None:
            state = "unknown"
        elif not self.is_ready:
            state = "circle"
        advert, link, queue = self.advert, self.transfer, self.queue
        return PeerState(
            self.name,
            advert.node if advert else None,
            state,
            link.rtt_s,
            link.bandwidth_Bps,
            advert.levels if advert else (),
            self.contact_s,
            self.reason,
            queue.wait_s(link.fixed_s, now_s),
            queue.n_in_flight,
            queue.n_waiting,
            queue.limit,
        )

    def _record_contact(
        self, is_surprise: bool, now_s: float, *, is_ping: bool = False, is_held_up: bool = False
    ) -> None:
        """Record an answer; a surprise or held-up answer makes the next ping sooner, calm pings later."""
        usual_s, is_first = self._settings.ping_after_s, self.contact_s is None
        self._silence.record_contact(now_s)
        self._failures, self._is_mismatched = 0, False
        self.is_ping_pending = self.is_ping_pending and not is_ping
        self.contact_s = now_s
        if self._settings.adapts_pings:
            if is_surprise:
                self._interval_s = min(_CONFIRM_S, usual_s)
            elif self._interval_s < usual_s or is_first:
                self._interval_s = usual_s
            elif is_ping:
                self._interval_s = min(2.0 * self._interval_s, _CALM * usual_s)
        is_aside = self._check.is_excluded(now_s)
        self._due_s = self._check.until_s if is_aside else now_s + (0.0 if is_held_up else self._interval_s)

    def _is_believed(
        self,
        n: int,
        away_s: float,
        times_s: tuple[float, float],
        advert: CurveAdvert | None,
        otherwise_s: Callable[[int], float],
        now_s: float,
    ) -> bool:
        """Return whether its advertised times are accurate enough; else it is excluded now, or was before.

        `times_s` are the time spent there, and its queueing part. Its curve excludes queueing, so the rest is
        compared with it, plus the wait that it advertises: an upstream may forward a request if that takes
        longer than its own work, but no longer than its queue.
        """
        if self.advert is None:
            return not self._check.is_excluded(now_s)
        spent_s, waited_s = times_s
        work_s = spent_s - waited_s
        wait_s = max(self.queue.peak_s(now_s), advert.wait_s if advert is not None else 0.0)
        told_s = self.advert.curve.at(n) + wait_s

        def is_best() -> bool:
            return spent_s <= away_s <= otherwise_s(n)

        is_wrong = self._check.record_answer(work_s, told_s, away_s, is_best, now_s)
        if is_wrong:
            took = f"{work_s * 1e3:.3g} ms, {told_s * 1e3:.3g} ms were told"
            self.set_aside(now_s, f"takes longer than it tells (length {n}: {took})")
        return not is_wrong
