"""Accuracies that a cluster offers: the whole model's, and those of submodels on its weights (STI 3)."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from statistics import median
from types import MappingProxyType
from typing import final

from pliant.cluster.lead.plan_memory import alternating_bytes
from pliant.cluster.lead.predict import Prediction
from pliant.cluster.watch.adapt import find_overloaded
from pliant.errors import BudgetError, ClusterError, PliantError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import ACCURACY_TOLERANCE, RESOLUTION, Request, ServiceLevel, unreachable_level
from pliant.ir.partition import Partition
from pliant.ir.times.bounded_level import has_moved
from pliant.ir.times.timing import Timing
from pliant.models.encoder.encoder_source import Encoder
from pliant.plan.submodel.mixed_bits_accuracy import MixedBitsAccuracy

_LENGTHS = (8, 32, 128, 512)
"""Lengths whose plans are predicted; times in between are interpolated linearly."""
_NEAR = 4
"""When workers change, lengths up to this multiple of the longest input are planned again."""
_GAIN = 0.1
_FURTHEST = 4.0
"""A level's own correction moves by a tenth of its relative error, and stays within this factor of 1."""
_RETRIED = 0.98
"""Each answer of the whole model brings corrections above 1 this much nearer to 1: a submodel that looked as
slow as the whole model is not chosen, so that no answer of its own would correct that.
"""
_LEAST_S = 1e-6
_PACE = 3.0
"""An answer that took this many times the expected time shows another pace, not a mere delay."""
_N_DELAYS, _N_USUAL = 40, 9
"""Answers whose delays are kept, and the latest whose median counts: as in `AdaptiveBound`."""
_MOST_OFF = 2.0
"""Limit on one answer's correction: the first by a new plan loads weights."""


def submodels(encoder: Encoder, accuracy: MixedBitsAccuracy | None) -> tuple[Encoder, ...]:
    """Return the submodels worth a level, worst first; empty if accuracies were not measured.

    These are the deepest one of the narrowest width, for short deadlines, and the smallest one that is as
    accurate as the whole model within `RESOLUTION`, for all other deadlines. Shallower ones of the narrowest
    width save little beside the overhead of an answer by several devices.
    """
    sizes = {} if accuracy is None else accuracy.sizes
    spec = encoder.spec
    whole = sizes.get((spec.n_layers, spec.n_heads))
    if whole is None:
        return ()
    narrowest = min(m for _, m in sizes)
    narrow = max(n for n, m in sizes if m == narrowest), narrowest
    able = [size for size, one in sizes.items() if one >= whole - RESOLUTION - ACCURACY_TOLERANCE]
    alike = min(able, key=lambda size: (prod(size), -sizes[size]))
    chosen = {size for size in (narrow, alike) if sizes[size] < whole and prod(size) <= prod(alike)}
    return tuple(encoder.submodel(*size) for size in sorted(chosen, key=sizes.__getitem__))


def lengths_to_plan(most: int, longest: float, *, is_open_ended: bool) -> tuple[Sequence[int], Sequence[int]]:
    """Return the lengths of a time curve, and those of them near the longest request, `longest`.

    Requests wait while these are planned, so times at other lengths are scaled from these.
    """
    lengths = [n for n in _LENGTHS if n < most and is_open_ended] + [most]
    return lengths, [n for n in lengths if n <= _NEAR * longest] or lengths[:1]


def times_of(plans: Mapping[int, Prediction], before: Curve, lengths: Sequence[int]) -> Curve:
    """Return seconds by length: as planned; for longer inputs as `before`, scaled to the planned pace."""
    last = max(plans)
    pace = plans[last].seconds / max(before.at(last), _LEAST_S)
    far = ((n, pace * before.at(n)) for n in lengths if n > last)
    return Curve((*((n, solved.seconds) for n, solved in plans.items()), *far))


def times_of_parts(
    whole: Encoder,
    plans: Mapping[int, Prediction],
    parts: Collection[Encoder],
    solve: Callable[[int, Encoder], Prediction],
    prior: Curve,
) -> dict[Encoder, Curve]:
    """Return times of submodels by length.

    They are solved at the lengths of `plans`; for longer inputs, they keep the ratio to `prior` (the whole
    model's times) of the longest planned length. Submodels are left out if no devices may run them, or if
    memory does not suffice beside the whole model and the submodels before.
    """
    found, last = {}, max(plans)
    held = alternating_bytes(whole.spec, [solved.partition for solved in plans.values()])
    for part in parts:
        try:
            own = {n: solve(n, part) for n in plans}
        except (BudgetError, ClusterError):
            continue
        need = held + alternating_bytes(part.spec, [solved.partition for solved in own.values()])
        if not find_overloaded(need, plans[last].topology):
            held = need
            share = own[last].seconds / max(plans[last].seconds, _LEAST_S)
            far = ((n, share * seconds) for n, seconds in prior.points if n > last)
            found[part] = Curve((*((n, solved.seconds) for n, solved in own.items()), *far))
    return found


