"""What a router has sent to each replica and not had answered, and how long that still takes."""

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar, final

R = TypeVar("R", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Sent:
    expected_s: float
    sent_s: float


@final
class InFlight(Generic[R]):
    """Requests by their id, in the order in which they were sent to a replica, which answers them in turn.

    May be told of requests on one thread, and of their ends on another.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._sent: dict[R, dict[str, _Sent]] = {}
        self._replica: dict[str, R] = {}
        self._ended_s: dict[R, float] = {}

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
            if self._replica.get(id) == replica:
                self._remove(id)
                self._ended_s[replica] = now_s

    def count(self, replica: R) -> int:
        """Requests there."""
        with self._lock:
            return len(self._sent.get(replica, ()))

    def backlog_s(self, replica: R, now_s: float) -> float:
        """What is left of the work sent to `replica`, as expected: the first of it is at work."""
        with self._lock:
            work = list(self._sent.get(replica, {}).values())
            if not work:
                return 0.0
            begun_s = max(work[0].sent_s, self._ended_s.get(replica, 0.0))
            first_s = max(work[0].expected_s - (now_s - begun_s), 0.0)
            return first_s + sum(one.expected_s for one in work[1:])

    def keep(self, replicas: Collection[R]) -> None:
        """Forget all others: they are gone, and so are the requests that they had."""
        with self._lock:
            for replica in [one for one in self._sent if one not in replicas]:
                for id in list(self._sent[replica]):
                    self._remove(id)
                del self._sent[replica]
                self._ended_s.pop(replica, None)

    def _remove(self, id: str) -> None:
        replica = self._replica.pop(id, None)
        if replica is not None:
            self._sent[replica].pop(id, None)
