"""Work items that are queued, run in batches, and completed on the event loop of their caller."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from pliant.ir.reply import Reply
from pliant.ir.times.timing import Timing
from pliant.serve.batching.batch_times import BatchTimes
from pliant.serve.batching.batch_worker import BatchWorker
from pliant.serve.batching.plan_batch import QueuedRequest

_LOG = logging.getLogger("pliant.serve")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkResult(Generic[T]):
    """A result, with its waiting time and its computing time (seconds).

    In a batch, the computing time of each result is its time alone, at most that of the whole batch; the rest
    counts as waiting. `n_together` results were computed at once, with `is_beside` while other workers ran:
    the run took `run_s`, of which `share_s` is in proportion to the length of this input.
    """

    result: T
    waited_s: float
    spent_s: float
    run_s: float
    share_s: float
    n_together: int = 1
    is_beside: bool = False


@dataclass(slots=True)
class WorkStart:
    """The start time of a work item; None while it waits."""

    begun_s: float | None = None


@dataclass(eq=False, slots=True)
class WorkItem:
    """Work of one client; `end` is its result or error, set when `done` completes.

    `is_displaced` is set if another item took its place.
    """

    worker: BatchWorker
    one: Any
    waiting: QueuedRequest
    client: str
    start: WorkStart
    asked_s: float
    done: "asyncio.Future[None]"
    context: Context
    end: WorkResult[Any] | BaseException | None = None
    is_displaced: bool = False


@dataclass(frozen=True, slots=True)
class BatchRun:
    """A batch of items, with its start time and its expected duration.

    At most `most` such runs are in progress, each on one worker; 1 for a run with all threads.
    """

    items: tuple[WorkItem, ...]
    begun_s: float
    expected_s: float
    most: int = 1

    @property
    def is_beside(self) -> bool:
        """Whether other runs may be in progress at the same time."""
        return self.most > 1


@final
class CallableWorker:
    """A worker for single callables."""

    most_together = most_together_beside = most_items = most_beside = 1

    def __init__(self) -> None:
        self.times = self.times_beside = BatchTimes()

    def refusal(self, one: Callable[[], Any], is_contended: bool) -> None:
        return None

    def lateness(self, one: Callable[[], Any], alone_s: float) -> Exception:
        raise AssertionError("this work has no deadline")

    def work(self, ones: Sequence[Callable[[], Any]], is_beside: bool) -> list[Any]:
        return [one() for one in ones]


def record_time(run: BatchRun, results: Sequence[Any], spent_s: float) -> None:
    """Update the batch times with `spent_s`, less its preparation, unless a request failed.

    Errors are logged: the results are there, and their callers wait for them.
    """
    if any(isinstance(result, BaseException) for result in results):
        return
    loaded_s = max((result.loaded_s for result in results if isinstance(result, Reply)), default=0.0)
    worker = run.items[0].worker
    alone_s = sum(item.waiting.alone.median_s - item.waiting.loading_s for item in run.items)
    n_items = sum(item.waiting.length for item in run.items)
    times = worker.times_beside if run.is_beside else worker.times
    try:
        times.observe(len(run.items), n_items, Timing(alone_s, alone_s), max(spent_s - loaded_s, 0.0))
    except Exception:  # noqa: BLE001 - see above
        _LOG.exception("the time of a batch of %d requests was not recorded", len(run.items))


def item_outcome(
    item: WorkItem, result: Any, run: BatchRun, spent_s: float
) -> WorkResult[Any] | BaseException:
    """The result or error that the caller of an item receives."""
    if isinstance(result, BaseException):
        return result
    own_s = spent_s if len(run.items) == 1 else min(spent_s, item.waiting.alone.median_s)
    waited_s = run.begun_s - item.asked_s + spent_s - own_s
    n_items = sum(max(one.waiting.length, 1) for one in run.items)
    share_s = spent_s * max(item.waiting.length, 1) / n_items
    return WorkResult(result, waited_s, own_s, spent_s, share_s, len(run.items), run.is_beside)


def deliver(ends: Sequence[tuple[WorkItem, WorkResult[Any] | BaseException]]) -> None:
    """Pass results and errors to the callers, on their event loops."""
    loops = {item.done.get_loop() for item, _ in ends}
    for loop in loops:
        here = [(item, end) for item, end in ends if item.done.get_loop() is loop]
        with suppress(RuntimeError):  # the loop was closed, so there is no caller
            loop.call_soon_threadsafe(_settle, here)


def _settle(ends: Sequence[tuple[WorkItem, WorkResult[Any] | BaseException]]) -> None:
    for item, end in ends:
        item.end = end
        if not item.done.done():
            item.done.set_result(None)
