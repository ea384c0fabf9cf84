"""The cost of a job to other requests: recent ones that only its endpoint can answer in time."""

from dataclasses import dataclass
from math import exp
from typing import final

_MEMORY_S = 5.0
"""The weight of a request falls to 1 / e in this time."""
_AVERAGED = 8.0
"""Number of requests in the average slack."""
_FEWEST_PER_S, _FEWEST_QUEUED = 0.05, 0.5
"""Lower rates, or fewer recent requests that found the endpoint busy, are ignored."""


@dataclass(frozen=True, slots=True)
class Crowding:
    """`per_s` requests a second depend on an endpoint; on average they may wait `slack_s` and be in time."""

    per_s: float
    slack_s: float

    def expected_late(self, wait_s: float, work_s: float) -> float:
        """Return how many of them a job of `work_s` seconds makes late, behind a queue of `wait_s`."""
        before_s = max(wait_s - self.slack_s, 0.0)
        return self.per_s * (max(wait_s + work_s - self.slack_s, 0.0) - before_s)


@final
class Dependents:
    """The rate (which decays with `_MEMORY_S`) and average slack of requests that depend on one endpoint.

    They count only while some find the endpoint busy: requests of a single client, which sends the next one
    after an answer, are not delayed.
    """

    def __init__(self) -> None:
        self._per_s = self._queued = self._slack_s = 0.0
        self._at_s = float("-inf")

    def pass_time(self, now_s: float) -> None:
        """Advance the clock to `now_s` (monotonic seconds)."""
        if self._per_s:
            left = exp((self._at_s - now_s) / _MEMORY_S)
            self._per_s, self._queued = self._per_s * left, self._queued * left
        self._at_s = now_s

    def add(self, slack_s: float, *, is_queued: bool) -> None:
        """Record a request that may wait for `slack_s`; `is_queued` if the endpoint is busy."""
        weight = max(1.0 / _AVERAGED, 1.0 / (1.0 + self._per_s * _MEMORY_S))  # decayed ones weigh nothing
        self._slack_s += (slack_s - self._slack_s) * weight
        self._per_s += 1.0 / _MEMORY_S
        self._queued += is_queued

    @property
    def crowding(self) -> Crowding | None:
        """The crowding at the last `pass_time`; None if hardly any request depends on the endpoint."""
        is_crowded = self._per_s > _FEWEST_PER_S and self._queued > _FEWEST_QUEUED
        return Crowding(self._per_s, self._slack_s) if is_crowded else None
