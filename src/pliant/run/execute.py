"""Run a program on real threads, one a lane; `Do` says how each work is done."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any

from pliant.errors import LaneError
from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Compute, Exchange, Extents, Load, Program, Segment, Work, bind

_LATE_S = 1e-3
"""How late a sleep may end by the system's doing alone, some 0.2 ms as a rule."""


def _no_exchange(step: int, work: Exchange) -> None:
    raise LaneError(f"step {step} sends {work.tensor}, but this run has no network.")


def _never(step: int, work: Load) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Do:
    """One function for each kind of work, called as `f(step number, work)` on the lane's thread.

    `still_wants` is asked about a load before it begins when every step it was for has already
    started: True reads it all the same (to keep it for the next run), False skips it.
    """

    compute: Callable[[int, Compute], None]
    load: Callable[[int, Load], None]
    exchange: Callable[[int, Exchange], None] = _no_exchange
    still_wants: Callable[[int, Load], bool] = _never


Advance = Callable[[int, tuple[Span, ...]], Segment]


def execute(
    program: Program,
    do: Do,
    lanes: "Lanes",
    *,
    extents: Extents | None = None,
    advance: Advance | None = None,
    origin_s: float | None = None,
) -> tuple[Span, ...]:
    """Run `program` and return one measured span a step, in the program's order.

    The caller's thread runs the lane `lanes.own`. Times count from `origin_s`, a
    reading of `lanes.clock` (default: now), and so do the steps' latest starts. A load that still runs
    when nothing waits for it any more does not hold up the return: its span is CUT, and its thread
    ends it in the background, before any later step of that lane; `do` must therefore belong to this
    run alone, and `Lanes.drain` comes before its buffers are freed.
    `advance(segment number, its spans)` may replace the coming segment at a barrier.

    Raises LaneError, chained to the first failure on any lane, once all lanes have stopped.
    """
    origin = lanes.clock() if origin_s is None else origin_s
    lanes.check()
    bound = bind(program, extents) if extents is not None and program.extents else program
    spans: list[Span] = []
    last: tuple[Span, ...] = ()
    for number, planned in enumerate(bound.segments):
        segment = advance(number, last) if advance is not None and number else planned
        last = _run_segment(lanes, segment, do, len(spans), origin)
        spans += last
    return tuple(spans)


class Lanes:
    """Persistent threads, one for each of `names`, that sleep between runs; a context manager.

    `own` is the lane that the thread calling `execute` runs itself, without a hand-off. `dilation`
    makes a lane's steps that many times longer by sleeping after them (an emulated slower device), all but
    exchanges, which take what the network takes; it may be replaced between and during runs. The rest goes
    by `effort`, read before and after on the lane's own thread; by default the clock. A thread's CPU time is
    the effort where it does its work alone: what interrupts it then lasts once, not `dilation` times.
    With `is_single`, the calling thread runs the steps of all lanes one after another, as they are listed.
    What the calling thread does outside steps is dilated by `rest_host`, by its CPU time (`cpu_clock`).
    A name that a program uses and this has not is added. One thread runs programs at a time. A forked child
    starts threads of its own.
    """

    def __init__(
        self,
        names: Sequence[str] = ("io",),
        *,
        own: str = "cpu",
        dilation: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        effort: Callable[[], float] | None = None,
        cpu_clock: Callable[[], float] = time.thread_time,
        is_single: bool = False,
    ) -> None:
        self.own = own
        self.dilation: Mapping[str, float] = dilation or {}
        self.clock = clock
        self.sleep = sleep
        self.effort = clock if effort is None else effort
        self.is_single = is_single
        self._inboxes: dict[str, SimpleQueue[_Job]] = {}
        self._threads: list[Thread] = []
        self.cpu_clock = cpu_clock
        self.step_cpu_s = 0.0  # of the threads that called `execute`, within dilated steps
        self._overslept_s: dict[str, float] = {}
        self._late: BaseException | None = None
        self._schedule: tuple[Segment, _Schedule] | None = None
        self._process = os.getpid()
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
        for inbox in self._inboxes.values():
            inbox.put(None)
        for thread in self._threads:
            thread.join()
        self._inboxes.clear()
        self._threads.clear()

    def drain(self) -> None:
        """Return once no lane works on a step that a run left behind: their buffers may then be freed."""
        self._forget_parent()
        for inbox in self._inboxes.values():
            done: SimpleQueue[None] = SimpleQueue()
            inbox.put(done)
            done.get()
        self.check()

    def rest_host(self, since_s: float, slower: float) -> float:
        """Sleep for what the calling thread did outside dilated steps would take longer on a device that is
        `slower` times slower: tokenising, planning, the hand-off between steps.

        `since_s` is what the last call gave, or `cpu_clock() - step_cpu_s` at the start; gives the next one.
        """
        now_s = self.cpu_clock() - self.step_cpu_s
        if slower > 1.0:
            self.rest(self.own, (slower - 1.0) * (now_s - since_s))
        return now_s

    def rest(self, lane: str, seconds: float) -> None:
        """Sleep that long; what a sleep before lasted too long, up to a millisecond, comes off."""
        left_s = seconds - self._overslept_s.get(lane, 0.0)
        start_s = self.clock()
        if left_s > 0:
            self.sleep(left_s)
        self._overslept_s[lane] = min(self.clock() - start_s - left_s, _LATE_S)

    def check(self) -> None:
        """Raise LaneError if a load that outlived its run has failed since."""
        self._forget_parent()
        error, self._late = self._late, None
        if error is not None:
            raise LaneError(f"a load that its run did not wait for failed: {error}") from error

    def _forget_parent(self) -> None:
        """In a forked child, let go of the parent's threads, which do not run there."""
        if self._process != os.getpid():
            self._inboxes, self._threads, self._overslept_s, self._late = {}, [], {}, None
            self._process = os.getpid()

    def _inbox(self, name: str) -> "SimpleQueue[_Job]":
        if name not in self._inboxes:
            self._inboxes[name] = SimpleQueue()
            thread = Thread(target=self._serve, args=(name, self._inboxes[name]), name=f"pliant-{name}")
            thread.daemon = True  # an interpreter that dies with lanes open must not hang
            thread.start()
            self._threads.append(thread)
        return self._inboxes[name]

    def _serve(self, name: str, inbox: "SimpleQueue[_Job]") -> None:
        while (job := inbox.get()) is not None:
            if isinstance(job, SimpleQueue):
                job.put(None)
                continue
            error = _run_lane(job, name)
            if error is not None and job.is_left:
                self._late = error

    def _prepare(self, segment: Segment) -> "_Schedule":
        if self._schedule is None or self._schedule[0] is not segment:
            self._schedule = (segment, _Schedule(segment, self.own if self.is_single else None))
        return self._schedule[1]


