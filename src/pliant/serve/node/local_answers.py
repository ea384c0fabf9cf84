"""Answers that a node computes itself: in turns, in time or not at all, and timed for its router."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any, final

from pliant.errors import NodeError, PliantError
from pliant.ir.endpoint import Request
from pliant.ir.reply import Reply
from pliant.route.router import Router
from pliant.run.session.session import Session
from pliant.serve.node.admission import Admission, Done
from pliant.serve.node.metrics import Metrics
from pliant.serve.node.samples import sample_requests
from pliant.serve.protocol.terms import PendingRequest

_LOG = logging.getLogger("pliant.serve")
_LEARNED = 3
"""Answers by which a length is learned before anybody asks, where they are quick."""


@final
class LocalAnswers:
    """Call on one event loop. `router` is told what answers take; `on_refit` when that changed its curve."""

    def __init__(
        self,
        served: Session[Any],
        router: Router,
        admission: Admission,
        metrics: Metrics,
        on_refit: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._served, self._router, self._admission = served, router, admission
        self._metrics, self._on_refit, self.clock = metrics, on_refit, clock
        self._probing: asyncio.Task[None] | None = None

    @property
    def backlog_s(self) -> float:
        """What a request that came now would wait for."""
        return self._admission.backlog_s

    def has_room(self, client: str) -> bool:
        """Whether one more request of `client` may wait."""
        return self._admission.has_room(client)

    async def answer(self, wish: PendingRequest) -> Done[Reply[Any]]:
        """The reply, in turn. Raises NodeError where there is no room, or no answer is in time (503)."""
        expected_s = self.check_in_time(wish, self.backlog_s)
        try:
            done = await self._admission.run(partial(self._compute, wish), expected_s, wish.client)
        finally:
            # Else the wait at the last choice would count as the usual one until the next request comes.
            self._router.waits(self.backlog_s, self.clock())
        self._metrics.waiting_seconds.observe(done.waited_s)
        self._metrics.compute_seconds.observe(done.spent_s)
        self._answered(wish.length, done)
        return done

    def check_in_time(self, wish: PendingRequest, wait_s: float) -> float:
        """The seconds that an answer from here is expected to take, once it has waited for `wait_s`.

        Raises NodeError (503) where even the quickest would be late: nobody asked for a late and worse one.
        """
        starts_s = self.clock() + wait_s
        found = self._served.estimate(wish.at(starts_s))
        if wish.best_effort or found.seconds <= wish.left_s(starts_s):
            return found.seconds
        left_s, late_s = max(wish.left_s(self.clock()), 0.0), wait_s + found.seconds
        accuracy = "" if found.accuracy is None else f" with an accuracy of {found.accuracy:.4g}"
        raise NodeError(
            f"no answer is in time: {left_s * 1e3:.4g} ms are left of the deadline, and the soonest here "
            f"takes {late_s * 1e3:.4g} ms{accuracy}, {wait_s * 1e3:.4g} of them waiting. Give a longer "
            "`deadline_s`, or `best_effort`: true for that answer.",
            status=503,
            retry_after_s=max(1, ceil(wait_s)) if wait_s else None,
        )

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
                return

    def probe(self, n: int) -> None:
        """Answer a sample of length n, unless the model is busy: then its requests say as much."""
        if self.backlog_s == 0.0:
            self._probing = asyncio.get_running_loop().create_task(self._probe(n))

    def close(self) -> None:
        """Once all that was let in is answered."""
        self._admission.close()
        self._served.close()

    def _learn(self, sample: Request, most_s: float) -> None:
        """Time a sample, several times where that takes less than `most_s`."""
        start_s = self.clock()
        self._compute(PendingRequest(sample))  # what only a first run pays is nobody's time
        for _ in range(_LEARNED):
            done = self._admission.run_now(partial(self._compute, PendingRequest(sample)))
            self._answered(sample.length, done)
            if self.clock() - start_s > most_s:
                return

    async def _probe(self, n: int) -> None:
        with suppress(PliantError):
            sample = self._served.request(self._served.sample(n))
            done = await self._admission.run(partial(self._compute, PendingRequest(sample)), 0.0)
            self._answered(sample.length, done)

    def _answered(self, n: int, done: Done[Reply[Any]]) -> None:
        """The router is told what a whole answer takes, by what this one took."""
        before, reply = self._router.local_curve, done.result
        share = 1.0 if reply.whole_s is None or not reply.seconds else reply.whole_s / reply.seconds
        self._router.answered_here(n, done.spent_s * share, self.clock())
        if self._router.local_curve is not before:
            self._metrics.refits.inc()
            self._on_refit()

    def _compute(self, wish: PendingRequest) -> Reply[Any]:
        """On the worker thread, where it is known what is left of the time.

        A model's own mistake is this request's end, not the connection's.
        """
        try:
            self.check_in_time(wish, 0.0)
            return self._served.answer(wish.at(self.clock()))
        except PliantError:
            raise
        except Exception as error:
            _LOG.exception("%s failed", self._served.name)
            raise NodeError("the model failed on this input; the node's log says how.", status=500) from error