def accuracy_of(
    source: Encoder, accuracy: MixedBitsAccuracy | None, plans: Collection[Partition]
) -> float | None:
    """Return the lowest accuracy of a (sub)model under the `plans` of the whole one; None if unknown."""
    spec, each = source.spec, list[float]()
    for plan in plans:
        one = plan.resize(plan.tokens, spec.n_heads, spec.ffn if plan.n_columns else 0, spec.n_layers)
        found = None if accuracy is None else accuracy.at([one] * spec.n_layers)
        if found is not None:
            each.append(found)
    return min(each, default=None)


@final
class ClusterLevels:
    """Levels whose times follow the whole model's, each by its predicted ratio to it.

    `whole_s` and `times` are predictions by length, of the whole model and of its submodels, worst first,
    by `plans` of the whole one. `planned` are each level's plans by length, those of the whole model last.
    Levels share observations of the cluster's pace; each learns the error of its own ratio.
    """

    def __init__(
        self,
        whole: Encoder,
        whole_s: Curve,
        times: Mapping[Encoder, Curve] = MappingProxyType({}),
        accuracy: MixedBitsAccuracy | None = None,
        plans: Collection[Partition] = (),
        planned: Sequence[Mapping[int, Prediction]] = (),
    ) -> None:
        self.planned = planned
        self._prior, self._times = whole_s, tuple(times.values())
        self._accuracies = [accuracy_of(source, accuracy, plans) for source in times]
        self.promised = accuracy_of(whole, accuracy, plans)
        """The whole model's accuracy."""
        self.sources = (*times, whole)
        """The encoder of each level."""
        self._own = [1.0] * len(times)
        self._told: tuple[ServiceLevel, tuple[float, ...], tuple[ServiceLevel, ...]] | None = None

    def at(self, whole: ServiceLevel) -> tuple[ServiceLevel, ...]:
        """Return the levels, worst first, given the whole model's level; the same tuple until they change."""
        told = self._told
        if told is not None and told[0] is whole:
            moved = any(has_moved(now, before) for now, before in zip(self._own, told[1], strict=True))
            if not moved:
                return told[2]
        made = [self._level(i, whole) for i in range(len(self._own))]
        self._told = whole, tuple(self._own), (*made, whole)
        return self._told[2]

    def observe(self, i: int, n: int, expected_s: float, seconds: float) -> float:
        """Record that level `i` took `seconds` for length n; return the estimate for the whole model.

        The error relative to `expected_s` corrects this level, because it may exceed the change of the
        cluster's pace. A delay without a change of pace would have been as long for the whole model.
        """
        if i == len(self._own):
            self._own = [min(own, own**_RETRIED) for own in self._own]
            return seconds
        is_delay = expected_s < seconds < _PACE * expected_s
        usual_s = expected_s / self._part(i, n)
        whole_s = usual_s + seconds - expected_s if is_delay else seconds / self._part(i, n)
        if expected_s > 0.0:
            whole_s = min(whole_s, _FURTHEST * usual_s)  # the first answer by a new plan loads weights
            off = min(max(seconds / expected_s, 1.0 / _MOST_OFF), _MOST_OFF)
            self._own[i] = min(max(self._own[i] * off**_GAIN, 1.0 / _FURTHEST), _FURTHEST)
        return whole_s

    def _part(self, i: int, n: float) -> float:
        """Return the level's share of the whole model's time, above 0."""
        whole_s = self._prior.at(n)
        part = self._times[i].at(n) / whole_s if whole_s > 0.0 else 1.0
        return min(max(part * self._own[i], 1e-3), 1.0)

    def _level(self, i: int, whole: ServiceLevel) -> ServiceLevel:
        """A level: the whole model's delay beyond its median is added to the submodel's time unscaled."""
        times = [(n, seconds, seconds * self._part(i, n)) for n, seconds in whole.curve.points]
        bounds = ((n, part_s + whole.bound_curve.at(n) - whole_s) for n, whole_s, part_s in times)
        curve = Curve(tuple((n, part_s) for n, _, part_s in times))
        return ServiceLevel(curve, self._accuracies[i], None if whole.bound is None else Curve(tuple(bounds)))


