"""Dispatch requests at simulated nodes by the decisions of nodes (`route/choice/request_progress.py`)."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, final

from pliant.route.choice.choose_endpoint import Choice
from pliant.route.choice.request_progress import (
    LocalAnswer,
    barred_hedges,
    is_final,
    may_forward,
    plan_hedges,
)
from pliant.route.curve_advert import Trail
from research.fleet_choice import FleetChoice
from research.fleet_node import Answer, FleetNode, ForwardedRequest, Job, Machine, Request
from research.virtual_clock import VirtualClock


class FleetWork(Protocol):
    """Starts what is decided: jobs at machines, and requests to upstreams."""

    def admit(self, machine: Machine, asked: Request, then: Callable[[Answer | None], None]) -> Job | None:
        """Queue a job, whose end calls `then` (None: refused in its turn); None if it is refused at once."""

    def send_away(self, asked: Request, choice: Choice) -> ForwardedRequest:
        """Send a request upstream; its end calls `FleetDispatch.end` or `fail`."""

    def overdue(self, away: ForwardedRequest, late_s: float) -> None:
        """End a request at its upstream, whose answer is `late_s` later than expected and not needed now."""

    def wake(self, node: FleetNode) -> None:
        """Schedule the due tasks of a node's router."""


@dataclass(frozen=True, slots=True)
class _Watch:
    """A local answer in progress, and the next steps about it."""

    asked: Request
    machine: Machine
    job: Job
    answer: LocalAnswer
    steps: Iterator[float | Choice]


@final
class FleetDispatch:
    """Requests at all nodes; `n_hedged` counts answers that were started beside others."""

    def __init__(self, clock: VirtualClock, choice: FleetChoice, work: FleetWork) -> None:
        self._clock, self._choice, self._work = clock, choice, work
        self.n_hedged = 0

    def dispatch(self, asked: Request) -> None:
        """Start the best endpoint; if it fails, the next best. The request ends if there is none."""
        node = asked.node
        choice = self._choice.choose(asked, asked.failed)
        if choice is None or is_final(choice, asked.refused):
            self.end(asked, None)
        elif choice.target not in node.machines:
            self._send_away(asked, choice)
        else:
            machine = node.machines[choice.target]
            job = self._begin_here(asked, choice)
            if job is not None and not node.is_alone:
                self._watch(asked, choice, machine, job)
        self._work.wake(node)

    def end(self, asked: Request, answer: Answer | None) -> None:
        """Reply, unless the request has ended."""
        if not asked.is_over:
            asked.is_over = True
            asked.reply(asked, answer)

    def fail(self, away: ForwardedRequest) -> None:
        """Without an answer from upstream, wait for the hedge started here, or try the next best endpoint."""
        away.is_lost = True
        asked = away.asked
        if not (away.hedged or asked.is_over):
            asked.failed = (*asked.failed, away.target)
            self._retry(asked)

    def _retry(self, asked: Request) -> None:
        if asked.is_over:
            return
        if asked.is_dropped:
            self.end(asked, None)
        elif asked.second_failed is not None:
            asked.second_failed()
        else:
            if not may_forward(asked.failed, asked.node.machines):
                asked.trail = Trail(asked.trail.path, 0)
            self.dispatch(asked)

    def _begin_here(self, asked: Request, choice: Choice) -> Job | None:
        target = choice.target

        def then(answer: Answer | None) -> None:
            if answer is not None:
                self.end(asked, answer)
                return
            asked.failed, asked.refused = (*asked.failed, target), (*asked.refused, target)
            self._retry(asked)

        asked.most_s = choice.option.most_s
        return self._work.admit(asked.node.machines[target], asked, then)

    # -- a second endpoint beside one of this node

    def _watch(self, asked: Request, choice: Choice, machine: Machine, job: Job) -> None:
        answer = LocalAnswer(
            choice,
            asked.n,
            lambda: self._clock.now_s,
            lambda: machine.begun_s if machine.running is job else None,
            asked.terms_at,
            partial(self._choice.choose, asked),
            lambda: asked.failed,
        )
        steps = plan_hedges(answer, lambda: self._choice.plan_hedge(asked, choice))
        self._go_on(_Watch(asked, machine, job, answer, steps))

    def _go_on(self, watch: _Watch) -> None:
        """Take the next step, while the job waits or runs."""
        asked, machine, job = watch.asked, watch.machine, watch.job
        if asked.is_over or asked.is_dropped or not (machine.running is job or job in machine.jobs):
            return
        step = next(watch.steps, None)
        if isinstance(step, Choice):
            self._begin_second(watch, step)
        elif step is not None:
            self._clock.after(step, self._go_on, watch)

    def _begin_second(self, watch: _Watch, choice: Choice) -> None:
        """Start another endpoint; a job that waits leaves its queue."""
        asked, barred = watch.asked, barred_hedges(watch.answer)
        if watch.machine.running is watch.job:
            asked.second_failed = partial(self._go_on, watch)
        else:
            watch.machine.jobs.remove(watch.job)
            watch.machine.end(watch.job)
        self.n_hedged += 1
        asked.is_hedged = True
        if choice.target in asked.node.machines:
            self._begin_here(asked, choice)
        else:
            self._send_away(asked, choice, barred)
        self._work.wake(asked.node)

    # -- a second endpoint beside an upstream

    def _send_away(self, asked: Request, choice: Choice, barred: Iterable[Collection[str]] = ((),)) -> None:
        planned = self._choice.plan_hedge(asked, choice, barred)
        away = self._work.send_away(asked, choice)
        if planned is not None:
            self._clock.after(planned.after_s, self._hedge, away, planned.choice)

    def _hedge(self, away: ForwardedRequest, choice: Choice) -> None:
        """Start a hedge here; the first of the two answers counts."""
        asked, target = away.asked, choice.target
        if away.is_over or asked.is_over or away.life != asked.node.n_starts:
            return
        self.n_hedged += 1
        asked.is_hedged = True
        away.hedged = True

        def then(answer: Answer | None) -> None:
            if asked.is_over:
                return
            if answer is None:
                away.hedged = False
                asked.failed, asked.refused = (*asked.failed, target), (*asked.refused, target)
                if away.is_lost:
                    self.fail(away)
                return
            if not away.is_over:
                self._work.overdue(away, self._clock.now_s - away.entered_s - away.expected_s)
            self.end(asked, answer)

        asked.most_s = choice.option.most_s
        asked.node.offer(self._clock.now_s)
        self._work.admit(asked.node.machines[target], asked, then)
        self._work.wake(asked.node)
