"""Run a program on real threads, one per lane; `StepFunctions` do the work of the steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from pliant.errors import LaneError
from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Compute, Exchange, Extents, Load, Program, Segment, Step, Work, bind
from pliant.run.lane_order import LaneOrder
from pliant.run.lanes import Lanes


def _no_exchange(step: int, work: Exchange) -> None:
    raise LaneError(f"step {step} sends {work.tensor}, but this run has no network.")


def _no_load(step: int, work: Load) -> None:
    raise LaneError(f"step {step} reads layer {work.layer}, but this run has no store.")


def _never(step: int, work: Load) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class StepFunctions:
    """One function for each kind of work, called as `f(step number, work)` on the lane's thread.

    `still_wants` is called before a load whose consumer steps have all started already: True reads the data
    anyway (to keep them for the next run), False skips the load. `exchange` may return the arrival time of
    the received data, by the lanes' clock. `on_end` is called at the end of each step, also in a segment that
    fails later.
    """

    compute: Callable[[int, Compute], None]
    load: Callable[[int, Load], None] = _no_load
    exchange: Callable[[int, Exchange], float | None] = _no_exchange
    still_wants: Callable[[int, Load], bool] = _never
    on_end: Callable[[Span], None] | None = None


NextSegment = Callable[[int, tuple[Span, ...]], Segment | None]
"""Called after each segment with the number of the next one and the last spans; returns the next segment, or
None to end the run.
"""
SegmentRetry = Callable[[int, LaneError], Segment]
"""Called after a failure; returns the segment that replaces the failed one of this number, or raises."""


def execute(
    program: Program,
    functions: StepFunctions,
    lanes: Lanes,
    *,
    extents: Extents | None = None,
    advance: NextSegment | None = None,
    repeat: SegmentRetry | None = None,
    origin_s: float | None = None,
) -> tuple[Span, ...]:
    """Run `program` and return one measured span a step, in the program's order.

    The caller's thread runs the lane `lanes.own`. Times count from `origin_s`, a
    reading of `lanes.clock` (default: now), and so do the steps' latest starts. A load that still runs when
    no step waits for it does not delay the return: its span is CUT, and its thread finishes it in the
    background before any later step of that lane. Therefore `functions` must belong to this run alone, and
    its buffers may be freed only after `Lanes.drain`. `advance` may replace the next segment at a barrier, or
    append one after the last; `repeat` may replace a failed segment, whose spans are discarded.

    Raises LaneError, chained to the first failure on any lane, once all lanes have stopped.
    """
    origin = lanes.clock() if origin_s is None else origin_s
    lanes.check()
    bound = bind(program, extents) if extents is not None and program.extents else program
    planned = dict(enumerate(bound.segments))
    spans: list[Span] = []
    number, segment = 0, planned.get(0)
    while segment is not None:
        order = lanes.order_of(segment)
        run = _run_inline if order.only_lane == lanes.own else _run_lanes
        try:
            last = run(lanes, order, functions, len(spans), origin)
        except LaneError as error:
            if repeat is None:
                raise
            segment = repeat(number, error)
            continue
        spans += last
        number += 1
        segment = planned.get(number) if advance is None else advance(number, last)
    return tuple(spans)


def _run_inline(
    lanes: Lanes, order: LaneOrder, functions: StepFunctions, first: int, origin_s: float
) -> tuple[Span, ...]:
    """Run a segment on the caller's thread alone: no step waits, so no state is shared."""
    spans: list[Span] = []
    for i, step in enumerate(order.steps, first):
        work, state = step.work, SpanState.RAN
        start_s = lanes.clock() - origin_s
        if step.latest_start_s is not None and type(work) is Load and start_s > step.latest_start_s:
            state, end_s = SpanState.SKIPPED, lanes.clock() - origin_s
        else:
            try:
                end_s = _act(lanes, step.lane, functions, i, work) - origin_s
            except Exception as error:
                raise _step_error(i, step, error) from error
        spans.append(Span(i, step.lane, min(start_s, end_s), end_s, state))
        if functions.on_end is not None:
            functions.on_end(spans[-1])
    return tuple(spans)


def _step_error(number: int, step: Step, error: BaseException) -> LaneError:
    return LaneError(f"step {number} ({step.work}) failed on lane {step.lane}: {error}")


def _act(lanes: Lanes, lane: str, functions: StepFunctions, number: int, work: Work) -> float:
    """Do a step's work on `lane`, at the pace of the emulated device; returns the end time."""
    if type(work) is Exchange:
        arrived_s = functions.exchange(number, work)
        return lanes.clock() if arrived_s is None else arrived_s
    if type(work) is Load:  # whose reads are slowed one by one
        functions.load(number, work)
        return lanes.clock()
    assert type(work) is Compute
    slower = lanes.emulated.dilation.factor(work)
    if slower > 1.0:
        step = partial(functions.compute, number, work)
        lanes.emulated.compute(lane, slower, work, step, is_host=lane == lanes.own)
    else:
        functions.compute(number, work)
    return lanes.clock()