def levels_by(
    whole: Encoder,
    accuracy: MixedBitsAccuracy | None,
    parts: Collection[Encoder],
    plans: Mapping[int, Prediction],
    solve: Callable[[int, Encoder], Prediction],
    prior: Curve,
) -> ClusterLevels:
    """The whole model's level, by its `plans`, and those of its `parts`, as `times_of_parts` says.

    Codes are for devices short of memory: they have none for a submodel's weights, either.
    """
    used = [solved.partition for solved in plans.values()]
    few = () if any(one.bits for one in used) else parts
    own = defaultdict[Encoder, dict[int, Prediction]](dict)

    def solve_part(n: int, part: Encoder) -> Prediction:
        own[part][n] = solve(n, part)
        return own[part][n]

    times = times_of_parts(whole, plans, few, solve_part, prior)
    return ClusterLevels(whole, prior, times, accuracy, used, (*(own[part] for part in times), plans))


@final
class AnswerDelays:
    """How much longer answers take than their plans predict: planning, hand-overs, and what no plan knows.

    Plans change often. Each would begin with a promise that the one before has broken. A delay counts as a
    ratio or as so many seconds, whichever is less for another plan.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=_N_DELAYS)

    def observe(self, predicted_s: float, seconds: float) -> None:
        """Record an answer; one that took `_PACE` times as long shows another pace of its devices."""
        if 0.0 < seconds < _PACE * predicted_s:
            self._seen.append((predicted_s, seconds))

    def at(self, predicted_s: float) -> Timing:
        """Return what answers take that are predicted to take `predicted_s`."""
        taken = [predicted_s + _delay_s(predicted_s, *one) for one in self._seen]
        if len(taken) < 2:
            return Timing(predicted_s, predicted_s)
        usual_s = max(median(taken[-_N_USUAL:]), predicted_s)
        return Timing(usual_s, max(sorted(taken)[-2], usual_s))

    def over(self, prior: Curve) -> Curve:
        """Return the times of answers that are predicted to take `prior`."""
        return Curve(tuple((n, self.at(seconds).median_s) for n, seconds in prior.points))

    def spread(self, predicted_s: float) -> float:
        """Return what 95 of 100 such answers take at most, relative to the median."""
        found = self.at(predicted_s)
        return found.p95_s / found.median_s if found.median_s > 0.0 else 1.0


def _delay_s(other_s: float, predicted_s: float, seconds: float) -> float:
    """Return the delay of an answer as it counts for a plan of `other_s`."""
    late_s = seconds - predicted_s
    return min(late_s, late_s * other_s / predicted_s) if late_s > 0.0 else late_s * other_s / predicted_s


@final
class Availability:
    """Whether the cluster can answer: `levels` are empty if it can, else the one that says why not.

    After a run that failed, `is_doubted` asks to plan again.
    """

    levels: tuple[ServiceLevel, ...] = ()
    is_doubted = False

    @contextmanager
    def planning(self, *, is_planned: bool) -> Iterator[None]:
        """Follow an attempt to plan; with earlier plans (`is_planned`), a fault of a worker may pass."""
        try:
            yield
        except PliantError as error:
            if not is_planned or not isinstance(error, ClusterError):
                self.levels = (unreachable_level(str(error)),)
            raise
        self.levels, self.is_doubted = (), False

    def check(self, *, is_planned: bool) -> None:
        """Raise BudgetError where there are no plans, since an attempt failed: another one may take long."""
        if (levels := self.levels) and not is_planned:  # read once: another thread may plan at this moment
            raise BudgetError(f"{levels[0].reason}")

    @contextmanager
    def running(self, *, is_known: bool) -> Iterator[None]:
        """Follow a run; if it `is_known` that there is no memory for it, its failure is no news."""
        try:
            yield
        except (BudgetError, ClusterError):
            self.is_doubted |= not is_known
            raise


def pick_level(levels: Sequence[ServiceLevel], request: Request) -> int:
    """Return the index of the level that answers `request`, as `Request` says: the last if none reaches its
    floor.
    """
    n, deadline_s, floor = request.length, request.deadline_s, request.accuracy_floor
    able = [i for i, level in enumerate(levels) if level.reaches(floor or 0.0)] or [len(levels) - 1]
    if deadline_s is None:
        return able[-1] if floor is None else min(able, key=lambda i: levels[i].curve.at(n))
    kept = [i for i in able if levels[i].bound_curve.at(n) <= deadline_s]
    if not kept:
        return min(able, key=lambda i: levels[i].bound_curve.at(n))
    least = levels[kept[-1]].quality - RESOLUTION - ACCURACY_TOLERANCE
    alike = (i for i in reversed(kept) if levels[i].quality >= least)  # equally quick: the most accurate
    return min(alike, key=lambda i: levels[i].curve.at(n))