class _Schedule:
    """What a segment's lanes need to know, found once and reused while the same segment is run."""

    __slots__ = ("consumers", "lanes", "needs", "rings", "steps", "wishes")

    def __init__(self, segment: Segment, only: str | None) -> None:
        """With `only`, that lane runs all steps."""
        steps = segment.steps
        lane_of = [step.lane if only is None else only for step in steps]
        self.steps = steps
        self.lanes: dict[str, list[int]] = {}
        self.consumers: list[list[int]] = [[] for _ in steps]
        rings: list[set[str]] = [set() for _ in steps]
        for i, step in enumerate(steps):
            self.lanes.setdefault(lane_of[i], []).append(i)
            for j in (*step.after, *step.prefer):
                self.consumers[j].append(i)
                if lane_of[j] != lane_of[i]:
                    rings[j].add(lane_of[i])
        self.rings = [tuple(sorted(r)) for r in rings]
        self.needs = [tuple(j for j in s.after if lane_of[j] != lane_of[i]) for i, s in enumerate(steps)]
        self.wishes = [tuple(j for j in s.prefer if lane_of[j] != lane_of[i]) for i, s in enumerate(steps)]


class _Run:
    """The shared state of one segment's run. Each list slot has one writer; bells only wake."""

    __slots__ = (
        "actions", "bells", "clock", "done", "error", "first", "idle", "is_left",
        "lanes", "origin_s", "own", "schedule", "spans", "started", "starts_s", "still_wants",
    )  # fmt: skip

    def __init__(self, lanes: Lanes, schedule: _Schedule, do: Do, first: int, origin_s: float) -> None:
        n = len(schedule.steps)
        self.lanes = lanes
        self.schedule = schedule
        self.first = first
        self.origin_s = origin_s
        self.own = lanes.own
        self.clock = lanes.clock
        self.actions: dict[type[Work], Callable[[int, Any], None]] = {
            Compute: do.compute,
            Load: do.load,
            Exchange: do.exchange,
        }
        self.still_wants = do.still_wants
        self.done = bytearray(n)
        self.started = bytearray(n)
        self.starts_s = [0.0] * n
        self.spans: list[Span | None] = [None] * n
        self.bells: dict[str, SimpleQueue[None]] = {lane: SimpleQueue() for lane in schedule.lanes}
        self.bells.setdefault(lanes.own, SimpleQueue())
        self.idle: set[str] = set()
        self.error: tuple[int, BaseException] | None = None
        self.is_left = False

    def fail(self, step: int, error: BaseException) -> None:
        if self.error is None:
            self.error = (step, error)
        for bell in self.bells.values():
            bell.put(None)

    def is_late(self, i: int) -> bool:
        """True of a load whose every consumer has started without it."""
        consumers = self.schedule.consumers[i]
        if not consumers or type(self.schedule.steps[i].work) is not Load:
            return False
        return all(self.started[j] for j in consumers)


