"""Track how much slower than profiled a session computes and reads, from its latest answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from pliant.ir.cost import TOKENISE, Cost, DeviceProfile, Span, SpanState, cost_table
from pliant.ir.dilation import Dilation
from pliant.ir.program import Compute, Load, Program, Step
from pliant.ir.times.bounds import AdaptiveBound
from pliant.ir.times.timing import Timing
from pliant.plan.submodel.reserve import round_dilation

_SHORT = 0.1
_KEPT = 0.96
"""The fraction of answers in time that plans aim for, so that 95 of any 100 answers are in time, not only on
average.
"""


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Seconds of one answer: on the compute lane without its waits for loads, on the IO lane all loads."""

    compute_s: float
    reads_s: float


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """A target, and the largest dilation under which a plan can meet it."""

    target_s: float
    max_dilation: float


@final
class DeviceDrift:
    """The recent slowdown of one session against its device profile.

    One value for all input lengths: another job slows short and long inputs equally, so every answer is
    evidence for all lengths. Base planes that arrive late and delay an answer count as slow compute.
    """

    def __init__(self, profile: DeviceProfile) -> None:
        self.bound = AdaptiveBound(_KEPT)
        self.compute, self.reads = AdaptiveBound(), AdaptiveBound()
        self._factor, self._reads = 1.0, 1.0
        self._profile = profile
        self._costs: dict[int, Cost] = {}

    def observe(
        self,
        program: Program,
        spans: Sequence[Span],
        n_tokens: int,
        seconds: float,
        limits: TargetLimits,
        bound_s: float,
    ) -> None:
        """Record an answer: `program` answered an input of `n_tokens` in `seconds`; the profile's bound is
        `bound_s`.
        """
        steps, done = program.steps, _finished(program.steps, spans)
        took = lane_times(steps, spans, seconds)
        bound = _predicted(steps, done, self._costs_of(n_tokens))
        late_s = took.compute_s - bound.compute_s
        if late_s < 0:  # a plan's whole time is scaled, including its waits for reads
            late_s *= bound_s / bound.compute_s
        if seconds > limits.target_s:  # whatever the cause, reads included
            late_s = max(late_s, seconds - bound_s)
        self.bound.observe(
            Timing(bound_s, bound_s), max(0.0, bound_s + late_s), limits.target_s, limits.max_dilation
        )
        _observe(self.compute, bound.compute_s, took.compute_s, limits)
        _observe(self.reads, bound.reads_s, took.reads_s, limits)
        self._factor = round_dilation(self.bound.factor(limits.max_dilation), self._factor)
        self._reads = round_dilation(self.reads.pace / self.compute.pace, self._reads)

    def dilation(self, max_dilation: float) -> Dilation:
        """The dilation that plans must allow for, in coarse steps, at most `max_dilation`."""
        factor = min(self._factor, max_dilation)
        return Dilation(factor, factor * self._reads)

    def is_lost(self, max_dilation: float) -> bool:
        """Whether more than 5 % of the answers are slowed by more than a dilation of `max_dilation`."""
        return self.bound.factor() > max_dilation

    def _costs_of(self, n_tokens: int) -> Cost:
        n = min(n_tokens, self._profile.lengths[-1])
        if n not in self._costs:
            self._costs[n] = cost_table(self._profile, n, "p95")
        return self._costs[n]


def _observe(lane: AdaptiveBound, bound_s: float, took_s: float, limits: TargetLimits) -> None:
    # Thread wake-ups alone make short work slow, so a tenth of the target is added to both times.
    some_s = _SHORT * limits.target_s
    lane.observe(Timing(some_s + bound_s, some_s + bound_s), some_s + took_s)


def lane_times(steps: Sequence[Step], spans: Sequence[Span], seconds: float) -> LaneTimes:
    """Divide the `seconds` of one answer into compute and IO time, by its measured spans.

    A layer can start when its base planes have arrived and either its refinements have too or its latest
    start has passed; waits until then are excluded. All other time counts as compute: the time between steps,
    late wake-ups, and base planes that arrive after the latest start. A load is timed from when its lane and
    its buffer were free, so a load that began late counts as slow.
    """
    end_s = [span.end_s for span in spans]
    waits_s = 0.0
    cpu = [(steps[i], span) for i, span in enumerate(spans) if span.lane == "cpu"]
    for (_, before), (step, span) in pairwise(cpu):
        ready_s = max((end_s[j] for j in (*step.after, *step.prefer)), default=0.0)
        if step.latest_start_s is not None:
            ready_s = min(ready_s, step.latest_start_s)
        waits_s += max(0.0, min(ready_s, span.start_s) - before.end_s)
    reads_s, free_s = 0.0, 0.0
    for i in _finished(steps, spans):
        if isinstance(steps[i].work, Load):
            ready_s = max((end_s[j] for j in steps[i].after), default=0.0)
            reads_s += max(0.0, end_s[i] - max(free_s, ready_s))
            free_s = end_s[i]
    return LaneTimes(max(0.0, seconds - waits_s), reads_s)


def _finished(steps: Sequence[Step], spans: Sequence[Span]) -> tuple[int, ...]:
    """The numbers of the steps that ran to their end."""
    return tuple(i for i in range(len(steps)) if spans[i].state is SpanState.RAN)


def _predicted(steps: Sequence[Step], done: Sequence[int], costs: Cost) -> LaneTimes:
    """The times that `costs` predict for the steps that ran, as the planner counts them."""
    loads = [work for i in done if isinstance(work := steps[i].work, Load)]
    compute_s = costs.seconds(TOKENISE)
    for i in done:
        work = steps[i].work
        if isinstance(work, Compute):
            busy = ("io",) if loads else ()
            compute_s += costs.seconds(work, busy)
    reads_s = sum((costs.seconds(load, ("cpu",)) for load in loads), 0.0)
    return LaneTimes(compute_s, reads_s)
