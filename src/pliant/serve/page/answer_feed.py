"""The latest answers of a node, kept while the page has viewers."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Any, final

import msgspec
import numpy as np
from msgspec import structs

from pliant.errors import BudgetError, NodeError
from pliant.ir.reply import Reply
from pliant.ir.times.timing import is_in_time
from pliant.route.choice.choose_endpoint import LOCAL, Choice
from pliant.serve.answers.routed_request import RoutedAnswer, RoutedRequest
from pliant.serve.protocol.pending_request import PendingRequest

N_EVENTS = 4096
"""Events kept: a reader further behind misses some."""
N_RECORDS = 256
"""Answers whose spans and bits are kept."""
_LONGEST_TEXT = 2000


class AnswerEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A completed request; times in seconds, `at_s` since 1970.

    `outcome` is ok, refused, failed or cancelled. `target` is the endpoint that answered, and `node` the node
    that computed the answer there. `expected_s` and `bound_s` are the router's estimates. Unknown values are
    None.
    """

    number: int
    id: str
    at_s: float
    length: int
    target: str
    outcome: str
    seconds: float
    waited_s: float = 0.0
    deadline_s: float | None = None
    met: bool | None = None
    accuracy: float | None = None
    floor: float | None = None
    expected_s: float | None = None
    bound_s: float | None = None
    node: str | None = None


class CandidateEstimate(msgspec.Struct, frozen=True, gc=False):
    """An endpoint as the router estimated it."""

    target: str
    seconds: float
    bound_s: float
    accuracy: float | None
    excluded: str | None


class RouteRecord(msgspec.Struct, frozen=True, gc=False):
    """A routing choice as numbers: `candidates` in order, the chosen one first; `work_s` is its work alone.

    The choice itself refers to the curves of all endpoints, which the router often replaces: kept for
    hundreds of answers, they made the collector's work most of the cost of an open page.
    """

    reason: str
    work_s: float
    candidates: tuple[CandidateEstimate, ...]


class AnswerRecord(msgspec.Struct, frozen=True, gc=False):
    """The record of one answer for the page.

    `details` are the session's, `error` is the message of a failure. `text` is that of the request, None
    unless texts are kept.
    """

    event: AnswerEvent
    route: RouteRecord | None = None
    details: Any = None
    error: str | None = None
    text: str | None = None


@dataclass(slots=True)
class _Outcome:
    """The outcome of a request, filled in as it becomes known."""

    answer: RoutedAnswer | None = None
    outcome: str = "failed"
    error: str | None = None


