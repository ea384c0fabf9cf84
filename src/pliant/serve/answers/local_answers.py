"""Answers that a node computes itself: in turns, in time or not at all, and timed for its router."""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil, inf
from typing import Any, final

from pliant.errors import DeadlineError, NodeError, PliantError
from pliant.ir.endpoint import Request, ServiceLevel
from pliant.ir.reply import Reply
from pliant.ir.times.timing import Timing, is_hopeless
from pliant.route.choice.choose_endpoint import LOCAL
from pliant.route.router import Router
from pliant.run.session.session import Session
from pliant.serve.answers.admission import Admission
from pliant.serve.answers.answer_energy import AnswerEnergy
from pliant.serve.answers.metrics import Metrics
from pliant.serve.answers.pieces import Done, Turn
from pliant.serve.answers.samples import sample_requests
from pliant.serve.batching.batch_times import BatchTimes
from pliant.serve.batching.plan_batch import Waiting
from pliant.serve.protocol.terms import PendingRequest

_LOG = logging.getLogger("pliant.serve")
_LOOK_S = 1.0
_FADING = 0.8
"""What a look is expected to take shrinks so much with each that takes less: most find nothing new."""
_LEARNED = 3
"""Answers by which a length is learned before anybody asks, where they are quick."""
_PREPARED = (64, 128, 256, 512)
"""Lengths up to which requests run together, where time is left to make that ready before anybody asks."""
_LONGER = 2.5
"""What the next of these lengths takes, as a part of what the last took."""