# What a lane's thread is handed: a run, a queue to answer on (drain), or the end.
_Job = _Run | SimpleQueue[None] | None


def _run_segment(lanes: Lanes, segment: Segment, do: Do, first: int, origin_s: float) -> tuple[Span, ...]:
    schedule = lanes._prepare(segment)
    run = _Run(lanes, schedule, do, first, origin_s)
    others = [lane for lane in schedule.lanes if lane != lanes.own]
    for lane in others:
        lanes._inbox(lane).put(run)
    own_error = _run_lane(run, lanes.own) if lanes.own in schedule.lanes else None
    _await_lanes(run, others)
    run.is_left = True
    if own_error is not None and not isinstance(own_error, Exception):
        raise own_error
    if run.error is not None:
        i, error = run.error
        step = schedule.steps[i]
        raise LaneError(f"step {first + i} ({step.work}) failed on lane {step.lane}: {error}") from error
    now = run.clock() - origin_s
    return tuple(span or _left_span(run, i, now) for i, span in enumerate(run.spans))


def _await_lanes(run: _Run, others: Sequence[str]) -> None:
    bell = run.bells[run.own]
    try:
        while not all(lane in run.idle or (run.error is None and _only_late(run, lane)) for lane in others):
            bell.get()
    except BaseException as error:  # Ctrl-C while waiting
        run.fail(0, error)
        raise


def _only_late(run: _Run, lane: str) -> bool:
    """True when all that is left on `lane` are loads that nothing waits for any more."""
    return all(run.done[i] or run.is_late(i) for i in run.schedule.lanes[lane])


def _left_span(run: _Run, i: int, now: float) -> Span:
    lane = run.schedule.steps[i].lane
    if run.started[i]:
        return Span(run.first + i, lane, run.starts_s[i], now, SpanState.CUT)
    return Span(run.first + i, lane, now, now, SpanState.SKIPPED)


def _run_lane(run: _Run, lane: str) -> BaseException | None:
    """Run one lane's steps in order; returns what stopped it, None when nothing did."""
    step = 0
    try:
        for step in run.schedule.lanes[lane]:
            if not _await(run, lane, step):
                return None
            _run_step(run, step)
    except BaseException as error:  # noqa: BLE001 - every failure, Ctrl-C too, must stop the other lanes
        run.fail(step, error)
        return error
    finally:
        run.idle.add(lane)
        run.bells[run.own].put(None)
    return None


def _await(run: _Run, lane: str, i: int) -> bool:
    """Wait for what step i needs, then until its latest start for what it prefers; False on failure."""
    done = run.done
    bell = run.bells[lane]
    for j in run.schedule.needs[i]:
        while not done[j]:
            if run.error is not None:
                return False
            bell.get()
    wishes = run.schedule.wishes[i]
    if wishes:
        latest = run.schedule.steps[i].latest_start_s
        for j in wishes:
            while not done[j]:
                if run.error is not None:
                    return False
                if latest is None:
                    bell.get()
                    continue
                left_s = run.origin_s + latest - run.clock()
                if left_s <= 0:
                    return run.error is None
                try:
                    bell.get(timeout=left_s)
                except Empty:
                    break
    return run.error is None


def _is_skipped(run: _Run, i: int, work: Load, now: float) -> bool:
    latest = run.schedule.steps[i].latest_start_s
    if latest is not None and now - run.origin_s > latest:
        return True
    return run.is_late(i) and (run.is_left or not run.still_wants(run.first + i, work))


def _run_step(run: _Run, i: int) -> None:
    work, lane = run.schedule.steps[i].work, run.schedule.steps[i].lane
    clock = run.clock
    start = clock()
    state = SpanState.RAN
    if type(work) is Load and _is_skipped(run, i, work, start):
        state = SpanState.SKIPPED
    else:
        run.starts_s[i] = start - run.origin_s
        run.started[i] = 1
        slower = 1.0 if type(work) is Exchange else run.lanes.dilation.get(lane, 1.0)
        if slower > 1.0:
            _run_dilated(run, i, work, slower)
        else:
            run.actions[type(work)](run.first + i, work)
    end = clock()
    run.spans[i] = Span(run.first + i, lane, start - run.origin_s, end - run.origin_s, state)
    run.done[i] = 1
    for other in run.schedule.rings[i]:
        run.bells[other].put(None)


def _run_dilated(run: _Run, i: int, work: Work, slower: float) -> None:
    """Run a step, then sleep until it has lasted `slower` times what it took."""
    lanes, lane = run.lanes, run.schedule.steps[i].lane
    cpu_s, effort_s = lanes.cpu_clock(), lanes.effort()
    run.actions[type(work)](run.first + i, work)
    effort_s = lanes.effort() - effort_s
    if lane == lanes.own:
        lanes.step_cpu_s += lanes.cpu_clock() - cpu_s
    lanes.rest(lane, (slower - 1.0) * effort_s)
