"""The plans of one session, and which of them answers next, by the times of the latest answers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

import numpy as np

from pliant.ir.cost import Span
from pliant.ir.dilation import Dilation
from pliant.ir.program import Program
from pliant.plan.result import Plan
from pliant.plan.submodel.reserve import AHEAD
from pliant.run.submodel.drift import DeviceDrift, Room
from pliant.run.submodel.grant import MemoryBesideWeights
from pliant.run.submodel.pipeline import Pipeline
from pliant.run.submodel.planning import Planner, SessionOptions

_MOST_STANDBY = 40
"""Answers of one plan in the place of another before that is made in any case."""

_OUT_OF_REACH = (
    "the target is out of reach: by the latest answers more than 5 % are interrupted for longer than the "
    "smallest submodel leaves of it"
)


@dataclass(frozen=True, slots=True)
class PlanKey:
    """What a plan is made for: a profiled length, a target, and the dilation that it allows for."""

    length: int
    target_s: float
    dilation: Dilation = Dilation()  # noqa: RUF009 - frozen


class Weights(Protocol):
    """What is in memory, and what runs programs over it, as a `WeightMemory`."""

    def planes(self) -> np.ndarray: ...
    def bind(self, program: Program, n_slots: int, working_bytes: int) -> Pipeline: ...


@dataclass(frozen=True, slots=True, eq=False)
class BoundPlan:
    """A plan, what runs it, and what it is predicted to take by number of rows, as far as that was asked."""

    plan: Plan
    pipeline: Pipeline
    forecasts: dict[int, tuple[float, tuple[Span, ...]]] = field(default_factory=dict)


@final
class Plans:
    """Plans by key, made when they are wanted, bound to what is in memory, and kept.

    They are made under `terms`, beside what `beside` says that a session takes in any case. Unless `adapts`,
    every plan is for the device as it was profiled. `fixed` is the plan whatever is wanted.
    """

    def __init__(
        self,
        planner: Planner,
        weights: Weights,
        terms: SessionOptions,
        beside: MemoryBesideWeights,
        *,
        fixed: Plan | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.terms, self.beside = terms, beside
        self.drift = DeviceDrift(planner.profile)
        self.adapts = terms.adapts and fixed is None
        self._planner, self._weights, self._fixed, self._clock = planner, weights, fixed, clock
        self._made: dict[PlanKey, BoundPlan] = {}
        self._least_s: dict[int, float] = {}
        self._wanted: PlanKey | None = None
        self._planning_s, self._n_standby = 0.0, 0

    def renew(self, terms: SessionOptions, beside: MemoryBesideWeights, plan: Plan) -> None:
        """Plan under other terms from now on; `plan` is the one for inputs of `terms.length`."""
        self.terms, self.beside = terms, beside
        key = PlanKey(self._planner.bucket(terms.length), terms.target_s)
        self.clear({key: self._bound(plan)})

    def clear(self, first: Mapping[PlanKey, BoundPlan] | None = None) -> Mapping[PlanKey, BoundPlan]:
        """Forget all plans, as what is in memory has changed, but for `first`; returns what there was.

        What was observed is kept.
        """
        before, self._made = self._made, dict(first or {})
        self._least_s.clear()
        return before

    def get(self, length: int, target_s: float, *, as_profiled: bool = False) -> BoundPlan:
        """The plan for inputs of a profiled `length`: the one wanted now, or one that may stand in for it.

        With `as_profiled` it is the one for the device as it was profiled.
        """
        if as_profiled:
            return self._made.get(PlanKey(length, target_s)) or self._plan(PlanKey(length, target_s))
        key = self._key(length, target_s)
        return standby(self._made, key) or self._plan(key)

    def plan_ahead(self, length: int, target_s: float) -> None:
        """Make plans for a busier machine, so that none need be made on it."""
        for dilation in AHEAD if self.adapts else ():
            key = replace(self._key(length, target_s), dilation=dilation)
            if not (standby(self._made, key) or self._plan(key)).plan.meets_target:
                return

    def observe(
        self,
        used: BoundPlan,
        spans: Sequence[Span],
        n_tokens: int,
        length: int,
        target_s: float,
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
        bound_s = used.plan.latency_p95_s / used.plan.dilation.compute
        room = self._room(length, target_s)
        self.drift.observe(used.pipeline.program, spans, n_tokens, seconds - waited_s, room, bound_s)
        key = self._key(length, target_s)
        is_lasting, self._wanted = key == self._wanted, key
        if not is_lasting or key in self._made:
            return
        self._n_standby += 1
        left_s = target_s - seconds
        if left_s < 0 or left_s > 2 * self._planning_s or self._n_standby > _MOST_STANDBY:
            self._plan(key)

    def is_within_reach(self, used: BoundPlan, length: int, target_s: float) -> bool:
        """Whether `used` is to keep the target for 95 of 100 answers, by what was observed lately."""
        is_lost = self.adapts and self.drift.is_lost(self._room(length, target_s).most)
        return used.plan.meets_target and not is_lost

    def explained(self, used: BoundPlan, length: int, target_s: float) -> Plan:
        """The plan of `used`, saying so where nothing keeps its target lately."""
        if self.is_within_reach(used, length, target_s) or not used.plan.meets_target:
            return used.plan
        return replace(used.plan, meets_target=False, reasons=(_OUT_OF_REACH, *used.plan.reasons))

    def _key(self, length: int, target_s: float) -> PlanKey:
        if not self.adapts:
            return PlanKey(length, target_s)
        return PlanKey(length, target_s, self.drift.dilation(self._room(length, target_s).most))

    def _room(self, length: int, target_s: float) -> Room:
        if length not in self._least_s:
            self._least_s[length] = self._planner.least_s(self.terms, length, self._weights.planes())
        room_s = target_s * (1 - self.terms.margin)
        return Room(room_s, max(1.0, room_s / self._least_s[length]))

    def _plan(self, key: PlanKey) -> BoundPlan:
        start = self._clock()
        plan = self._fixed or self._planner.plan(
            replace(self.terms, target_s=key.target_s),
            key.length,
            held=self._weights.planes(),
            arena_bytes=self.beside.arena_bytes,
            fixed_bytes=self.beside.fixed_bytes,
            dilation=key.dilation,
        )
        self._made[key] = self._bound(plan)
        self._planning_s = max(self._clock() - start, self._planning_s / 2)
        self._n_standby = 0
        return self._made[key]

    def _bound(self, plan: Plan) -> BoundPlan:
        pipeline = self._weights.bind(plan.program, plan.n_slots, plan.memory.working_bytes)
        return BoundPlan(plan, pipeline)


def standby(made: Mapping[PlanKey, BoundPlan], wanted: PlanKey) -> BoundPlan | None:
    """The plan for `wanted`, or the best that keeps the same promise; None where one must be made.

    A plan that meets its target under a greater dilation meets it under less. Where nothing met it under
    less, nothing does under more, and the smallest submodel that was planned then is still it.
    """
    if wanted in made:
        return made[wanted]
    others = [(k.dilation, p) for k, p in made.items() if replace(k, dilation=wanted.dilation) == wanted]
    for dilation, found in others:
        if wanted.dilation.covers(dilation) and not found.plan.meets_target:
            return found
    safe = [p for dilation, p in others if dilation.covers(wanted.dilation) and p.plan.meets_target]
    return max(safe, key=lambda p: _value(p.plan), default=None)


def _value(plan: Plan) -> tuple[float, float]:
    """Expected accuracy where it was measured, then the share of the model's weights that runs."""
    accuracy = plan.expected_accuracy
    return (-1.0 if accuracy is None else accuracy), plan.n * plan.width * plan.fidelity
