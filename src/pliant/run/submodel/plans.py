"""The plans of one session, and which of them answers next, by the times of the latest answers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar, final

from pliant.ir.cost import DeviceProfile, Span
from pliant.ir.program import Program
from pliant.plan.result import Plan
from pliant.plan.submodel.slowdown import AHEAD, Slowdown
from pliant.run.submodel.drift import DeviceDrift, Room

_MOST_STANDBY = 40
"""Answers of one plan in the place of another before that is made in any case."""

_OUT_OF_REACH = (
    "the target is out of reach: by the latest answers more than 5 % are interrupted for longer than the "
    "smallest submodel leaves of it"
)


@dataclass(frozen=True, slots=True)
class PlanKey:
    """What a plan is made for: a profiled length, a target, and the slowdown it allows for."""

    length: int
    latency_s: float
    slowdown: Slowdown = Slowdown()  # noqa: RUF009 - frozen


class BoundPlan(Protocol):
    """A plan and the program that runs it, as a `Pipeline`."""

    @property
    def plan(self) -> Plan: ...
    @property
    def program(self) -> Program: ...


P = TypeVar("P", bound=BoundPlan)


@final
class Plans(Generic[P]):
    """Plans by key, made by `make(key)` when they are wanted and kept.

    `least_s(length)` is what the smallest submodel takes by the profile. `margin` is the share of a target
    that plans keep free. Unless `adapts`, every plan is for the device as it was profiled.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        make: Callable[[PlanKey], P],
        least_s: Callable[[int], float],
        *,
        margin: float,
        adapts: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.drift = DeviceDrift(profile)
        self.adapts = adapts
        self._make, self._least_of, self._margin, self._clock = make, least_s, margin, clock
        self._made: dict[PlanKey, P] = {}
        self._least_s: dict[int, float] = {}
        self._wanted: PlanKey | None = None
        self._planning_s, self._n_standby = 0.0, 0

    def clear(self, first: Mapping[PlanKey, P] | None = None) -> Mapping[PlanKey, P]:
        """Forget all plans, as what is in memory has changed, but for `first`; returns what there was.

        What was observed is kept.
        """
        before, self._made = self._made, dict(first or {})
        self._least_s.clear()
        return before

    def get(self, length: int, latency_s: float, *, as_profiled: bool = False) -> P:
        """The plan for inputs of a profiled `length`: the one wanted now, or one that may stand in for it.

        With `as_profiled` it is the one for the device as it was profiled.
        """
        if as_profiled:
            return self._made.get(PlanKey(length, latency_s)) or self._plan(PlanKey(length, latency_s))
        key = self._key(length, latency_s)
        return standby(self._made, key) or self._plan(key)

    def plan_ahead(self, length: int, latency_s: float) -> None:
        """Make plans for a busier machine, so that none need be made on it."""
        for slowdown in AHEAD if self.adapts else ():
            key = replace(self._key(length, latency_s), slowdown=slowdown)
            if not (standby(self._made, key) or self._plan(key)).plan.meets_target:
                return

    def observe(
        self,
        used: P,
        spans: Sequence[Span],
        n_tokens: int,
        length: int,
        latency_s: float,
        seconds: float,
        waited_s: float = 0.0,
    ) -> None:
        """Learn from an answer of `used` to `n_tokens` that took `seconds`; make the plan wanted next.

        For `waited_s` of them other threads had the session: no plan answers for that. Planning takes
        milliseconds, which count as this answer's. So one plan stands in for another until an answer leaves
        time for it, or is late anyway, or that has lasted for long.
        """
        if not self.adapts:
            return
        bound_s = used.plan.latency_p95_s / used.plan.slowdown.factor
        room = self._room(length, latency_s)
        self.drift.observe(used.program, spans, n_tokens, seconds - waited_s, room, bound_s)
        key = self._key(length, latency_s)
        is_lasting, self._wanted = key == self._wanted, key
        if not is_lasting or key in self._made:
            return
        self._n_standby += 1
        left_s = latency_s - seconds
        if left_s < 0 or left_s > 2 * self._planning_s or self._n_standby > _MOST_STANDBY:
            self._plan(key)

    def is_within_reach(self, used: P, length: int, latency_s: float) -> bool:
        """Whether `used` is to keep the target for 95 of 100 answers, by what was observed lately."""
        is_lost = self.adapts and self.drift.is_lost(self._room(length, latency_s))
        return used.plan.meets_target and not is_lost

    def explained(self, used: P, length: int, latency_s: float) -> Plan:
        """The plan of `used`, saying so where nothing keeps its target lately."""
        if self.is_within_reach(used, length, latency_s) or not used.plan.meets_target:
            return used.plan
        return replace(used.plan, meets_target=False, reasons=(_OUT_OF_REACH, *used.plan.reasons))

    def _key(self, length: int, latency_s: float) -> PlanKey:
        if not self.adapts:
            return PlanKey(length, latency_s)
        return PlanKey(length, latency_s, self.drift.slowdown(self._room(length, latency_s)))

    def _room(self, length: int, latency_s: float) -> Room:
        if length not in self._least_s:
            self._least_s[length] = self._least_of(length)
        return Room(latency_s * (1 - self._margin), self._least_s[length])

    def _plan(self, key: PlanKey) -> P:
        start = self._clock()
        self._made[key] = self._make(key)
        self._planning_s = max(self._clock() - start, self._planning_s / 2)
        self._n_standby = 0
        return self._made[key]


def standby(made: Mapping[PlanKey, P], wanted: PlanKey) -> P | None:
    """The plan for `wanted`, or the best that keeps the same promise; None where one must be made.

    A plan that meets its target under a greater slowdown meets it under less. Where nothing met it under
    less, nothing does under more, and the smallest submodel that was planned then is still it.
    """
    if wanted in made:
        return made[wanted]
    others = [(k.slowdown, p) for k, p in made.items() if replace(k, slowdown=wanted.slowdown) == wanted]
    for slowdown, found in others:
        if wanted.slowdown.covers(slowdown) and not found.plan.meets_target:
            return found
    safe = [p for slowdown, p in others if slowdown.covers(wanted.slowdown) and p.plan.meets_target]
    return max(safe, key=lambda p: _value(p.plan), default=None)


def _value(plan: Plan) -> tuple[float, float]:
    """Expected accuracy where it was measured, then the share of the model's weights that runs."""
    accuracy = plan.expected_accuracy
    return (-1.0 if accuracy is None else accuracy), plan.n * plan.width * plan.fidelity
