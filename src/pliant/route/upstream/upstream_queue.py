"""This node's requests at one upstream: the wait of the next one, and the useful concurrency."""

from dataclasses import dataclass, field
from math import inf
from typing import final

from pliant.route.choice.radio_use import RadioUse

_AVERAGED = 8
_LEAST_LIMIT, _MOST_LIMIT = 4.0, 256.0
_NEWS_S, _SHORT_WAIT_S = 0.5, 0.01
"""A wait longer than _SHORT_WAIT_S and than an answer's time is queried after _NEWS_S."""
_FEW_QUEUED, _MANY_QUEUED = 1.0, 3.0


@final
class RecentAverage:
    """A value that changes in steps, averaged over time: a step counts half after `memory_s`."""

    __slots__ = ("_average", "_memory_s", "_now", "_since_s")

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._now = self._average = 0.0
        self._since_s = float("-inf")

    def set(self, value: float, now_s: float) -> None:
        """Set the value from `now_s` (monotonic seconds) on."""
        self._average = self.at(now_s)
        self._now, self._since_s = value, now_s

    def at(self, now_s: float) -> float:
        """Return the average at `now_s`."""
        if self._average == self._now:
            return self._now
        halvings = (now_s - self._since_s) / self._memory_s
        return self._now + (self._average - self._now) * _halved(halvings)


@dataclass(slots=True)
class QueueTicket:
    """One request on its way through `queue`: `work_s` is its expected work at the upstream.

    `away_s` is its expected time away. `ahead_s` is the work of this node's requests in flight when it was
    sent, and `n_ahead` their number. `joules` is its energy for this device's radio, known after `leave`;
    None without a radio.
    """

    work_s: float
    queue: "UpstreamQueue" = field(repr=False, compare=False)
    is_sent: bool = False
    ahead_s: float = 0.0
    n_ahead: int = 0
    away_s: float = 0.0
    joules: float | None = None
    before_j: float = 0.0