@final
class LocalAnswers:
    """One endpoint of a node, `name`; call on one event loop.

    `router` is told its levels and what answers take; `on_refit` when that changed its curve. `energy` counts
    joules.
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
        self._metrics, self._on_refit, self.clock = metrics, on_refit, clock
        self._probing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked_s, self._look_takes_s = clock(), 0.0
        self._may_change = type(served).look_again is not Session.look_again

    @property
    def most_together(self) -> int:
        """How many requests run together at most, in a batch of all threads."""
        return self._served.most_together

    @property
    def most_together_beside(self) -> int:
        """The same of each of the batches beside each other."""
        return self._served.most_together_beside

    @property
    def most_beside(self) -> int:
        """How many batches run beside each other: one where joules are counted, since counters see all."""
        return 1 if self.energy.is_counted else self._served.most_beside

    @property
    def most_items(self) -> float:
        """How many items they have at most, all together."""
        return self._served.most_items_together

    @property
    def n_waiting(self) -> int:
        """Requests that wait for their turn."""
        return self._admission.n_waiting

    @property
    def backlog_s(self) -> float:
        """What a request that came now would wait for."""
        return self._admission.backlog_s

    def has_room(self, client: str) -> bool:
        """Whether one more request of `client` may wait."""
        return self._admission.has_room(client)

    def offer(self, wish: PendingRequest | None = None, may_look: bool = True) -> None:
        """Tell the router what an input that came now would wait for, `wish` by its slack, and the levels
        that there are."""
        levels = self._served.levels()
        if self._offered is not levels:
            is_first, self._offered = self._offered is None, levels
            self._router.offer(levels, self.name)
            if not is_first:
                self._metrics.refits.inc()
                self._on_refit()
        now_s, wait_s = self.clock(), self.backlog_s
        if wish is not None and wish.due_s is not None and wait_s:
            with suppress(PliantError):  # the router says what is out of reach
                wait_s = self._admission.wait_s(self._waiting(wish))
        self._router.waits(wait_s, now_s, self.name)
        if may_look and self._may_change and now_s - self._looked_s > _LOOK_S and self._admission.is_idle:
            self._looked_s = now_s
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def answer(self, wish: PendingRequest, turn: Turn | None = None) -> Done[Reply[Any]]:
        """The reply, in its `turn`. Raises NodeError (503) where nothing has room or is in time."""
        waiting = self._waiting(wish)
        try:
            async with asyncio.timeout(self._patience_s(wish)):
                done = await self._admission.join(self, wish, waiting, wish.client, turn)
        except TimeoutError:  # its turn has not come: once begun it is answered, though late
            raise self._lateness(wish, waiting.alone.median_s) from None
        finally:
            # Else the wait at the last choice would count as the usual one until the next request comes.
            self.offer()
        self._metrics.of(self._metrics.waiting_seconds, self.name).observe(done.waited_s)
        self._metrics.of(self._metrics.compute_seconds, self.name).observe(done.spent_s)
        if done.n_together == 1 and not done.is_beside:
            self._answered(wish.length, done.result, done.spent_s)
        return done

    def refusal(self, one: PendingRequest, is_contended: bool) -> NodeError | None:
        """Of a request that is likely late: nobody asked for a late answer. Where others wait that would be
        in time, also of one whose bound is late."""
        now_s = self.clock()
        left_s = one.left_s(now_s) - self._admission.hand_over.bound_s
        alone, _ = self._alone(one.at(now_s), is_contended)
        is_late = alone.p95_s > left_s if is_contended else is_hopeless(alone.median_s, alone.p95_s, left_s)
        return self._lateness(one, alone.median_s) if is_late and not one.best_effort else None

    def work(self, ones: Sequence[PendingRequest], is_beside: bool = False) -> list[Any]:
        """A reply to each, or why there is none; where they fail together, each fails by itself."""
        self._metrics.batch_sizes.labels(self.name).observe(len(ones))
        if len(ones) > 1 or is_beside:
            answers = self._served.answers_beside if is_beside else self._served.answers
            try:
                now_s = self.clock()
                asked = [one.at(now_s) for one in ones]
                replies = self.energy.counted_together(lambda: answers(asked))
            except Exception as error:  # noqa: BLE001 - each is asked again, and says what is wrong with it
                _LOG.info("%s: a batch of %d failed, each is asked alone: %s", self.name, len(ones), error)
            else:
                for reply in replies:
                    self._count_joules(reply)
                return replies
        return [self._tried(one) for one in ones]

    def _tried(self, wish: PendingRequest) -> Any:
        try:
            return self._compute(wish)
        except PliantError as error:
            return error

    def _waiting(self, wish: PendingRequest) -> Waiting:
        """What the request is for those that plan its turn."""
        alone, key = self._alone(wish.at(self.clock() + self.backlog_s), is_beside=True)
        return Waiting(
            alone,
            wish.length,
            inf if wish.due_s is None else wish.due_s - self._admission.hand_over.bound_s,
            key=None if key is None else (self, key),
        )

    def _alone(self, asked: Request, is_beside: bool) -> tuple[Timing, Hashable | None]:
        """What a request takes in no batch, where others run beside it or none do, and its key."""
        found, key = self._served.estimate(asked), self._served.together(asked)
        timing = Timing(found.seconds, max(found.seconds, found.bound_s or 0.0))
        are_others = is_beside and key is not None and min(self._admission.n_workers, self.most_beside) > 1
        return (timing.times(self._served.pace_beside) if are_others else timing), key

    def _patience_s(self, wish: PendingRequest) -> float | None:
        """How long it may wait for its turn; None for ever."""
        return None if wish.best_effort or wish.due_s is None else wish.left_s(self.clock())

    def _lateness(self, wish: PendingRequest, soonest_s: float) -> NodeError:
        """The refusal (503) of a request whose soonest answer here takes so long."""
        left_s = max(wish.left_s(self.clock()), 0.0)
        why = (
            f"no answer is in time: {left_s * 1e3:.4g} ms are left of the deadline after its wait, and the "
            f"soonest here takes {soonest_s * 1e3:.4g} ms. Give a longer `deadline_s`, or `best_effort`: "
            "true for that answer."
        )
        error = NodeError(why, 503, max(1, ceil(self.backlog_s)))
        error.__cause__ = DeadlineError(why, soonest_s)
        return error

    def learn(self, lengths: tuple[int, ...], most_s: float) -> None:
        """Answer samples of `lengths` before anybody asks: a first curve.

        Takes about `most_s` at most, but two lengths in any case: one alone says nothing of longer inputs.
        A length that the model cannot take is left out. Lengths are learned one after the other: a session
        that compiles for each keeps few of them, and would be timed compiling.
        """
        start_s = self.clock()
        samples = sample_requests(self._served, lengths)
        n_learned = 0
        for sample in samples:
            with suppress(PliantError):
                self._learn(sample, most_s / len(samples))
                n_learned += 1
            if n_learned > 1 and self.clock() - start_s > most_s:
                break
        self._prepare(self.clock() + most_s / 2)

    def probe(self, n: int) -> None:
        """Answer a sample of length n, unless the model is busy: then its requests say as much."""
        if self._admission.is_idle and not self._served.loading_s:  # nothing makes room for a sample
            self._probing = asyncio.get_running_loop().create_task(self._probe(n))

    def close(self) -> None:
        """Call once all that was let in is answered."""
        if self.name == LOCAL:  # a cluster's session is its cluster's
            self._served.close()

    def _learn(self, sample: Request, most_s: float) -> None:
        """Time a sample, several times where that takes less than `most_s`."""
        start_s = self.clock()
        self._compute(PendingRequest(sample))  # what only a first run pays is nobody's time
        for _ in range(_LEARNED):
            done = self._admission.run_now(partial(self._compute, PendingRequest(sample)))
            self._answered(sample.length, done.result, done.spent_s, may_look=False)  # no event loop here
            if self.clock() - start_s > most_s:
                return

    def _prepare(self, until_s: float) -> None:
        """Have requests of more lengths run together, while that is expected to be ready by `until_s`."""
        took_s = 0.0
        for n in _PREPARED:
            start_s = self.clock()
            if n > self._served.max_length or start_s + _LONGER * took_s > until_s:
                return
            with suppress(PliantError):
                if not self._admission.run_now(partial(self._served.prepare_together, n)).result:
                    return
            took_s = self.clock() - start_s

    async def _look(self) -> None:
        """Let the session notice devices that came or went, off the event loop: that may take a while."""
        with suppress(PliantError):
            done = await self._admission.run(self._served.look_again, self._look_takes_s)
            self._look_takes_s = max(done.spent_s, _FADING * self._look_takes_s)

    async def _probe(self, n: int) -> None:
        with suppress(PliantError):
            sample = self._served.request(self._served.sample(n))
            quickest = PendingRequest(sample, due_s=self.clock(), best_effort=True)
            expected_s = self._served.estimate(quickest.at(self.clock())).seconds
            done = await self._admission.run(partial(self._reconsidered, quickest), expected_s)
            if done.result is not None:
                self._answered(sample.length, done.result, done.spent_s)

    def _answered(self, n: int, reply: Reply[Any], spent_s: float, may_look: bool = True) -> None:
        """The router is told what a whole answer takes, by what this one took."""
        share = 1.0 if reply.whole_s is None or not reply.seconds else reply.whole_s / reply.seconds
        joules = None if reply.energy_j is None else reply.energy_j * share
        self._router.answered_here(n, spent_s * share, self.clock(), self.name, joules)
        self.offer(may_look=may_look)

    def _count_joules(self, reply: Reply[Any]) -> None:
        if reply.energy_j is not None:
            self._metrics.joules.labels(self.name).inc(reply.energy_j)

    def _reconsidered(self, wish: PendingRequest) -> Reply[Any] | None:
        """As `_compute`; None where the session is as quick as it can be."""
        return self._compute(wish) if self._served.reconsider() else None

    def _compute(self, wish: PendingRequest) -> Reply[Any]:
        """On the worker thread, where it is known what is left of the time.

        A model's own mistake is this request's end, not the connection's.
        """
        try:
            if wish.due_s is not None and (late := self.refusal(wish, is_contended=False)) is not None:
                raise late
            reply = self.energy.counted(lambda: self._served.answer(wish.at(self.clock())))
            self._count_joules(reply)
            return reply
        except PliantError:
            raise
        except Exception as error:
            _LOG.exception("%s failed", self._served.name)
            raise NodeError("the model failed on this input; the node's log says how.", status=500) from error
