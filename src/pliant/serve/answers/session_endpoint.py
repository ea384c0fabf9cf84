"""Local answers of a node: queued, refused if late, and timed for the router."""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import ceil, inf
from typing import Any, final

from pliant.errors import BudgetError, ClusterError, DeadlineError, NodeError, PliantError
from pliant.ir.endpoint import Request, ServiceLevel
from pliant.ir.reply import Reply
from pliant.ir.times.timing import Timing, is_hopeless
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.choice.input_needs import InputNeeds
from pliant.route.router import Router
from pliant.run.sample_runs import sampling
from pliant.run.session.session import Session
from pliant.serve.answers.admission import Admission
from pliant.serve.answers.answer_energy import AnswerEnergy, PlannedExchanges, PlannedSession
from pliant.serve.answers.device_watch import DeviceWatch
from pliant.serve.answers.metrics import Metrics
from pliant.serve.answers.samples import sample_requests
from pliant.serve.answers.work_item import WorkResult, WorkStart
from pliant.serve.batching.batch_times import BatchTimes
from pliant.serve.batching.plan_batch import QueuedRequest
from pliant.serve.protocol.pending_request import PendingRequest

_LOG = logging.getLogger("pliant.serve")
_LEARNED = 3
"""Samples to time for each length before the first request, if they are fast."""
_PREPARED = (64, 128, 256, 512)
"""Lengths for which batched execution is prepared before the first request, if time is left."""
_LONGER = 2.5
"""Expected preparation time of the next of these lengths, relative to the last."""
_RESTS = 3.0
"""Time without preparing another shape, as a multiple of the time that the last one took."""


