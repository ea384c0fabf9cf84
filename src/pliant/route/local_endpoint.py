"""One endpoint of this device as its router knows it: levels, queue, and when to probe it."""

from collections.abc import Callable, Mapping, Sequence
from typing import final

from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.times.fit import LocalTimes
from pliant.ir.times.timing import is_hopeless
from pliant.route.choice.choose_endpoint import Candidate
from pliant.route.choice.crowding import Dependents
from pliant.route.choice.energy import local_candidate
from pliant.route.choice.terms import Terms
from pliant.route.probes import Probes
from pliant.route.router_settings import RouterSettings
from pliant.route.upstream.upstream_queue import RecentAverage

_UNKNOWN = (ServiceLevel(Curve(((0, 0.0),))),)
"""An endpoint of which no time is known is tried first."""
_FEW = 8.0
_AVERAGED = 16.0
"""Answers whose joules count."""
_SHIFT = 1.25
"""An answer that was so many times quicker than expected may mean that the endpoint has recovered."""


@final
class LocalEndpoint:
    """Its levels are those that it offers; before it offers any, one whose times are fitted to its answers.

    `prior` is what is known before the first answer. While it computes it draws `watts`, the settings' power
    unless given, until answers say what they took.
    """

    def __init__(
        self, name: str, settings: RouterSettings, prior: Curve | None, watts: float | None = None
    ) -> None:
        self.name = name
        self._settings = settings
        self._times = LocalTimes(settings.fit, settings.max_n, prior)
        self._probes = Probes(settings.probe_after_s, prior)
        self._offered: tuple[ServiceLevel, ...] | None = None
        self._is_quicker = False
        self._last_n: int | None = None
        self._way: Candidate | None = None
        self.wait_s = 0.0
        self._usual_wait = RecentAverage(settings.wait_memory_s)
        own_W = 0.0 if settings.power is None else settings.power.compute_W
        self._watts = own_W if watts is None else watts
        self._work_j = self._work_s = 0.0
        self.dependents = Dependents()

    @property
    def curve(self) -> Curve | None:
        """T_l(n) of the most accurate answer, without waiting; None before anything is known."""
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
            if not self._settings.is_bounded:
                levels = tuple(level.unbounded for level in levels)
            self._way = local_candidate(levels, 0.0, self._watts, self.name)
        return self._way

    @property
    def candidate(self) -> Candidate:
        """This endpoint for an input that comes now."""
        crowding = self.dependents.crowding
        if not self.wait_s and crowding is None:
            return self.way
        return local_candidate(self.way.levels, self.wait_s, self._watts, self.name, crowding)

    def offer(self, levels: tuple[ServiceLevel, ...]) -> bool:
        """It can give `levels` now, worst first; whether these are others than before."""
        if levels is self._offered:
            return False
        self._offered, self._way = levels, None
        if self._last_n is not None:
            least_s = None if self._is_in_doubt else self._least_s(self._last_n)
            self._probes.offered(levels[-1].curve, self._last_n, least_s)
        return True

    def answered(
        self, n: int, seconds: float, last_n: int, now_s: float, joules: float | None = None
    ) -> bool:
        """It answered an input of length n in `seconds` of work; whether its levels are others now.

        Where that took `joules`, the power of the latest answers counts for the next.
        """
        if joules is not None and seconds > 0.0:
            self._work_j += joules - self._work_j / _AVERAGED
            self._work_s += seconds - self._work_s / _AVERAGED
            self._watts, self._way = self._work_j / self._work_s, None
        self._last_n = last_n
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
        self._probes.answered(self.curve, self._is_in_doubt, known_n, now_s, self._least_s(last_n))
        return is_new

    def waits(self, wait_s: float, now_s: float) -> bool:
        """An input that came now would wait `wait_s`; whether predecessors may have to be told."""
        if wait_s != self.wait_s:
            self._usual_wait.set(wait_s, now_s)
            self.wait_s = wait_s
            return True
        return abs(self._usual_wait.at(now_s) - wait_s) > self._settings.threshold_s

    def usual_wait_s(self, now_s: float) -> float:
        """What inputs wait on average lately."""
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
        """The length to try now; 0 for none. `others_s` is the least seconds elsewhere by length.

        `n_inputs` came to the router until now, and it `is_awaited` by nodes below: an endpoint that nobody
        asks for is seldom probed.
        """
        least_s, doubt = self._least_s(last_n), self._is_in_doubt
        return self._probes.length(
            self.curve, doubt, last_n, others_s, now_s, n_inputs, least_s, is_awaited=is_awaited
        )

    def _least_s(self, n: int) -> float | None:
        """What its quickest level takes; None before it offers any."""
        return None if self._offered is None else self._offered[0].curve.at(n)

    @property
    def _is_in_doubt(self) -> bool:
        return self._times.is_in_doubt if self._offered is None else self._is_quicker


def note_dependent(
    n: int, here: Mapping[str, LocalEndpoint], above: Sequence[Candidate], terms: Terms
) -> None:
    """A request came: where all but one endpoint, of `here`, are hopeless for it, it depends on that one.

    Endpoints here count as if they were idle, what is `above` with its queue, as far as that is known. One
    that may wait for longer than an answer takes does not count: no job makes it late.
    """
    if terms.deadline_s is None:
        return
    able = []
    for c in (*(endpoint.way for endpoint in here.values()), *above):
        quickest = next((level for level in c.levels if level.reaches(terms.accuracy_floor or 0.0)), None)
        if quickest is not None:
            way_s = c.fixed_s + c.per_item_s * n
            seconds = way_s + quickest.curve.at(n)
            bound_s = max(seconds, way_s * c.way_bound + quickest.bound_curve.at(n))
            if not is_hopeless(seconds, bound_s, terms.deadline_s):
                able.append((c.name, seconds))
                if len(able) > 1:
                    return
    if able and able[0][0] in here:
        name, seconds = able[0]
        endpoint, slack_s = here[name], max(terms.deadline_s - seconds, 0.0)
        if slack_s < _FEW * endpoint.way.best.curve.at(n):
            endpoint.dependents.add(slack_s, is_queued=endpoint.wait_s > 0.0)