@final
class AnswerFeed:
    """Answers of one node, numbered from 1. Without viewers nothing is kept, at no cost.

    With `keeps_texts`, texts are kept for all who may view the page. Records may come from any thread; one
    event loop reads.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        keeps_texts: bool = False,
    ) -> None:
        self.keeps_texts = keeps_texts
        self.n_viewers = 0
        self._clock, self._wall = clock, wall
        self._lock = Lock()
        self._n = 0
        self._events: deque[AnswerEvent] = deque(maxlen=N_EVENTS)
        self._records: deque[AnswerRecord] = deque(maxlen=N_RECORDS)

    @property
    def last(self) -> int:
        """The number of the latest event, 0 if there is none: the start of a new reader."""
        return self._n

    @contextmanager
    def viewed(self) -> Iterator[None]:
        """Register a viewer until the context ends."""
        with self._lock:
            self.n_viewers += 1
        try:
            yield
        finally:
            with self._lock:
                self.n_viewers -= 1
                if not self.n_viewers:
                    self._events.clear()
                    self._records.clear()

    def events_since(self, number: int) -> list[AnswerEvent]:
        """The events after `number` that are still kept, oldest first."""
        with self._lock:
            n_new = min(self._n - number, len(self._events))
            return list(islice(self._events, len(self._events) - n_new, None)) if n_new > 0 else []

    def find_record(self, number: int) -> AnswerRecord | None:
        """The record of an answer; None if it is no longer kept."""
        with self._lock:
            return next((one for one in reversed(self._records) if one.event.number == number), None)

    @property
    def latest(self) -> AnswerRecord | None:
        """The latest answer with details."""
        with self._lock:
            return next((one for one in reversed(self._records) if one.details is not None), None)

    async def record_request(
        self, asked: RoutedRequest, answer: Callable[[RoutedRequest], Awaitable[RoutedAnswer]]
    ) -> RoutedAnswer:
        """Run `answer(asked)`, and record it if there are viewers. Raises the same errors."""
        if not self.n_viewers:
            return await answer(asked)
        at_s, start_s, end = self._wall(), self._clock(), _Outcome()
        try:
            end.answer = await answer(asked)
            end.outcome = "ok"
        except (BudgetError, NodeError) as error:
            is_refused = isinstance(error, BudgetError) or error.status == 503
            end.outcome, end.error = "refused" if is_refused else "failed", str(error)
            raise
        except asyncio.CancelledError:
            end.outcome = "cancelled"
            raise
        finally:
            self._record_outcome(asked, end, at_s, start_s)
        return end.answer

    def record_reply(self, reply: Reply[Any], text: str | None = None) -> None:
        """Record an answer that a session just gave outside a node."""
        if not self.n_viewers:
            return
        event = AnswerEvent(
            0,
            "",
            self._wall() - reply.seconds,
            reply.length,
            LOCAL,
            "ok",
            reply.seconds,
            reply.waited_s,
            reply.target_s,
            reply.met,
            reply.accuracy,
        )
        self._keep(event, None, reply.details, None, text)

    def _record_outcome(self, asked: RoutedRequest, end: _Outcome, at_s: float, start_s: float) -> None:
        now_s, pending, answer = self._clock(), asked.pending, end.answer
        choice = None if answer is None else answer.choice
        content = None if answer is None else answer.content
        reply = content if isinstance(content, Reply) else None
        event = AnswerEvent(
            0,
            asked.id,
            at_s,
            pending.length,
            LOCAL if answer is None else answer.target,
            end.outcome,
            now_s - start_s,
            0.0 if answer is None else answer.spent.waited_s,
            _deadline_s(asked, start_s),
            None if end.outcome == "cancelled" else is_in_time(now_s, pending.due_s) and answer is not None,
            _accuracy(reply, choice),
            pending.floor,
            None if choice is None else choice.seconds,
            None if choice is None else choice.option.bound_s,
            None if answer is None else answer.node,
        )
        details = None if reply is None else reply.details
        route = None if choice is None else _route_record(choice, pending.length)
        self._keep(event, route, details, end.error, _text_of(asked, pending))

    def _keep(
        self, event: AnswerEvent, route: RouteRecord | None, details: Any, error: str | None, text: str | None
    ) -> None:
        """Keep an answer under the next number, unless the last viewer has left in the meantime."""
        shown = text[:_LONGEST_TEXT] if self.keeps_texts and text is not None else None
        with self._lock:
            if not self.n_viewers:
                return
            self._n += 1
            event = structs.replace(event, number=self._n)
            self._events.append(event)
            self._records.append(AnswerRecord(event, route, details, error, shown))


def _route_record(choice: Choice, length: int) -> RouteRecord:
    options = (choice.option, *choice.runners_up)
    found = tuple(CandidateEstimate(o.name, o.seconds, o.bound_s, o.accuracy, o.excluded) for o in options)
    return RouteRecord(choice.reason, choice.option.level.curve.at(length), found)


def _accuracy(reply: Reply[Any] | None, choice: Choice | None) -> float | None:
    """The accuracy of a local answer; that expected of another node's answer."""
    if reply is not None:
        return reply.accuracy
    return None if choice is None else choice.option.accuracy


def _deadline_s(asked: RoutedRequest, start_s: float) -> float | None:
    """The deadline in the request, or else the time left when it was read, rounded to milliseconds."""
    due_s, said_s = asked.pending.due_s, asked.request.terms.deadline_s
    if due_s is None or (said_s is not None and asked.is_source):
        return None if due_s is None else said_s
    return max(round(due_s - start_s, 3), 0.0)


def _text_of(asked: RoutedRequest, pending: PendingRequest) -> str | None:
    """The first text of a request; None if its inputs are arrays."""
    if pending.request.text is not None:
        return pending.request.text
    texts = asked.request.tensors.get("text")
    if texts is None or texts.dtype != np.object_ or not texts.size:
        return None
    first = texts.reshape(-1)[0]
    return first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
