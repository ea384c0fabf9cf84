"""This node's requests at one upstream: the wait of the next one, and how many at once pay."""

from dataclasses import dataclass, field
from math import inf
from typing import final

from pliant.route.choice.radio_use import RadioUse

_AVERAGED = 8
_LEAST_LIMIT, _MOST_LIMIT = 4.0, 256.0
_NEWS_S, _SHORT_WAIT_S = 0.5, 0.01
"""A longer wait, and longer than an answer takes, is asked about after so long."""
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
        """The value is `value` from `now_s` (monotonic seconds) on."""
        self._average = self.at(now_s)
        self._now, self._since_s = value, now_s

    def at(self, now_s: float) -> float:
        """The average as of `now_s`."""
        if self._average == self._now:
            return self._now
        halvings = (now_s - self._since_s) / self._memory_s
        return self._now + (self._average - self._now) * _halved(halvings)


@dataclass(slots=True)
class Passage:
    """One request on its way through `queue`: `work_s` is what it is expected to keep the upstream busy for.

    `away_s` is how long it is expected to be away. `ahead_s` is the work of this node's requests that were in
    flight when it was sent, and `n_ahead` their number. `joules` are what it took of this device's radio,
    once it has left; None without a radio.
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

    An upstream works on one request after another, as far as this node knows. So what is chosen for it and
    not answered yet delays the next one by its work, less what of that is done while the next one is on its
    way. What others have there shows in the waiting times of its answers, and in the wait that it tells.

    `limit` requests may be in flight. Fewer than fill the way there and back would leave the upstream idle;
    more than that only wait in its queue instead of here, where they can still be sent elsewhere. The limit
    follows the number of requests that queue, as TCP Vegas does (Brakmo and Peterson, JSAC 1995, section
    3.2): time away over the least time there can be, times the requests in flight.

    `radio` is this device's, for all upstreams. With `has_news`, and without it, the queue is asked about.
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
        """When to ask how long the queue of others is now: inputs that avoid it do not show it."""
        self._limit = self._least = _LEAST_LIMIT
        self.work_s = 0.0
        self.n_in_flight = 0
        self.n_waiting = 0

    @property
    def limit(self) -> int:
        """How many requests may be in flight."""
        return int(max(self._limit, self._least))

    @property
    def has_room(self) -> bool:
        """Whether one more may be sent now."""
        return self.n_in_flight < self.limit

    def wait_s(self, way_s: float, now_s: float) -> float:
        """What a request that came now would wait for at an upstream `way_s` away (there and back)."""
        return self.others_s(now_s) + max(self.work_s - way_s, 0.0)

    def usual_wait_s(self, way_s: float, now_s: float) -> float:
        """The same on average lately."""
        return self.others_s(now_s) + max(self._usual_s.at(now_s) - way_s, 0.0)

    def others_s(self, now_s: float) -> float:
        """The wait there that is not this node's doing; without news of it, it is taken to fade."""
        if not (self._others_s or self._told_s):
            return 0.0
        seen_s = self._others_s * _halved((now_s - self._others_at_s) / self._memory_s)
        told_s = self._told_s * _halved((now_s - self._told_at_s) / self._memory_s)
        return max(seen_s, told_s)

    def enter(self, work_s: float, now_s: float, away_s: float = 0.0) -> Passage:
        """A request is to go as soon as there is room: it takes `work_s` there, `away_s` with the way."""
        self.work_s += work_s
        self._usual_s.set(self.work_s, now_s)
        self.n_waiting += 1
        return Passage(work_s, self, away_s=away_s)

    def send(self, passage: Passage, now_s: float) -> None:
        """It is sent now."""
        passage.is_sent = True
        passage.ahead_s, passage.n_ahead = self._in_flight_s, self.n_in_flight
        self.n_waiting -= 1
        self.n_in_flight += 1
        self._in_flight_s += passage.work_s
        self._sent_s.set(self._in_flight_s, now_s)
        if self._radio is not None:
            passage.before_j = self._radio.begin(passage.away_s, now_s)

    def leave(self, passage: Passage, now_s: float) -> None:
        """It was answered, or failed, or will not be sent."""
        self.work_s -= passage.work_s
        if passage.is_sent:
            self.n_in_flight -= 1
            self._in_flight_s -= passage.work_s
            if self._radio is not None:
                passage.joules = (passage.joules or 0.0) + self._radio.end(passage.before_j, now_s)
        else:
            self.n_waiting -= 1
        if not self.n_in_flight + self.n_waiting:  # no rounding errors of sums stay behind
            self.work_s = 0.0
        if not self.n_in_flight:
            self._in_flight_s = 0.0
        self._usual_s.set(self.work_s, now_s)
        self._sent_s.set(self._in_flight_s, now_s)

    def told(self, wait_s: float, now_s: float) -> None:
        """The upstream says that a request waits there for `wait_s`: for this node's requests too."""
        self._peak_s = max(wait_s, self.peak_s(now_s))
        self._told_s = max(wait_s - max(self._sent_s.at(now_s), self._in_flight_s), 0.0)
        self._told_at_s = now_s
        self.expect_news(now_s)

    def peak_s(self, now_s: float) -> float:
        """The longest wait that it told lately, which fades."""
        return self._peak_s * _halved((now_s - self._told_at_s) / self._memory_s)

    def forget_seen(self) -> None:
        """A ping came back: what it tells of the queue is newer than what answers waited for."""
        self._others_s = 0.0

    def expect_news(self, now_s: float) -> None:
        """Plan when to ask about the queue, if there is one."""
        is_queue = self.others_s(now_s) > max(self._service_s or 0.0, _SHORT_WAIT_S)
        self.news_at_s = now_s + _NEWS_S if is_queue and self._has_news else inf

    def answered(
        self,
        passage: Passage | None,
        away_s: float,
        spent_s: float,
        waited_s: float,
        floor_s: float,
        now_s: float,
    ) -> None:
        """An answer was away for `away_s`, of which it waited `waited_s` and spent `spent_s`, that included.

        `floor_s` is the shortest way there and back that was seen.
        """
        service_s = spent_s - waited_s
        if self._service_s is None:
            self._service_s = service_s
        self._service_s += (service_s - self._service_s) / _AVERAGED
        ahead_s, n_ahead = (passage.ahead_s, passage.n_ahead) if passage is not None else (0.0, 0)
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
    return 2.0 ** -max(times, 0.0) if times < 64.0 else 0.0