class _Run:
    """The shared state of one segment's run. Each list slot has one writer; queues in `wakeups` only wake
    threads.
    """

    __slots__ = (
        "clock", "done", "error", "first", "functions", "idle", "is_left",
        "lanes", "order", "origin_s", "own", "spans", "started", "starts_s", "wakeups",
    )  # fmt: skip

    def __init__(
        self, lanes: Lanes, order: LaneOrder, functions: StepFunctions, first: int, origin_s: float
    ) -> None:
        n = len(order.steps)
        self.lanes = lanes
        self.order = order
        self.first = first
        self.origin_s = origin_s
        self.own = lanes.own
        self.clock = lanes.clock
        self.functions = functions
        self.done = bytearray(n)
        self.started = bytearray(n)
        self.starts_s = [0.0] * n
        self.spans: list[Span | None] = [None] * n
        self.wakeups: dict[str, SimpleQueue[None]] = {lane: SimpleQueue() for lane in order.lanes}
        self.wakeups.setdefault(lanes.own, SimpleQueue())
        self.idle: set[str] = set()
        self.error: tuple[int, BaseException] | None = None
        self.is_left = False

    def fail(self, step: int, error: BaseException) -> None:
        if self.error is None:
            self.error = (step, error)
        for wakeup in self.wakeups.values():
            wakeup.put(None)

    def is_late(self, i: int) -> bool:
        """True for a load whose consumers have all started without it."""
        consumers = self.order.consumers[i]
        if not consumers or type(self.order.steps[i].work) is not Load:
            return False
        return all(self.started[j] for j in consumers)


def _run_lanes(
    lanes: Lanes, order: LaneOrder, functions: StepFunctions, first: int, origin_s: float
) -> tuple[Span, ...]:
    run = _Run(lanes, order, functions, first, origin_s)
    others = [lane for lane in order.lanes if lane != lanes.own]
    for lane in others:
        lanes.submit(lane, partial(_run_thread, run, lane))
    own_error = _run_lane(run, lanes.own) if lanes.own in order.lanes else None
    _await_lanes(run, others)
    run.is_left = True
    if own_error is not None and not isinstance(own_error, Exception):
        raise own_error
    if run.error is not None:
        i, error = run.error
        raise _step_error(first + i, order.steps[i], error) from error
    now = run.clock() - origin_s
    return tuple(span or _left_span(run, i, now) for i, span in enumerate(run.spans))


def _await_lanes(run: _Run, others: Sequence[str]) -> None:
    wakeup = run.wakeups[run.own]
    try:
        while not all(lane in run.idle or (run.error is None and _only_late(run, lane)) for lane in others):
            wakeup.get()
    except BaseException as error:  # Ctrl-C while waiting
        run.fail(0, error)
        raise


def _only_late(run: _Run, lane: str) -> bool:
    """True when only loads that no step waits for are left on `lane`."""
    return all(run.done[i] or run.is_late(i) for i in run.order.lanes[lane])


def _left_span(run: _Run, i: int, now: float) -> Span:
    lane = run.order.steps[i].lane
    if run.started[i]:
        return Span(run.first + i, lane, run.starts_s[i], now, SpanState.CUT)
    return Span(run.first + i, lane, now, now, SpanState.SKIPPED)


def _run_thread(run: _Run, lane: str) -> None:
    """Run one lane on its own thread. A failure after the run has returned is raised by the next
    `Lanes.check`.
    """
    error = _run_lane(run, lane)
    if error is not None and run.is_left:
        run.lanes.record_late_failure(error)


def _run_lane(run: _Run, lane: str) -> BaseException | None:
    """Run one lane's steps in order; returns the error that stopped it, or None."""
    step = 0
    try:
        for step in run.order.lanes[lane]:
            if not _await(run, lane, step):
                return None
            _run_step(run, step)
    except BaseException as error:  # noqa: BLE001 - every failure, Ctrl-C too, must stop the other lanes
        run.fail(step, error)
        return error
    finally:
        run.idle.add(lane)
        run.wakeups[run.own].put(None)
    return None


def _await(run: _Run, lane: str, i: int) -> bool:
    """Wait for the steps that step i needs, then, until its latest start, for those it prefers; False on
    failure.
    """
    done = run.done
    wakeup = run.wakeups[lane]
    for j in run.order.needs[i]:
        while not done[j]:
            if run.error is not None:
                return False
            wakeup.get()
    preferences = run.order.preferences[i]
    if preferences:
        latest = run.order.steps[i].latest_start_s
        for j in preferences:
            while not done[j]:
                if run.error is not None:
                    return False
                if latest is None:
                    wakeup.get()
                    continue
                left_s = run.origin_s + latest - run.clock()
                if left_s <= 0:
                    return run.error is None
                try:
                    wakeup.get(timeout=left_s)
                except Empty:
                    break
    return run.error is None


def _is_skipped(run: _Run, i: int, work: Load, now: float) -> bool:
    latest = run.order.steps[i].latest_start_s
    if latest is not None and now - run.origin_s > latest:
        return True
    return run.is_late(i) and (run.is_left or not run.functions.still_wants(run.first + i, work))


def _run_step(run: _Run, i: int) -> None:
    work, lane = run.order.steps[i].work, run.order.steps[i].lane
    clock = run.clock
    start = clock()
    state = SpanState.RAN
    if type(work) is Load and _is_skipped(run, i, work, start):
        state, end = SpanState.SKIPPED, clock()
    else:
        run.starts_s[i] = start - run.origin_s
        run.started[i] = 1
        end = _act(run.lanes, lane, run.functions, run.first + i, work)
    span = Span(run.first + i, lane, min(start, end) - run.origin_s, end - run.origin_s, state)
    run.spans[i] = span
    if run.functions.on_end is not None:
        run.functions.on_end(span)
    run.done[i] = 1
    for other in run.order.wakes[i]:
        run.wakeups[other].put(None)