@final
class SessionEndpoint:
    """A local endpoint of a node, called `name`; call on one event loop.

    It reports its levels and times to `router`, and calls `on_refit` if that changed its curve. `energy`
    counts joules.
    """

    def __init__(
        self,
        served: Session[Any],
        router: Router,
        admission: Admission,
        metrics: Metrics,
        on_refit: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        name: str = LOCAL,
        energy: AnswerEnergy = AnswerEnergy(),  # noqa: B008 - frozen
    ) -> None:
        self.name, self.energy = name, energy
        self.times, self.times_beside = BatchTimes(), BatchTimes()
        self._served, self._router, self._admission = served, router, admission
        self._offered: tuple[ServiceLevel, ...] | None = None
        self._exchanges = PlannedExchanges()
        self._metrics, self._on_refit, self.clock = metrics, on_refit, clock
        self._probing: asyncio.Task[None] | None = None
        self.watch = DeviceWatch(served, admission, clock)
        self._has_shapes = type(served).compiling is not Session.compiling
        self._unready: Request | None = None
        self._rests_until_s = -inf

    @property
    def most_together(self) -> int:
        """Maximum number of requests in a batch with all threads."""
        return self._served.most_together

    @property
    def most_together_beside(self) -> int:
        """Maximum number of requests in each concurrent batch."""
        return self._served.most_together_beside

    @property
    def most_beside(self) -> int:
        """Maximum number of concurrent batches: one if joules are counted, since meters count all of them."""
        return 1 if self.energy.is_counted else self._served.most_beside

    @property
    def most_items(self) -> float:
        """Maximum total number of items in a batch."""
        return self._served.most_items_together

    @property
    def n_waiting(self) -> int:
        """The number of waiting requests."""
        return self._admission.n_waiting

    @property
    def backlog_s(self) -> float:
        """Expected waiting time of a new request."""
        return self._admission.backlog_s

    def has_room(self, client: str) -> bool:
        """Whether one more request of `client` may wait."""
        return self._admission.has_room(client)

    def offer(self, pending: PendingRequest | None = None, may_look: bool = True) -> None:
        """Update the router with the levels and the expected wait, of `pending` by its slack if given."""
        levels = self._served.levels()
        if self._offered is not levels:
            is_first, self._offered = self._offered is None, levels
            self._router.offer(self._with_exchanges(levels), self.name)
            if not is_first:
                self._metrics.refits.inc()
                self._on_refit()
        now_s, wait_s = self.clock(), self.backlog_s
        needs = InputNeeds(tail_j=self._exchanges.tail_j(now_s))
        if pending is not None and pending.due_s is not None and wait_s:
            with suppress(PliantError):  # the router reports infeasible terms
                wait_s = self._admission.wait_s(self._queue_entry(pending))
        if pending is not None and self._has_shapes:
            needs = self._needs(pending.request, needs)
            if may_look and needs.compiling is not None:
                self._unready = pending.request
        self._router.set_wait(wait_s, now_s, self.name, needs)
        if may_look and self._unready is not None:
            asyncio.get_running_loop().call_soon(self._prepare_unready)  # once the choice is made
        if may_look:
            self.watch.begin()

    def offer_length(self, n: int) -> None:
        """As `offer`, for a sample of length n, which is not asked."""
        sample = None
        if self._has_shapes and n <= self._served.max_length:
            with suppress(PliantError):
                sample = PendingRequest(self._served.request(self._served.sample(n)))
        self.offer(sample, may_look=False)

    async def answer(self, pending: PendingRequest, start: WorkStart | None = None) -> WorkResult[Reply[Any]]:
        """The reply to `pending`. Raises NodeError (503) if the queue is full or the answer would be late."""
        waiting = self._queue_entry(pending)
        try:
            async with asyncio.timeout(self._patience_s(pending)):
                done = await self._admission.submit(self, pending, waiting, pending.client, start)
        except TimeoutError:  # it was still waiting: once begun it runs to its end, even if late
            raise self._late_refusal(pending, waiting.alone.median_s) from None
        except NodeError as error:  # logged here, in the context of the request that failed, not of its batch
            self._log_failure(error)
            raise
        except (BudgetError, ClusterError):
            self.watch.expire()
            raise
        finally:
            # Otherwise the router would keep the last wait until the next request.
            self.offer()
        self._metrics.count_work(self.name, done)
        if done.n_together == 1 and not done.is_beside:
            self._report_time(pending.length, done.result, done.spent_s)
        return done

    def refusal(self, one: PendingRequest, is_contended: bool) -> Exception | None:
        """The refusal of a request that is likely to be late, or whose floor is out of reach by now.

        If others wait that would be in time, a request whose bound is late is refused as well.
        """
        now_s = self.clock()
        left_s = one.left_s(now_s) - self._admission.return_delay.bound_s
        try:
            alone, _ = self._time_alone(one.at(now_s), is_contended)
        except Exception as error:  # noqa: BLE001 - levels have changed; raised here, it would fail all that wait
            return error
        is_late = alone.p95_s > left_s if is_contended else is_hopeless(alone.median_s, alone.p95_s, left_s)
        return self._late_refusal(one, alone.median_s) if is_late and not one.best_effort else None

    def lateness(self, one: PendingRequest, alone_s: float) -> NodeError:
        """The refusal of a request that leaves no time for others, or they for it."""
        why = (
            f"no answer is in time beside the requests that wait: {one.left_text(self.clock())}, and this "
            f"one takes {alone_s * 1e3:.4g} ms of them. Give a longer `deadline_s`, or `best_effort`: true "
            "for that answer."
        )
        return self._late(why, self.backlog_s + alone_s)

    def work(self, ones: Sequence[PendingRequest], is_beside: bool = False) -> list[Any]:
        """A reply or an error for each request; if a batch fails, each is run alone."""
        self._metrics.batch_sizes.labels(self.name).observe(len(ones))
        if len(ones) > 1 or is_beside:
            answers = self._served.answers_beside if is_beside else self._served.answers
            try:
                now_s = self.clock()
                asked = [one.at(now_s) for one in ones]
                replies = self.energy.measure_batch(lambda: answers(asked))
            except Exception as error:  # noqa: BLE001 - each is run alone and reports its error
                _LOG.info("%s: a batch of %d failed, each runs alone: %s", self.name, len(ones), error)
            else:
                for reply in replies:
                    self._count_joules(reply)
                return replies
        return [self._answer_or_error(one) for one in ones]

    def _answer_or_error(self, pending: PendingRequest) -> Any:
        try:
            reply = self._compute(pending)
        except PliantError as error:
            return error
        self._count_joules(reply)
        return reply

    def _with_exchanges(self, levels: tuple[ServiceLevel, ...]) -> tuple[ServiceLevel, ...]:
        """The levels with the joules of exchanges, if they are those of a cluster."""
        if isinstance(self._served, PlannedSession):
            planned = self._served.planned_levels.planned
            if planned is not self._exchanges.planned:
                self._exchanges = self.energy.plan_exchanges(planned)
        return self._exchanges.add_to(levels)

    def _queue_entry(self, pending: PendingRequest) -> QueuedRequest:
        """The request as the batch planner sees it."""
        asked = pending.at(self.clock() + self.backlog_s)
        (alone, key), loading = self._time_alone(asked, is_beside=True), self._served.compiling(asked)
        # `alone` includes `loading`, unless another thread has just freed what was ready for this shape.
        loading_s = 0.0 if loading is None else min(loading.median_s, alone.median_s)
        return QueuedRequest(
            alone,
            pending.length,
            inf if pending.due_s is None else pending.due_s - self._admission.return_delay.bound_s,
            key=None if key is None else (self, key),
            best_effort=pending.best_effort,
            loading_s=loading_s,
        )

    def _time_alone(self, asked: Request, is_beside: bool) -> tuple[Timing, Hashable | None]:
        """Time of a request alone, with or without concurrent batches, and its batch key."""
        found, key = self._served.estimate(asked), self._served.together(asked)
        timing = Timing(found.seconds, max(found.seconds, found.bound_s or 0.0))
        are_others = is_beside and key is not None and min(self._admission.n_workers, self.most_beside) > 1
        if not are_others:
            return timing, key
        beside = timing.times(self._served.pace_beside)
        bound_s = self.times_beside.expected(1, asked.length, beside).p95_s
        return Timing(beside.median_s, max(beside.median_s, bound_s)), key

    def _patience_s(self, pending: PendingRequest) -> float | None:
        """Maximum waiting time of a request; None without limit."""
        return None if pending.best_effort or pending.due_s is None else pending.left_s(self.clock())

    def _late_refusal(self, pending: PendingRequest, soonest_s: float) -> NodeError:
        """The refusal (503) of a request whose soonest local answer takes `soonest_s`."""
        why = (
            f"no answer is in time: {pending.left_text(self.clock())} after its wait, and the soonest here "
            f"takes {soonest_s * 1e3:.4g} ms. Give a longer `deadline_s`, or `best_effort`: true for that "
            "answer."
        )
        return self._late(why, soonest_s)

    def _late(self, why: str, soonest_s: float) -> NodeError:
        error = NodeError(why, 503, max(1, ceil(self.backlog_s)))
        error.__cause__ = DeadlineError(why, soonest_s)
        return error

    def learn(self, lengths: tuple[int, ...], most_s: float) -> None:
        """Time samples of `lengths` before the first request, for a first curve.

        Takes about `most_s` at most, but at least two lengths, since one does not predict longer inputs.
        Lengths that the model cannot take are skipped. Lengths are timed one after another, because a session
        that compiles for each length keeps few of them, and would otherwise be timed while compiling.
        """
        start_s = self.clock()
        samples = sample_requests(self._served, lengths)
        n_learned = 0
        for sample in samples:
            try:
                self._learn(sample, most_s / len(samples))
                n_learned += 1
            except PliantError as error:
                self._log_failure(error)
            if n_learned > 1 and self.clock() - start_s > most_s:
                break
        self._prepare(self.clock() + most_s / 2)

    def probe(self, n: int) -> None:
        """Time a sample of length n, unless the model is busy: then its requests are timed anyway."""
        if self._admission.is_idle and not self._served.loading_s:  # a sample must not evict weights
            self._probing = asyncio.get_running_loop().create_task(self._probe(n))

    def close(self) -> None:
        """Close the session, after all admitted requests."""
        if self.name == LOCAL:  # the cluster owns its session
            self._served.close()

    def _learn(self, sample: Request, most_s: float) -> None:
        """Time a sample, several times if that takes less than `most_s`."""
        start_s = self.clock()
        compute = partial(sampling()(self._compute), PendingRequest(sample))
        compute()  # the first run's extra cost (compilation) is not recorded
        for _ in range(_LEARNED):
            done = self._admission.run_now(compute)
            # This is not on the event loop, so the session does not look for devices.
            self._report_time(sample.length, done.result, done.spent_s, may_look=False)
            if self.clock() - start_s > most_s:
                return

    def _prepare(self, until_s: float) -> None:
        """Prepare batched execution of more lengths, as long as it is expected to end by `until_s`."""
        took_s = 0.0
        for n in _PREPARED:
            start_s = self.clock()
            if n > self._served.max_length or start_s + _LONGER * took_s > until_s:
                return
            with suppress(PliantError):
                if not self._admission.run_now(partial(sampling()(self._served.prepare_together), n)).result:
                    return
            took_s = self.clock() - start_s

    def _needs(self, asked: Request, needs: InputNeeds) -> InputNeeds:
        """`needs` with those of the shape of a request."""
        most_n = self._served.most_length(asked)
        is_told = most_n == self._served.most_length()  # by the levels
        compiling = self._served.compiling(asked)
        return replace(needs, compiling=compiling, most_n=None if is_told else most_n)

    def _prepare_unready(self) -> None:
        """Answer the latest request whose shape was not ready, if it went elsewhere, so that later ones need
        not; not while the model is busy, and for a part of the time.
        """
        request = self._unready
        if request is None or not self._admission.is_idle or self.clock() < self._rests_until_s:
            return
        self._unready = None
        if self._served.compiling(request) is not None:
            self._probing = asyncio.get_running_loop().create_task(self._prepare_shape(request))

    async def _prepare_shape(self, request: Request) -> None:
        if not self._admission.is_idle:  # it has just been submitted, or another one
            self._unready = request
            return
        start_s = self.clock()
        await self._run_probe(request)
        self._rests_until_s = self.clock() + _RESTS * (self.clock() - start_s)

    async def _probe(self, n: int) -> None:
        try:
            sample = self._served.request(self._served.sample(n))
        except PliantError as error:
            self._log_failure(error)
        else:
            await self._run_probe(sample)

    async def _run_probe(self, sample: Request) -> None:
        try:
            quickest = PendingRequest(sample, due_s=self.clock(), best_effort=True)
            expected_s = self._served.estimate(quickest.at(self.clock())).seconds
            done = await self._admission.run(partial(self._compute_if_faster, quickest), expected_s)
            if done.result is not None:
                self._report_time(sample.length, done.result, done.spent_s)
        except PliantError as error:
            self._log_failure(error)

    def _log_failure(self, error: PliantError) -> None:
        """Log why the model failed, if `error` is that of `_compute`."""
        if isinstance(error, NodeError) and error.status == 500 and error.__cause__ is not None:
            _LOG.error("%s failed", self._served.name, exc_info=error.__cause__)

    def _report_time(self, n: int, reply: Reply[Any], spent_s: float, may_look: bool = True) -> None:
        """Report the time of a full answer to the router, scaled from this one."""
        share = 1.0 if reply.whole_s is None or not reply.seconds else reply.whole_s / reply.seconds
        timed_j = self.energy.timed_j(reply)
        joules = None if timed_j is None else timed_j * share
        self._router.record_local_answer(n, spent_s * share, self.clock(), self.name, joules)
        self.offer(may_look=may_look)

    def _count_joules(self, reply: Reply[Any]) -> None:
        if reply.energy_j is not None:
            self._metrics.joules.labels(self.name).inc(reply.energy_j)

    @sampling()
    def _compute_if_faster(self, pending: PendingRequest) -> Reply[Any] | None:
        """Like `_compute`; None if the session cannot become faster, or was evicted since it was asked."""
        is_useful = not self._served.loading_s and self._served.reconsider()
        return self._compute(pending) if is_useful else None

    def _compute(self, pending: PendingRequest) -> Reply[Any]:
        """Compute an answer on a worker thread, where the remaining time is known.

        An unexpected error of the model fails this request only, not the connection; the caller logs it.
        """
        try:
            if pending.due_s is not None and (late := self.refusal(pending, is_contended=False)) is not None:
                raise late
            return self.energy.measure(lambda: self._served.answer(pending.at(self.clock())))
        except PliantError:
            raise
        except Exception as error:
            raise NodeError("the model failed on this input; the log has the reason.", status=500) from error
