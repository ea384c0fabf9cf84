"""Threads that run the lanes of programs and sleep between runs."""

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import final

from pliant.errors import LaneError
from pliant.ir.program import Segment
from pliant.run.emulated_device import EmulatedDevice
from pliant.run.lane_order import LaneOrder

_Job = Callable[[], None]


@final
class Lanes:
    """Persistent threads, one for each of `names`, that sleep between runs; a context manager.

    `own` is the lane that the thread calling `execute` runs itself, without a hand-off. Computation takes as
    long as on the `emulated` device (default: this machine). With `is_single`, the calling thread runs the
    steps of all lanes one after another, in listed order. Lanes that a program names and that do not exist
    yet are added. One thread runs programs at a time. A forked child starts threads of its own.
    """

    def __init__(
        self,
        names: Sequence[str] = ("io",),
        *,
        own: str = "cpu",
        emulated: EmulatedDevice | None = None,
        clock: Callable[[], float] = time.perf_counter,
        is_single: bool = False,
    ) -> None:
        self.own = own
        self.emulated = EmulatedDevice() if emulated is None else emulated
        self.clock = clock
        self.is_single = is_single
        self._inboxes: dict[str, SimpleQueue[_Job | None]] = {}
        self._threads: list[Thread] = []
        self._late: BaseException | None = None
        self._order: tuple[Segment, LaneOrder] | None = None
        self._process = os.getpid()
        weakref.finalize(self, _end, self._inboxes).atexit = False  # garbage collection ends the threads
        for name in names:
            self._inbox(name)

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all threads, after the step each is running; safe to call twice."""
        self._forget_parent()
        _end(self._inboxes)
        for thread in self._threads:
            thread.join()
        self._inboxes.clear()
        self._threads.clear()

    def drain(self) -> None:
        """Wait until no lane works on a step of an earlier run; the buffers may then be freed."""
        self._forget_parent()
        for inbox in self._inboxes.values():
            done: SimpleQueue[None] = SimpleQueue()
            inbox.put(partial(done.put, None))
            done.get()
        self.check()

    def check(self) -> None:
        """Raise LaneError if a load that outlived its run has failed since."""
        self._forget_parent()
        error, self._late = self._late, None
        if error is not None:
            raise LaneError(f"a load that its run did not wait for failed: {error}") from error

    def submit(self, name: str, job: _Job) -> None:
        """Queue `job` for the lane's thread, which calls its jobs in order."""
        self._inbox(name).put(job)

    def record_late_failure(self, error: BaseException) -> None:
        """Record the failure of a step that its run did not wait for; the next `check` raises it."""
        self._late = error

    def order_of(self, segment: Segment) -> LaneOrder:
        """The order of the segment's steps on these lanes; the order of the last segment is cached."""
        if self._order is None or self._order[0] is not segment:
            self._order = (segment, LaneOrder(segment, self.own if self.is_single else None))
        return self._order[1]

    def _forget_parent(self) -> None:
        """In a forked child, forget the parent's threads, which do not run there."""
        if self._process != os.getpid():
            self._inboxes.clear()
            self._threads, self._late = [], None
            self._process = os.getpid()

    def _inbox(self, name: str) -> SimpleQueue[_Job | None]:
        if name not in self._inboxes:
            self._inboxes[name] = SimpleQueue()
            thread = Thread(target=_serve, args=(self._inboxes[name],), name=f"pliant-{name}")
            thread.daemon = True  # an interpreter that dies with lanes open must not hang
            thread.start()
            self._threads.append(thread)
        return self._inboxes[name]


def _serve(inbox: SimpleQueue[_Job | None]) -> None:
    while (job := inbox.get()) is not None:
        job()
        del job  # else the waiting thread would keep the last run's memory


def _end(inboxes: Mapping[str, SimpleQueue[_Job | None]]) -> None:
    for inbox in inboxes.values():
        inbox.put(None)
