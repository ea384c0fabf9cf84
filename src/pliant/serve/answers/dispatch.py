"""Dispatch each request to its best endpoint: this device, the cluster, or an upstream."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, Literal, final

from pliant.errors import BudgetError, ClusterError, DeadlineError, InputError, NodeError, RouteError
from pliant.route.choice.choose_endpoint import LOCAL, Choice
from pliant.route.choice.hedge import Hedge
from pliant.route.choice.request_progress import (
    LocalAnswer,
    barred_hedges,
    choose_local,
    is_final,
    may_forward,
    network_s,
    patience_s,
    plan_hedge,
    plan_hedges,
)
from pliant.route.choice.request_terms import Terms
from pliant.route.curve_advert import CurveAdvert
from pliant.route.node_messages import NodeTime
from pliant.route.router import Router
from pliant.serve.answers.hedged_call import call_hedged, result_of
from pliant.serve.answers.metrics import Metrics
from pliant.serve.answers.routed_request import RoutedAnswer, RoutedRequest, Tries
from pliant.serve.answers.session_endpoint import SessionEndpoint
from pliant.serve.answers.work_item import WorkStart
from pliant.serve.protocol.inference import Signature
from pliant.serve.protocol.pending_request import PendingRequest
from pliant.serve.protocol.replies import check_reply
from pliant.serve.telemetry.request_context import inner_span, record_stages
from pliant.serve.telemetry.tracing import SpanAttribute
from pliant.serve.upstream.upstreams import BLAMES_INPUT, Upstreams

_LOG = logging.getLogger("pliant.serve")
_AnsweredBy = Literal["here", "there", "none"]


@final
class Dispatcher:
    """Call on one event loop. `here` are this device's endpoints by name; `upstreams` are set later."""

    def __init__(
        self,
        router: Router,
        here: dict[str, SessionEndpoint],
        metrics: Metrics,
        signature: Signature,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.router, self.here, self.metrics = router, here, metrics
        self.upstreams: Upstreams | None = None
        self._signature, self._clock = signature, clock
        self._moving = asyncio.Lock()
        """Requests move to others one at a time, so that each sees the queue that the last has joined."""

    def offer(self, pending: PendingRequest | None = None) -> None:
        """Update the router with the state of this device's endpoints, for `pending`."""
        for local in self.here.values():
            local.offer(pending)

    async def look(self) -> None:
        """Let this device's idle endpoints notice devices that joined or left."""
        await asyncio.gather(*[local.watch.look() for local in self.here.values()])

    def make_advert(self, predecessor: str | None) -> CurveAdvert:
        """This node's advert for `predecessor`."""
        self.offer()
        return self.router.advertise(self._clock(), predecessor)

    async def answer(self, asked: RoutedRequest) -> RoutedAnswer:
        """Answer by the chosen endpoint, and if it fails by the next best.

        Raises BudgetError if no endpoint reaches the floor, NodeError (503) if no answer is in time or no
        endpoint has room, and the errors of upstreams and models.
        """
        tries = Tries()
        start_s = self._clock()
        while True:
            choice = self.choose(asked, tries.failed)
            if is_final(choice, tries.refusals):
                raise tries.refusals[choice.target]
            tried_s = self._clock() - start_s
            answer = await self._answer_hedged(choice, asked, tries)
            if answer is not None:
                self._fail_blamers(tries.blaming)
                spent = NodeTime(tried_s + answer.spent.seconds, answer.spent.waited_s)
                n, is_hedged = asked.pending.length, tries.is_hedged
                unused = tries.unused_work(answer.target, n, self._clock()) if is_hedged else None
                return replace(answer, spent=spent, is_hedged=is_hedged, unused=unused)
            if not may_forward(tries.failed, self.here):
                asked = replace(asked, trail=replace(asked.trail, hops_left=0))

    def choose(self, asked: RoutedRequest, failed: Collection[str] = ()) -> Choice:
        """Choose by the current queues, without the endpoints that `failed`; raises as `answer` does."""
        now_s, pending = self._clock(), asked.pending
        self.offer(pending)
        full = self.upstreams.slots.full if self.upstreams is not None else ()
        busy = tuple(name for name, local in self.here.items() if not local.has_room(pending.client))
        terms = pending.terms_at(now_s)
        exclude = (*failed, *full, *busy)
        try:
            return self.router.choose(
                pending.length, now_s, asked.objective, exclude, asked.trail, terms, is_coming=not failed
            )
        except DeadlineError as late:
            raise self._too_late(late) from late
        except BudgetError as unreached:
            try:
                is_possible = self._may_answer_later(asked, exclude, terms, now_s)
            except DeadlineError as late:
                raise self._too_late(late) from late
            if not is_possible:
                raise
            busy_s = max(1, ceil(min(local.backlog_s for local in self.here.values())))
            why = "the endpoints that could answer this are busy or failed; try again."
            raise NodeError(why, status=503, retry_after_s=busy_s) from unreached
        except RouteError:  # local queues are full and no upstream is available
            return choose_local(pending.length, self.router.ways_here, terms)

    def _too_late(self, late: DeadlineError) -> NodeError:
        wait_s = min(local.backlog_s for local in self.here.values())
        return NodeError(str(late), status=503, retry_after_s=max(1, ceil(wait_s)) if wait_s else None)

    def _may_answer_later(
        self, asked: RoutedRequest, excluded: Collection[str], terms: Terms, now_s: float
    ) -> bool:
        """Whether one of the `excluded` endpoints, or an upstream that does not answer now, can answer this.

        Raises DeadlineError if only the former can, too late.
        """
        n, trail, floor = asked.pending.length, asked.trail, terms.accuracy_floor or 0.0
        if excluded:
            with suppress(BudgetError):
                self.router.choose(n, now_s, asked.objective, (), trail, terms, is_coming=False)
                return True
        return trail.hops_left > 0 and any(
            peer.may_answer_later(n, floor) and peer.node not in trail.path
            for peer in self.router.states(now_s)
        )

    async def _attempt(
        self, choice: Choice, asked: RoutedRequest, tries: Tries, start: WorkStart | None = None
    ) -> RoutedAnswer | None:
        """The answer of the chosen endpoint; None if it failed, which is recorded in `tries`."""
        target, is_here = choice.target, choice.target in self.here
        try:
            if not is_here:
                return await self._call_upstream(choice, asked)
            tries.here[target] = choice, start = choice, start or WorkStart()
            return await self._run_local(choice, asked, tries, start)
        except (BudgetError, ClusterError) as error:  # not enough memory, or its workers failed
            if not is_here or target in tries.failed:
                raise
            _LOG.warning("%s: %s cannot answer: %s", asked.id, target, error)
        except NodeError as error:
            if is_here and (error.status != 503 or target in tries.failed or not self._has_others()):
                raise
            _LOG.info("%s: %s", asked.id, error)
            if is_here:
                tries.refusals[target] = error
            elif error.status in BLAMES_INPUT:
                tries.blaming.append(target)
        tries.failed = (*tries.failed, target)
        tries.here.pop(target, None)
        self.metrics.fallbacks.labels(target).inc()
        return None

    def _has_others(self) -> bool:
        """Whether another endpoint may answer a request that a local endpoint has no room or time for."""
        return len(self.here) > 1 or bool(self.router.states(self._clock()))

    def _fail_blamers(self, blaming: Iterable[str]) -> None:
        """Another endpoint answered: upstreams that blamed the input have failed."""
        for upstream in blaming:
            assert self.upstreams is not None
            self.upstreams.failed(upstream, "refused an input that another endpoint answered")

    async def _answer_hedged(self, choice: Choice, asked: RoutedRequest, tries: Tries) -> RoutedAnswer | None:
        """Answer by the chosen endpoint, and by a second if it is about to be late; None if both fail."""
        if asked.pending.due_s is None or self._is_alone:
            return await self._answer_once(choice, asked, tries)
        if choice.target not in self.here:
            return await self._answer_upstream(choice, asked, tries)
        start_s, start = self._clock(), WorkStart()
        first = asyncio.ensure_future(self._attempt(choice, asked, tries, start))
        under_way, begun = {first: 0.0}, [first]
        local = self._local_answer(choice, asked, tries, start)
        hedges = plan_hedges(local, lambda: self._fallback(choice, asked.pending, tries.failed))
        error: BaseException | None = None
        used: asyncio.Task[RoutedAnswer | None] | None = None
        try:
            while under_way:
                async with self._moving:
                    is_alone = list(under_way) == [first] and not first.done()
                    step = next(hedges, None) if is_alone else None
                    if isinstance(step, Choice):
                        barred = barred_hedges(local)
                        if start.begun_s is None:
                            first.cancel()  # it leaves the queue, unless it has just begun
                        tries.is_hedged = True
                        begun.append(asyncio.ensure_future(self._hedge(step, asked, tries, barred)))
                        under_way[begun[-1]] = self._clock() - start_s
                        await asyncio.sleep(0)  # lets it join the other queue
                        continue
                await asyncio.wait(under_way, timeout=step, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in under_way if task.done()]:
                    tried_s = under_way.pop(task)
                    if task.cancelled():
                        continue
                    error = error or task.exception()
                    if task.exception() is None and (answer := task.result()) is not None:
                        used = task
                        queued_s = tried_s if first.cancelled() else 0.0
                        spent = NodeTime(answer.spent.seconds + tried_s, answer.spent.waited_s + queued_s)
                        return replace(answer, spent=spent)
            if error is not None:
                raise error
            return None
        finally:
            if len(begun) > 1:
                answered: _AnsweredBy = "none" if used is None else "there" if used is first else "here"
                self.metrics.hedges.labels(choice.target, answered).inc()
            for task in begun:
                if task is not used:
                    task.add_done_callback(partial(self._drop, tries))
                task.cancel()

    @property
    def _is_alone(self) -> bool:
        """Whether no other endpoint could answer."""
        return len(self.here) == 1 and (self.upstreams is None or not self.router.has_successors())

    async def _answer_once(self, choice: Choice, asked: RoutedRequest, tries: Tries) -> RoutedAnswer | None:
        """Like `_answer_hedged` without a possible second endpoint, which needs no extra task."""
        answer = await self._attempt(choice, asked, tries)
        if (task := asyncio.current_task()) and task.cancelling():  # work that has begun was completed
            self._count_unused(answer, tries)
            raise asyncio.CancelledError
        return answer

    async def _answer_upstream(
        self, choice: Choice, asked: RoutedRequest, tries: Tries, barred: Iterable[Collection[str]] = ((),)
    ) -> RoutedAnswer | None:
        """Like `_answer_hedged` for an upstream, with a local endpoint as the second when time gets short.

        See `plan_hedge` about `barred`.
        """
        planned = self._fallback(choice, asked.pending, tries.failed, barred)
        if planned is None:
            return await self._answer_once(choice, asked, tries)
        start_s = self._clock()
        answered: _AnsweredBy = "none"
        begun: list[Choice] = []

        def second() -> Coroutine[Any, Any, RoutedAnswer | None]:
            begun.append(planned.choice)
            tries.is_hedged = True
            return self._begin_hedge(planned.choice, asked, tries, start_s)

        try:
            found = await call_hedged(self._attempt(choice, asked, tries), second, planned.after_s)
            if found.result is not None:
                answered = "here" if found.is_second else "there"
        finally:
            if begun:
                self.metrics.hedges.labels(choice.target, answered).inc()
        if found.is_overtaken:
            assert self.upstreams is not None
            late_s = self._clock() - start_s - choice.seconds
            self.upstreams.overdue(choice.target, asked.pending.length, late_s)
        return found.result

    async def _begin_hedge(
        self, choice: Choice, asked: RoutedRequest, tries: Tries, start_s: float
    ) -> RoutedAnswer | None:
        """The answer of `choice`, which begins at another endpoint after `start_s`."""
        begun: asyncio.Task[RoutedAnswer | None] | None = None
        try:
            async with self._moving:
                begun = asyncio.create_task(self._hedge(choice, asked, tries))
                tried_s = self._clock() - start_s
                await asyncio.sleep(0)  # lets it join the other queue
            answer = await begun
            if (task := asyncio.current_task()) and task.cancelling():
                self._count_unused(answer, tries)
        finally:
            if begun is not None:
                begun.cancel()
        if answer is None:
            return None
        return replace(answer, spent=NodeTime(answer.spent.seconds + tried_s, answer.spent.waited_s))

    def _local_answer(
        self, choice: Choice, asked: RoutedRequest, tries: Tries, start: WorkStart
    ) -> LocalAnswer:
        def choose(failed: Collection[str]) -> Choice | None:
            try:
                return self.choose(asked, failed)
            except (BudgetError, NodeError):
                return None

        pending = asked.pending
        return LocalAnswer(
            choice,
            pending.length,
            self._clock,
            lambda: start.begun_s,
            pending.terms_at,
            choose,
            lambda: tries.failed,
        )

    async def _hedge(
        self, choice: Choice, asked: RoutedRequest, tries: Tries, barred: Iterable[Collection[str]] = ((),)
    ) -> RoutedAnswer | None:
        """Like `_attempt` or `_answer_upstream`; None also if a local endpoint refuses."""
        try:
            if choice.target not in self.here:
                return await self._answer_upstream(choice, asked, tries, barred)
            return await self._attempt(choice, asked, tries)
        except NodeError as error:
            _LOG.info("%s: %s", asked.id, error)
            tries.failed = (*tries.failed, choice.target)  # else it would be chosen again
            return None

    def _fallback(
        self,
        choice: Choice,
        pending: PendingRequest,
        failed: Collection[str],
        barred: Iterable[Collection[str]] = ((),),
    ) -> Hedge | None:
        """The local endpoint to start while `choice` is pending, and when; none that `failed`."""
        if pending.due_s is None:
            return None
        here = [way for way in self.router.ways_here if self.here[way.name].has_room(pending.client)]
        terms = pending.terms_at(self._clock())
        return plan_hedge(pending.length, choice, here, terms, failed, barred)

    async def _call_upstream(self, choice: Choice, asked: RoutedRequest) -> RoutedAnswer:
        about: dict[str, SpanAttribute] = {
            "pliant.endpoint": choice.target,
            "pliant.length": asked.pending.length,
        }
        with inner_span("upstream", "client", about):
            return await self._forward(choice, asked)

    async def _forward(self, choice: Choice, asked: RoutedRequest) -> RoutedAnswer:
        pending, body = asked.pending, asked.body()
        assert self.upstreams is not None
        n, target, start_s = pending.length, choice.target, self._clock()
        _LOG.info("%s: length %d, to %s, %.6f s expected", asked.id, n, target, choice.seconds)
        sender_s = None if asked.route is None else asked.route.patience_s
        most_s = patience_s(pending.terms_at(start_s), sender_s)
        peer = None if pending.has_no_terms else self.router.state(target, start_s)
        link_s = network_s(choice, n, 0.0 if peer is None else peer.wait_s)  # without waiting and computing
        async with self.upstreams.slots.take(target, n, most_s, choice.option.level) as slot:
            terms = Terms() if pending.has_no_terms else pending.forwarded_terms(self._clock(), link_s)
            left_s, objective = most_s - slot.waited_s, asked.own_objective
            answer = await self.upstreams.ask(
                target, n, choice.seconds, asked.trail, asked.id, body, slot, terms, left_s, objective
            )
        try:
            accuracy = check_reply(answer.body, asked.request, self._signature)
        except InputError as error:
            self.upstreams.misbehaved(target, f"sent an invalid response: {error}")
            raise NodeError(f"{target} sent an invalid response: {error}", status=502) from error
        spent = NodeTime(self._clock() - start_s, slot.waited_s + answer.waited_s)
        return RoutedAnswer(answer.body, target, answer.node, spent, choice, slot.ticket.joules, accuracy)

    async def _run_local(
        self, choice: Choice, asked: RoutedRequest, tries: Tries, start: WorkStart
    ) -> RoutedAnswer:
        local, pending, most_s = self.here[choice.target], asked.pending, choice.option.most_s
        if most_s is not None:
            pending = replace(pending, most_s=most_s)
        done = await local.answer(pending, start)
        record_stages(pending.length, local.name, done.waited_s, done.spent_s, done.result.details)
        where, reply = "here" if local.name == LOCAL else f"by {local.name}", done.result
        _LOG.info("%s: length %d, answered %s in %.6f s", asked.id, pending.length, where, done.spent_s)
        spent = NodeTime(done.waited_s + done.spent_s, done.waited_s)
        about = reply.energy_j, reply.accuracy
        return RoutedAnswer(reply, local.name, self.router.name, spent, choice, *about, share_s=done.share_s)

    def _drop(self, tries: Tries, task: "asyncio.Future[RoutedAnswer | None]") -> None:
        """Count the work of a task whose answer is not used; asyncio does not log its error then."""
        self._count_unused(result_of(task), tries)

    def _count_unused(self, answer: RoutedAnswer | None, tries: Tries) -> None:
        if answer is not None and answer.target in self.here:
            self.metrics.count_unused(answer.target, tries.is_hedged, answer.share_s, answer.energy_j)
