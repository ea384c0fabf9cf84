"""Use another endpoint if a job's start or its answer is late, as in serve/answers/dispatch.py."""

from collections.abc import Callable
from functools import partial
from typing import final

from pliant.route.choice.choose_endpoint import Choice
from pliant.route.choice.hedge import Hedge, spare_s
from research.fleet_node import Job, Machine, Request
from research.virtual_clock import VirtualClock

_LATE_TURN, _LATE_S = 1.05, 0.01


@final
class FleetHedging:
    """Watches for late jobs; `choose` returns the next best other endpoint, `begin` starts an answer
    there.
    """

    def __init__(
        self,
        clock: VirtualClock,
        choose: Callable[[Request, str], Choice | None],
        begin: Callable[[Request, Choice], object],
    ) -> None:
        self._clock, self._choose, self._begin = clock, choose, begin
        self.n_begun = 0

    def watch(self, machine: Machine, job: Job, choice: Choice, planned: Hedge | None) -> None:
        """`job` was admitted at `machine` by `choice`; `planned` is a hedge to start in any case, with its
        time.
        """
        if planned is None:
            self._watch_start(machine, job, choice)
            return
        failed = partial(self._watch_start, machine, job, choice)
        self._clock.after(planned.after_s, self._begin_elsewhere, machine, job, planned.choice, failed)

    def _watch_start(self, machine: Machine, job: Job, choice: Choice) -> None:
        level, n = choice.option.level, job.n
        wait_s, bound_s = max(choice.seconds - level.curve.at(n), 0.0), level.bound_curve.at(n) + _LATE_S
        self._clock.after(_LATE_TURN * wait_s + _LATE_S, self._check_start, machine, job, choice, bound_s)

    def _check_start(self, machine: Machine, job: Job, choice: Choice, bound_s: float) -> None:
        asked = job.asked
        assert asked is not None
        if job in machine.jobs and not (asked.is_over or asked.is_dropped):
            asked.node.offer(self._clock.now_s)
            other = self._choose(asked, machine.spec.name)
            left_s = 0.0 if other is None else spare_s(choice, other, asked.terms_at(self._clock.now_s))
            if left_s > 0.0:
                self._clock.after(left_s, self._hedge_if_waiting, machine, job, bound_s)
                return
        self._hedge_if_waiting(machine, job, bound_s)

    def _hedge_if_waiting(self, machine: Machine, job: Job, bound_s: float) -> None:
        if job in machine.jobs and self._check_end(machine, job):
            return
        now_s = self._clock.now_s
        begun_s = machine.begun_s if machine.running is job else now_s
        self._clock.at(max(begun_s + bound_s, now_s), self._check_end, machine, job)

    def _check_end(self, machine: Machine, job: Job) -> bool:
        """Start the next best endpoint, and if it fails the one after it."""
        return self._begin_elsewhere(machine, job, None, lambda: self._check_end(machine, job))

    def _begin_elsewhere(
        self, machine: Machine, job: Job, choice: Choice | None, failed: Callable[[], object]
    ) -> bool:
        """Start another endpoint; returns whether one was started. A waiting job then leaves the queue.

        `failed` is called if that endpoint fails while the job still runs.
        """
        asked, here = job.asked, machine.spec.name
        assert asked is not None
        is_waiting = job in machine.jobs
        if asked.is_over or asked.is_dropped or not (is_waiting or machine.running is job):
            return False
        asked.node.offer(self._clock.now_s)
        choice = choice or self._choose(asked, here)
        if choice is None or choice.option.excluded or choice.target == here:
            return False
        if is_waiting:
            machine.jobs.remove(job)
            machine.end(job)
        else:
            asked.second_failed = failed
        self.n_begun += 1
        self._begin(asked, choice)
        return True
