"""What a router has sent to each replica and not had answered, and how long that still takes."""

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar, final

R = TypeVar("R", bound=Hashable)
_MEMORY_S = 10.0
"""Until what a replica took counts for 1/e."""
_PRIOR = 2.0
"""Requests that took what was expected, which each replica is credited with."""
_LEAST = 0.5
"""Of what is expected: a replica that fails at once must not look as if it were quick."""


@dataclass(frozen=True, slots=True)
class _Sent:
    expected_s: float
    sent_s: float


@dataclass(frozen=True, slots=True)
class _Pace:
    """What requests took of a replica, beside what was expected: sums that fade."""

    took_s: float
    expected_s: float
    requests: float
    at_s: float

    def plus(self, took_s: float, expected_s: float, now_s: float) -> "_Pace":
        kept = self._kept(now_s)
        return _Pace(
            self.took_s * kept + took_s,
            self.expected_s * kept + expected_s,
            self.requests * kept + 1.0,
            now_s,
        )

    def slowdown(self, now_s: float) -> float:
        kept = self._kept(now_s)
        prior_s = _PRIOR * self.expected_s / self.requests
        return max((self.took_s * kept + prior_s) / (self.expected_s * kept + prior_s), _LEAST)

    def _kept(self, now_s: float) -> float:
        return math.exp(min(self.at_s - now_s, 0.0) / _MEMORY_S)


@final
class InFlight(Generic[R]):
    """Requests by their id, in the order in which they were sent to a replica.

    May be told of requests on one thread, and of their ends on another.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._sent: dict[R, dict[str, _Sent]] = {}
        self._replica: dict[str, R] = {}
        self._ended_s: dict[R, float] = {}
        self._pace: dict[R, _Pace] = {}

    def sent(self, id: str, replica: R, expected_s: float, now_s: float) -> None:
        """Request `id` goes to `replica`, for `expected_s` of work; it is at no other from now on."""
        with self._lock:
            if self._replica.get(id) == replica:
                return
            self._remove(id)
            self._replica[id] = replica
            self._sent.setdefault(replica, {})[id] = _Sent(expected_s, now_s)

    def ended(self, id: str, replica: R, now_s: float) -> None:
        """`replica` answered `id`, or will not: nothing changes where the request has gone to another."""
        with self._lock:
            if self._replica.get(id) != replica:
                return
            took_s = max(now_s - self._begun_s(replica), 0.0)
            expected_s = self._remove(id)
            if expected_s > 0.0:
                pace = self._pace.get(replica, _Pace(0.0, 0.0, 0.0, now_s))
                self._pace[replica] = pace.plus(took_s, expected_s, now_s)
            self._ended_s[replica] = now_s

    def withdrawn(self, id: str, replica: R) -> None:
        """`id` was never sent to `replica`, which it was meant for."""
        with self._lock:
            if self._replica.get(id) == replica:
                self._remove(id)

    def count(self, replica: R) -> int:
        """Requests there."""
        with self._lock:
            return len(self._sent.get(replica, ()))

    def slowdown(self, replica: R, now_s: float) -> float:
        """What requests lately took of `replica`, over what was expected; 1 where none ended lately.

        Requests that wait there are answered one after the other, or together: what one took is the time
        since the end of the one before, or since it was sent to a replica that had nothing to do.
        """
        with self._lock:
            return self._slowdown(replica, now_s)

    def backlog_s(self, replica: R, now_s: float) -> float:
        """What is left of the work sent to `replica`, at the pace at which it answered lately.

        Where none of it has ended although all of it should, it may last as long again.
        """
        with self._lock:
            work = self._sent.get(replica)
            if not work:
                return 0.0
            expected_s = sum(one.expected_s for one in work.values())
            left_s = self._slowdown(replica, now_s) * expected_s - (now_s - self._begun_s(replica))
            return abs(left_s)

    def keep(self, replicas: Collection[R]) -> None:
        """Forget all others: they are gone, and so are the requests that they had."""
        with self._lock:
            for replica in [one for one in self._sent if one not in replicas]:
                for id in list(self._sent[replica]):
                    self._remove(id)
                for known in (self._sent, self._ended_s, self._pace):
                    known.pop(replica, None)

    def _slowdown(self, replica: R, now_s: float) -> float:
        pace = self._pace.get(replica)
        return 1.0 if pace is None else pace.slowdown(now_s)

    def _begun_s(self, replica: R) -> float:
        """When the first of its requests came to work."""
        first = next(iter(self._sent[replica].values()))
        return max(first.sent_s, self._ended_s.get(replica, 0.0))

    def _remove(self, id: str) -> float:
        """Seconds that were expected of it."""
        replica = self._replica.pop(id, None)
        return 0.0 if replica is None else self._sent[replica].pop(id).expected_s
