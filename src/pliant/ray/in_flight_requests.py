"""Requests that a router has in flight at each replica, and the time that they still need."""

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar, final

R = TypeVar("R", bound=Hashable)
_MEMORY_S = 10.0
"""Time constant of the decay of measured times (to 1/e)."""
_PRIOR = 2.0
"""Prior of each replica: this many requests that took exactly the expected time."""
_LEAST = 0.5
"""Lower bound of the slowdown: a replica that fails at once must not look fast."""


@dataclass(frozen=True, slots=True)
class _SentRequest:
    expected_s: float
    sent_s: float


@dataclass(frozen=True, slots=True)
class _Pace:
    """Measured and expected time of a replica's requests, as exponentially decaying sums."""

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
class InFlightRequests(Generic[R]):
    """Requests by id, in the order in which they were sent to each replica.

    Thread-safe: sends and completions may be reported on different threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._sent: dict[R, dict[str, _SentRequest]] = {}
        self._replica: dict[str, R] = {}
        self._ended_s: dict[R, float] = {}
        self._pace: dict[R, _Pace] = {}

    def record_sent(self, id: str, replica: R, expected_s: float, now_s: float) -> None:
        """Record that request `id`, with `expected_s` of work, goes to `replica` and to no other."""
        with self._lock:
            if self._replica.get(id) == replica:
                return
            self._remove(id)
            self._replica[id] = replica
            self._sent.setdefault(replica, {})[id] = _SentRequest(expected_s, now_s)

    def record_end(self, id: str, replica: R, now_s: float) -> None:
        """Record that `replica` completed or failed `id`. No effect if the request has moved on."""
        with self._lock:
            if self._replica.get(id) != replica:
                return
            took_s = max(now_s - self._begun_s(replica), 0.0)
            expected_s = self._remove(id)
            if expected_s > 0.0:
                pace = self._pace.get(replica, _Pace(0.0, 0.0, 0.0, now_s))
                self._pace[replica] = pace.plus(took_s, expected_s, now_s)
            self._ended_s[replica] = now_s

    def withdraw(self, id: str, replica: R) -> None:
        """Remove `id`, which was planned for `replica` but never sent."""
        with self._lock:
            if self._replica.get(id) == replica:
                self._remove(id)

    def count(self, replica: R) -> int:
        """The number of requests in flight at `replica`."""
        with self._lock:
            return len(self._sent.get(replica, ()))

    def slowdown(self, replica: R, now_s: float) -> float:
        """Recently measured time of `replica` over the expected time; 1 if no request completed recently.

        A replica processes its requests one after another or in batches, so the time of a request counts from
        the previous completion, or from its sending if the replica was idle.
        """
        with self._lock:
            return self._slowdown(replica, now_s)

    def backlog_s(self, replica: R, now_s: float) -> float:
        """Seconds of work left at `replica`, at its recent pace.

        If the expected time has passed without a completion, the overdue time is returned: the work may take
        as long again.
        """
        with self._lock:
            work = self._sent.get(replica)
            if not work:
                return 0.0
            expected_s = sum(one.expected_s for one in work.values())
            left_s = self._slowdown(replica, now_s) * expected_s - (now_s - self._begun_s(replica))
            return abs(left_s)

    def keep(self, replicas: Collection[R]) -> None:
        """Drop all other replicas, which are gone, with their requests."""
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
        """When the replica began its first request."""
        first = next(iter(self._sent[replica].values()))
        return max(first.sent_s, self._ended_s.get(replica, 0.0))

    def _remove(self, id: str) -> float:
        """Remove a request and return its expected seconds."""
        replica = self._replica.pop(id, None)
        return 0.0 if replica is None else self._sent[replica].pop(id).expected_s
