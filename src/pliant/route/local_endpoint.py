"""The router's record of one endpoint of this device: levels, queue, and probes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.times.fit import LocalTimes
from pliant.ir.times.timing import is_hopeless
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.crowding import Dependents
from pliant.route.choice.energy import local_candidate
from pliant.route.choice.input_needs import NO_NEEDS, InputNeeds
from pliant.route.choice.request_terms import Terms
from pliant.route.level_bounds import LevelBounds
from pliant.route.probe_schedule import ProbeSchedule
from pliant.route.router_settings import RouterSettings
from pliant.route.upstream.upstream_queue import RecentAverage

_UNKNOWN = (ServiceLevel(Curve(((0, 0.0),))),)
"""An endpoint without known times is tried first."""
_FEW = 8.0
_AVERAGED = 16.0
"""Number of answers in the average of power."""
_SHIFT = 1.25
"""An answer faster than expected by this factor may mean that the endpoint has recovered."""


@final
class LocalEndpoint:
    """Its levels are those that it offers; before that, one whose times are fitted to its answers.

    `prior` is the curve before the first answer. Its power while computing is `watts`, by default the
    settings' power, until answers report their energy.
    """

    def __init__(
        self, name: str, settings: RouterSettings, prior: Curve | None, watts: float | None = None
    ) -> None:
        self.name = name
        self._settings = settings
        self._times = LocalTimes(settings.fit, settings.max_n, prior)
        self._bounds = LevelBounds(settings)
        self._probes = ProbeSchedule(settings.probe_after_s, prior)
        self._offered: tuple[ServiceLevel, ...] | None = None
        self._is_quicker = False
        self._last_n: int | None = None
        self._way: Candidate | None = None
        self.wait_s, self._needs = 0.0, NO_NEEDS
        self._usual_wait = RecentAverage(settings.wait_memory_s)
        own_W = 0.0 if settings.power is None else settings.power.compute_W
        self._watts = own_W if watts is None else watts
        self._work_j = self._work_s = 0.0
        self.dependents = Dependents()

    @property
    def curve(self) -> Curve | None:
        """T_l(n) of the most accurate answer, without queueing; None before it is known."""
        return self._times.curve if self._offered is None else self._offered[-1].curve

    @property
    def probe_at_s(self) -> float:
        return self._probes.at_s

    @property
    def way(self) -> Candidate:
        """This endpoint without its queue."""
        if self._way is None:
            levels = self._offered
            if levels is None:
                curve = self._times.curve
                levels = _UNKNOWN if curve is None else (ServiceLevel(curve),)
            self._way = local_candidate(self._bounds.applied_to(levels), 0.0, self._watts, self.name)
        return self._way

    @property
    def candidate(self) -> Candidate:
        """This endpoint for an input that arrives now."""
        crowding, needs = self.dependents.crowding, self._needs
        if not self.wait_s and crowding is None and needs is NO_NEEDS:
            return self.way
        levels = needs.applied_to(self.way.levels)
        made = local_candidate(levels, self.wait_s, self._watts, self.name, crowding, needs.tail_j)
        return replace(made, compiling_s=needs.compiling_s) if needs.compiling_s else made

    def offer(self, levels: tuple[ServiceLevel, ...]) -> bool:
        """Set the `levels` currently offered, worst first; return whether they changed."""
        if levels is self._offered:
            return False
        self._offered, self._way = levels, None
        if self._last_n is not None:
            n = self._answered_n(self._last_n)
            self._probes.record_curve(levels[-1].curve, n, None if self._is_in_doubt else self._least_s(n))
        return True

    def record_answer(
        self, n: int, seconds: float, last_n: int, now_s: float, joules: float | None = None
    ) -> bool:
        """Record an answer to an input of length n after `seconds` of work; return whether levels changed.

        If its energy apart from exchanges, `joules`, is given, it updates the power of later estimates.
        """
        if joules is not None and seconds > 0.0:
            self._work_j += joules - self._work_j / _AVERAGED
            self._work_s += seconds - self._work_s / _AVERAGED
            self._watts, self._way = self._work_j / self._work_s, None
        self._last_n, last_n = last_n, self._answered_n(last_n)
        is_new = self._offered is None
        if is_new:
            if self._probes.is_overdue(now_s):
                self._times.doubt()
            is_new = self._times.add(n, seconds)
            if is_new:
                self._way = None
        elif self.curve is not None:
            self._is_quicker = seconds * _SHIFT < self.curve.at(n)
        known_n = last_n if is_new or self._offered else None
        self._probes.record_answer(self.curve, self._is_in_doubt, known_n, now_s, self._least_s(last_n))
        return is_new

    def set_wait(self, wait_s: float, now_s: float, needs: InputNeeds = NO_NEEDS) -> bool:
        """Set the current wait of an input, and its `needs`, of which predecessors are not informed.

        Returns whether they may have to be informed of the wait.
        """
        self._needs = needs
        if wait_s != self.wait_s:
            self._usual_wait.set(wait_s, now_s)
            self.wait_s = wait_s
            return True
        return abs(self._usual_wait.at(now_s) - wait_s) > self._settings.threshold_s

    def usual_wait_s(self, now_s: float) -> float:
        """Return the recent average wait of inputs."""
        return self._usual_wait.at(now_s)

    def probe_length(
        self,
        last_n: int,
        others_s: Callable[[int], float],
        now_s: float,
        n_inputs: int = 0,
        *,
        is_awaited: bool = False,
    ) -> int:
        """Return the length to probe now; 0 for none. `others_s` is the least seconds elsewhere by length.

        `n_inputs` have arrived at the router so far, and nodes below it may wait for this endpoint
        (`is_awaited`): an endpoint without demand is seldom probed.
        """
        last_n = self._answered_n(last_n)
        least_s, doubt = self._least_s(last_n), self._is_in_doubt
        return self._probes.next_length(
            self.curve, doubt, last_n, others_s, now_s, n_inputs, least_s, is_awaited=is_awaited
        )

    def _answered_n(self, n: int) -> int:
        """Return n, or the longest input that there is memory for: no longer one shows a recovery."""
        most_n = None if self._offered is None else self._offered[-1].most_n
        return n if most_n is None else min(n, most_n)

    def _least_s(self, n: int) -> float | None:
        """Return the time of its fastest level; None before it offers any."""
        return None if self._offered is None else self._offered[0].curve.at(n)

    @property
    def _is_in_doubt(self) -> bool:
        return self._times.is_in_doubt if self._offered is None else self._is_quicker


def note_dependent(
    n: int, here: Mapping[str, LocalEndpoint], above: Sequence[Candidate], terms: Terms
) -> None:
    """If all but one endpoint, of `here`, are hopeless for a request, record that it depends on that one.

    Endpoints of this device count as idle, those `above` with their known queues. A request that may wait
    longer than _FEW answers take is ignored, because no single job makes it late.
    """
    if terms.deadline_s is None:
        return
    able, floor, deadline_s = [], terms.accuracy_floor or 0.0, terms.deadline_s
    for c in (*[endpoint.way for endpoint in here.values()], *above):
        for quickest in c.levels:
            if quickest.reaches(floor):
                break
        else:
            continue
        way_s = c.fixed_s + c.per_item_s * n
        seconds = way_s + quickest.curve.at(n)
        if seconds > deadline_s:
            bound_s = max(seconds, way_s * c.way_bound + quickest.bound_curve.at(n))
            if is_hopeless(seconds, bound_s, deadline_s):
                continue
        able.append((c.name, seconds))
        if len(able) > 1:
            return
    if able and able[0][0] in here:
        name, seconds = able[0]
        endpoint, slack_s = here[name], max(deadline_s - seconds, 0.0)
        if slack_s < _FEW * endpoint.way.best.curve.at(n):
            endpoint.dependents.add(slack_s, is_queued=endpoint.wait_s > 0.0)