@final
class UpstreamQueue:
    """The requests of this node that go to one upstream, and the queue that they meet there.

    An upstream is assumed to process requests one after another. A chosen request without an answer therefore
    delays the next one by its work, minus the part done while the next one is on its way. Other nodes'
    requests show in the queueing times of answers, and in the advertised wait.

    `limit` requests may be in flight. Fewer than fill the way in both directions would leave the upstream
    idle; more only wait in its queue instead of here, where they can still be sent elsewhere. The limit
    follows the number of queued requests, as in TCP Vegas (Brakmo and Peterson, JSAC 1995, section 3.2): time
    away over the least possible time, times the requests in flight.

    `radio` is this device's, for all upstreams. With `has_news`, and without a radio, the queue is queried.
    """

    def __init__(self, memory_s: float, radio: RadioUse | None = None, *, has_news: bool = True) -> None:
        self._radio = radio
        self._memory_s = memory_s
        self._sent_s = RecentAverage(memory_s)
        self._usual_s = RecentAverage(memory_s)
        self._in_flight_s = 0.0
        self._others_s = self._told_s = 0.0
        self._others_at_s = self._told_at_s = float("-inf")
        self._service_s: float | None = None
        self._has_news, self._peak_s, self.n_inputs = has_news and radio is None, 0.0, 0
        self.news_at_s = inf
        """When to query the queue of other nodes: inputs that avoid the upstream do not show it."""
        self._limit = self._least = _LEAST_LIMIT
        self.work_s = 0.0
        self.n_in_flight = 0
        self.n_waiting = 0

    @property
    def limit(self) -> int:
        """The maximum number of requests in flight."""
        return int(max(self._limit, self._least))

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent now."""
        return self.n_in_flight < self.limit

    def wait_s(self, way_s: float, now_s: float) -> float:
        """Return the wait of a request arriving now at an upstream `way_s` away (both directions)."""
        return self.others_s(now_s) + max(self.work_s - way_s, 0.0)

    def usual_wait_s(self, way_s: float, now_s: float) -> float:
        """Return the same on recent average."""
        return self.others_s(now_s) + max(self._usual_s.at(now_s) - way_s, 0.0)

    def others_s(self, now_s: float) -> float:
        """Return the wait there caused by other nodes; it decays without news."""
        seen_s, told_s = self._others_s, self._told_s
        if seen_s:
            seen_s *= _halved((now_s - self._others_at_s) / self._memory_s)
        if told_s:
            told_s *= _halved((now_s - self._told_at_s) / self._memory_s)
        return max(seen_s, told_s)

    def enter(self, work_s: float, now_s: float, away_s: float = 0.0) -> QueueTicket:
        """Register a request to be sent when there is room: `work_s` there, `away_s` including the way."""
        self.work_s += work_s
        self._usual_s.set(self.work_s, now_s)
        self.n_waiting += 1
        return QueueTicket(work_s, self, away_s=away_s)

    def send(self, ticket: QueueTicket, now_s: float) -> None:
        """Record that it is sent now."""
        ticket.is_sent = True
        ticket.ahead_s, ticket.n_ahead = self._in_flight_s, self.n_in_flight
        self.n_waiting -= 1
        self.n_in_flight += 1
        self._in_flight_s += ticket.work_s
        self._sent_s.set(self._in_flight_s, now_s)
        if self._radio is not None:
            ticket.before_j = self._radio.begin(ticket.away_s, now_s)

    def leave(self, ticket: QueueTicket, now_s: float) -> None:
        """Record that it was answered, failed, or will not be sent."""
        self.work_s -= ticket.work_s
        if ticket.is_sent:
            self.n_in_flight -= 1
            self._in_flight_s -= ticket.work_s
            if self._radio is not None:
                ticket.joules = (ticket.joules or 0.0) + self._radio.end(ticket.before_j, now_s)
        else:
            self.n_waiting -= 1
        if not self.n_in_flight + self.n_waiting:  # clear rounding errors of the sum
            self.work_s = 0.0
        if not self.n_in_flight:
            self._in_flight_s = 0.0
        self._usual_s.set(self.work_s, now_s)
        self._sent_s.set(self._in_flight_s, now_s)

    def record_advertised_wait(self, wait_s: float, now_s: float) -> None:
        """Record the advertised wait, which includes that of this node's requests."""
        self._peak_s = max(wait_s, self.peak_s(now_s))
        self._told_s = max(wait_s - max(self._sent_s.at(now_s), self._in_flight_s), 0.0)
        self._told_at_s = now_s
        self.expect_news(now_s)

    def peak_s(self, now_s: float) -> float:
        """Return the longest recently advertised wait, with decay."""
        if not self._peak_s:
            return 0.0
        return self._peak_s * _halved((now_s - self._told_at_s) / self._memory_s)

    def drop_observed_wait(self) -> None:
        """Drop the wait seen in answers, after a ping with newer information."""
        self._others_s = 0.0

    def expect_news(self, now_s: float) -> None:
        """Schedule a query of the queue, if there is one."""
        is_queue = self.others_s(now_s) > max(self._service_s or 0.0, _SHORT_WAIT_S)
        self.news_at_s = now_s + _NEWS_S if is_queue and self._has_news else inf

    def record_answer(
        self,
        ticket: QueueTicket | None,
        away_s: float,
        spent_s: float,
        waited_s: float,
        floor_s: float,
        now_s: float,
    ) -> None:
        """Record an answer: away for `away_s`, of which `spent_s` there, including `waited_s` in its queue.

        `floor_s` is the shortest observed way in both directions.
        """
        service_s = spent_s - waited_s
        if self._service_s is None:
            self._service_s = service_s
        self._service_s += (service_s - self._service_s) / _AVERAGED
        ahead_s, n_ahead = (ticket.ahead_s, ticket.n_ahead) if ticket is not None else (0.0, 0)
        others_s = max(waited_s - ahead_s, 0.0)
        fresh = max(1.0 / _AVERAGED, 1.0 - _halved((now_s - self._others_at_s) / self._memory_s))
        self._others_s += (others_s - self._others_s) * fresh
        self._others_at_s = now_s
        self.expect_news(now_s)
        self._least = _LEAST_LIMIT
        if self._service_s > 0.0:
            self._least = min(max(2.0 + floor_s / self._service_s, _LEAST_LIMIT), _MOST_LIMIT)
        if away_s <= 0.0:
            return
        n_queued = (n_ahead + 1) * (waited_s + max(away_s - spent_s - floor_s, 0.0)) / away_s
        if n_queued > _MANY_QUEUED:
            self._limit = max(self._limit - 1.0 / self._limit, _LEAST_LIMIT)
        elif n_queued < _FEW_QUEUED and self.n_waiting:
            self._limit = min(max(self._limit, self._least) + 1.0 / self._limit, _MOST_LIMIT)


def _halved(times: float) -> float:
    if times <= 0.0:
        return 1.0
    return 2.0**-times if times < 64.0 else 0.0
