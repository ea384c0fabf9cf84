"""Cache the plans of one session, and choose the next one by the times of the latest answers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

import numpy as np

from pliant.ir.cost import Span
from pliant.ir.dilation import Dilation
from pliant.ir.program import Program
from pliant.plan.plan import NO_TARGET_S, Plan
from pliant.plan.submodel.reserve import ANTICIPATED_DILATIONS
from pliant.run.submodel.pipeline import Pipeline
from pliant.run.submodel.plans.device_drift import DeviceDrift, TargetLimits
from pliant.run.submodel.plans.memory_split import MemoryOverhead
from pliant.run.submodel.plans.submodel_planner import SessionOptions, SubmodelPlanner

_MOST_STANDBY = 40
"""The number of answers after which a standby plan is replaced by the wanted plan in any case."""

_MOST_TARGETS = 64
"""The number of lengths and targets of single calls whose plans are cached; a caller may give every call the
rest of its own deadline.
"""

_OUT_OF_REACH = (
    "the target is out of reach: by the latest answers more than 5 % are interrupted for longer than the "
    "smallest submodel leaves of it"
)


@dataclass(frozen=True, slots=True)
class PlanKey:
    """The key of a plan: a profiled length, a target, and the dilation that it allows for."""

    length: int
    target_s: float
    dilation: Dilation = Dilation()  # noqa: RUF009 - frozen


class WeightBinder(Protocol):
    """The weights in memory, to which programs are bound; see `WeightMemory`."""

    def planes(self) -> np.ndarray: ...
    def bind(self, program: Program, n_slots: int, working_bytes: int) -> Pipeline: ...


@dataclass(frozen=True, slots=True, eq=False)
class BoundPlan:
    """A plan, its pipeline, and a cache of its predicted times by number of rows."""

    plan: Plan
    pipeline: Pipeline
    forecasts: dict[int, tuple[float, tuple[Span, ...]]] = field(default_factory=dict)


@final
class PlanCache:
    """Plans by key, made on demand, bound to the weights in memory, and cached.

    Of targets other than that of `terms`, the least recently used are dropped, unless they are for the device
    as profiled: service levels ask for these, and are few.
    They are made under `terms`; `overhead` is the memory that the session needs besides weights. Without
    `adapts`, and for answers without a target, every plan is for the device as profiled. `fixed` is a plan
    used for every key.
    """

    def __init__(
        self,
        planner: SubmodelPlanner,
        weights: WeightBinder,
        terms: SessionOptions,
        overhead: MemoryOverhead,
        *,
        fixed: Plan | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.terms, self.overhead = terms, overhead
        self.drift = DeviceDrift(planner.profile)
        self.adapts = terms.adapts and fixed is None
        self._planner, self._weights, self._fixed, self._clock = planner, weights, fixed, clock
        self._made: dict[PlanKey, BoundPlan] = {}
        self._recent: dict[tuple[int, float], None] = {}
        self._least_s: dict[int, float] = {}
        self._wanted: PlanKey | None = None
        self._planning_s, self._n_standby = 0.0, 0

    def renew(self, terms: SessionOptions, overhead: MemoryOverhead, plan: Plan) -> None:
        """Use new terms from now on; `plan` is the plan for inputs of `terms.length`."""
        self.terms, self.overhead = terms, overhead
        key = PlanKey(self._planner.bucket(terms.length), terms.target_s)
        self.clear({key: self._bound(plan)})

    def clear(self, first: Mapping[PlanKey, BoundPlan] | None = None) -> Mapping[PlanKey, BoundPlan]:
        """Drop all plans except `first`, after the weights in memory changed; returns the former plans.

        Observed times are kept.
        """
        before, self._made = self._made, dict(first or {})
        self._least_s.clear()
        return before

    def get(self, length: int, target_s: float, *, as_profiled: bool = False) -> BoundPlan:
        """The plan for inputs of a profiled `length`: the wanted plan, or a standby for it.

        With `as_profiled` it is the plan for the device as profiled.
        """
        if as_profiled:
            return self._made.get(PlanKey(length, target_s)) or self._plan(PlanKey(length, target_s))
        if target_s != self.terms.target_s:
            self._drop_but(length, target_s)
        key = self._key(length, target_s)
        return find_standby(self._made, key) or self._plan(key)

    def plan_ahead(self, length: int, target_s: float) -> None:
        """Make plans for a slower machine now, so that they need not be made under load."""
        for dilation in ANTICIPATED_DILATIONS if self._adapts_to(target_s) else ():
            key = replace(self._key(length, target_s), dilation=dilation)
            if not (find_standby(self._made, key) or self._plan(key)).plan.meets_target:
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
        """Record that `used` answered `n_tokens` in `seconds`; make the plan wanted next.

        `waited_s` of that time the call waited for other threads; it is not attributed to the plan. Planning
        takes milliseconds, which add to this answer's time. So a standby is used until an answer leaves time
        for planning, or is late anyway, or the standby has served many answers.
        """
        if not self.adapts:
            return
        bound_s = used.plan.latency_p95_s / used.plan.dilation.compute
        limits = self._limits(length, target_s)
        self.drift.observe(used.pipeline.program, spans, n_tokens, seconds - waited_s, limits, bound_s)
        key = self._key(length, target_s)
        is_lasting, self._wanted = key == self._wanted, key
        if not is_lasting or key in self._made:
            return
        self._n_standby += 1
        left_s = target_s - seconds
        if left_s < 0 or left_s > 2 * self._planning_s or self._n_standby > _MOST_STANDBY:
            self._plan(key)

    def is_within_reach(self, used: BoundPlan, length: int, target_s: float) -> bool:
        """Whether `used` is expected to meet the target for 95 % of answers, by recent observations."""
        is_lost = self.adapts and self.drift.is_lost(self._limits(length, target_s).max_dilation)
        return used.plan.meets_target and not is_lost

    def explain(self, used: BoundPlan, length: int, target_s: float) -> Plan:
        """The plan of `used`, with a reason added if recently no plan can meet its target."""
        if self.is_within_reach(used, length, target_s) or not used.plan.meets_target:
            return used.plan
        return replace(used.plan, meets_target=False, reasons=(_OUT_OF_REACH, *used.plan.reasons))

    def _drop_but(self, length: int, target_s: float) -> None:
        """Count a use of these plans, and drop the least recently used ones if there are too many."""
        self._recent.pop((length, target_s), None)
        self._recent[length, target_s] = None
        if len(self._recent) > _MOST_TARGETS:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            self._made = {key: one for key, one in self._made.items() if (key.length, key.target_s) != oldest}

    def _key(self, length: int, target_s: float) -> PlanKey:
        if not self._adapts_to(target_s):
            return PlanKey(length, target_s)
        return PlanKey(length, target_s, self.drift.dilation(self._limits(length, target_s).max_dilation))

    def _adapts_to(self, target_s: float) -> bool:
        """Whether plans follow the device's pace: without a target, a slower one changes no plan."""
        return self.adapts and target_s < NO_TARGET_S

    def _limits(self, length: int, target_s: float) -> TargetLimits:
        if length not in self._least_s:
            self._least_s[length] = self._planner.least_s(self.terms, length, self._weights.planes())
        limit_s = target_s * (1 - self.terms.margin)
        return TargetLimits(limit_s, max(1.0, limit_s / self._least_s[length]))

    def _plan(self, key: PlanKey) -> BoundPlan:
        start = self._clock()
        plan = self._fixed or self._planner.plan(
            replace(self.terms, target_s=key.target_s),
            key.length,
            held=self._weights.planes(),
            arena_bytes=self.overhead.arena_bytes,
            fixed_bytes=self.overhead.fixed_bytes,
            dilation=key.dilation,
        )
        self._made[key] = self._bound(plan)
        self._planning_s = max(self._clock() - start, self._planning_s / 2)
        self._n_standby = 0
        return self._made[key]

    def _bound(self, plan: Plan) -> BoundPlan:
        pipeline = self._weights.bind(plan.program, plan.n_slots, plan.memory.working_bytes)
        return BoundPlan(plan, pipeline)


def find_standby(made: Mapping[PlanKey, BoundPlan], wanted: PlanKey) -> BoundPlan | None:
    """The plan for `wanted`, or the best standby for it; None if a plan must be made.

    A plan that meets its target under a larger dilation meets it under a smaller one. If no plan met the
    target under a smaller dilation, none does under a larger one, and the smallest submodel planned then
    still applies.
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
