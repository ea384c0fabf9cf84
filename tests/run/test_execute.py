"""The executor on real threads: order, anytime, failure, stragglers. Events decide the timing, not sleeps."""

import os
import signal
import threading
import weakref
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import LaneError, StoreError
from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Compute, Exchange, Load, Program, Segment, SliceRun, Step
from pliant.run.execute import StepFunctions, execute
from pliant.run.lanes import Lanes

PATIENCE_S = 30.0


def load(layer: int, part: int = 0) -> Load:
    return Load(layer, (SliceRun(layer, part, 0, 1),), 64)


def one_segment(*steps: Step) -> Program:
    return Program((Segment(steps),), (), ())


def layer(k: int) -> Compute:
    return Compute("layer", k, 1, 1)


def random_steps(rng: np.random.Generator) -> tuple[Step, ...]:
    steps = []
    for i in range(int(rng.integers(1, 25))):
        lane = ["cpu", "io", "net:a->b"][int(rng.integers(3))]
        work = {"cpu": layer(i), "io": load(i), "net:a->b": Exchange("x", i, "a", "b")}[lane]
        picks = rng.permutation(i)[: int(rng.integers(0, 4))].tolist()
        cut = int(rng.integers(0, len(picks) + 1))
        steps.append(Step(lane, work, tuple(picks[:cut]), tuple(picks[cut:])))
    return tuple(steps)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_every_step_runs_once_after_all_it_waits_for(seed: int) -> None:
    """The executor keeps the same rules as the simulator: lanes in order, needs and preferences ended."""
    rng = np.random.default_rng(seed)
    steps = random_steps(rng)
    order: list[int] = []
    with Lanes(("io",)) as lanes:
        functions = StepFunctions(
            compute=lambda i, work: order.append(i),
            load=lambda i, work: order.append(i),
            exchange=lambda i, work: order.append(i),
        )
        cut = int(rng.integers(0, len(steps) + 1))
        second = tuple(Step(s.lane, s.work) for s in steps[cut:])
        spans = execute(Program((Segment(steps[:cut]), Segment(second)), (), ()), functions, lanes)
    assert sorted(order) == list(range(len(steps)))
    assert [s.step for s in spans] == list(range(len(steps)))
    for i, step in enumerate(steps[:cut]):
        assert spans[i].state is SpanState.RAN
        assert all(order.index(j) < order.index(i) for j in (*step.after, *step.prefer))
        assert all(spans[j].end_s <= spans[i].start_s for j in (*step.after, *step.prefer))
    assert all(order.index(i) < order.index(j) for i in range(cut) for j in range(cut, len(steps)))
    for lane in {s.lane for s in steps}:
        for a, b in pairwise(s for s in spans if s.lane == lane):
            assert a.end_s <= b.start_s


def test_lanes_really_run_beside_each_other() -> None:
    """A load and a compute step that wait for each other's start can only end on two threads."""
    meet = threading.Barrier(2, timeout=PATIENCE_S)
    program = one_segment(Step("io", load(0)), Step("cpu", layer(0)))
    with Lanes() as lanes:
        execute(program, StepFunctions(lambda i, w: meet.wait(), lambda i, w: meet.wait()), lanes)


def test_compute_runs_on_the_callers_thread() -> None:
    """No hand-off: a wake-up costs more than a step may."""
    seen = {}
    program = one_segment(Step("io", load(0)), Step("cpu", layer(0)))

    def note(i: int, work: object) -> None:
        seen[i] = threading.current_thread().name

    with Lanes() as lanes:
        execute(program, StepFunctions(note, note), lanes)
        first = seen[0]
        execute(program, StepFunctions(note, note), lanes)
    assert seen == {0: "pliant-io", 1: threading.current_thread().name}
    assert first == seen[0]


@pytest.mark.parametrize("lane", ["io", "cpu"])
def test_a_failing_lane_stops_the_others_and_the_first_error_is_chained(lane: str) -> None:
    """Nobody waits for a step that will never end, and the user sees what really happened."""
    program = one_segment(
        Step("io", load(0)),
        Step("cpu", layer(0), (0,)),
        Step("io", load(1), (1,)),
        Step("cpu", layer(1), (2,)),
    )
    ran = []

    def fail_at(step: int, broken: int) -> None:
        ran.append(step)
        if step == broken:
            raise StoreError("layer 0 is damaged")

    broken = 0 if lane == "io" else 1
    with Lanes() as lanes:
        functions = StepFunctions(lambda i, w: fail_at(i, broken), lambda i, w: fail_at(i, broken))
        with pytest.raises(
            LaneError, match=f"step {broken} .* failed on lane {lane}: layer 0 is damaged"
        ) as e:
            execute(program, functions, lanes)
        assert isinstance(e.value.__cause__, StoreError)
        assert ran == list(range(broken + 1))
        # The lanes are usable again.
        fine = StepFunctions(lambda i, w: None, lambda i, w: None)
        assert len(execute(program, fine, lanes)) == 4


def test_a_keyboard_interrupt_passes_through_unwrapped() -> None:
    """Ctrl-C is the user's, not a failing lane's."""

    def interrupt(i: int, work: Compute) -> None:
        raise KeyboardInterrupt

    program = one_segment(Step("cpu", layer(0)), Step("io", load(0), (0,)))
    with Lanes() as lanes, pytest.raises(KeyboardInterrupt):
        execute(program, StepFunctions(interrupt, lambda i, w: None), lanes)


# Step 3 holds the layer back until the first refinement is being read, so that no race decides.
ANYTIME = (
    Step("io", load(0, 0)),
    Step("io", load(0, 2)),
    Step("io", load(0, 3)),
    Step("net:a->b", Exchange("x", 0, "a", "b")),
    Step("cpu", layer(0), (0, 3), (1, 2), 0.0),
    Step("io", load(1, 0)),
    Step("cpu", layer(1), (5,)),
)


class Slow:
    """A store whose read of the first refinement begins, then waits until it is told to go on."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.read: list[int] = []
        self.error = error

    def load(self, i: int, work: Load) -> None:
        if work.runs[0].part == 2:
            self.begun.set()
            assert self.go.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
        self.read.append(i)

    def exchange(self, i: int, work: Exchange) -> None:
        assert self.begun.wait(PATIENCE_S)


def test_a_layer_does_not_wait_for_refinements_past_its_latest_start() -> None:
    """Late IO costs fidelity, not the deadline: the layer runs without them, and queued ones are skipped."""
    store = Slow()
    seen: list[tuple[int, ...]] = []

    def compute(i: int, work: Compute) -> None:
        seen.append(tuple(store.read))
        store.go.set()

    with Lanes() as lanes:
        spans = execute(one_segment(*ANYTIME), StepFunctions(compute, store.load, store.exchange), lanes)
    assert seen == [(0,), (0, 1, 5)]
    assert [s.state for s in spans][:3] == [SpanState.RAN, SpanState.RAN, SpanState.SKIPPED]


def test_refinements_that_arrive_in_time_are_waited_for() -> None:
    """Before its latest start a layer takes what the plan promised it."""
    store = Slow()
    store.go.set()
    steps = list(ANYTIME)
    steps[4] = Step("cpu", layer(0), (0, 3), (1, 2), PATIENCE_S)
    seen: list[set[int]] = []
    with Lanes() as lanes:
        functions = StepFunctions(lambda i, w: seen.append(set(store.read)), store.load, store.exchange)
        execute(one_segment(*steps), functions, lanes)
    assert seen[0] >= {0, 1, 2}


def test_a_late_load_is_read_all_the_same_when_the_run_still_wants_it() -> None:
    """Back-to-back runs keep what they load: a late plane serves the next run."""
    store = Slow()
    asked = []

    def still_wants(i: int, work: Load) -> bool:
        asked.append(i)
        return True

    with Lanes() as lanes:
        functions = StepFunctions(lambda i, w: store.go.set(), store.load, store.exchange, still_wants)
        execute(one_segment(*ANYTIME), functions, lanes)
        lanes.drain()
    assert asked == [2]
    assert store.read == [0, 1, 2, 5]


def test_the_answer_does_not_wait_for_a_read_that_nobody_needs_any_more() -> None:
    """A straggling refinement must not miss the deadline at the very end; drain waits for it."""
    store = Slow()
    with Lanes() as lanes:
        program = one_segment(*ANYTIME[:5])
        spans = execute(program, StepFunctions(lambda i, w: None, store.load, store.exchange), lanes)
        assert [s.state for s in spans[1:3]] == [SpanState.CUT, SpanState.SKIPPED]
        assert store.read == [0]
        store.go.set()
        lanes.drain()
        assert store.read == [0, 1]
        assert len(execute(program, StepFunctions(lambda i, w: None, store.load, store.exchange), lanes)) == 5


def test_a_straggler_that_fails_is_reported_by_the_next_run() -> None:
    """A damaged refinement is never swallowed."""
    store = Slow(StoreError("plane 2 is damaged"))
    with Lanes() as lanes:
        execute(
            one_segment(*ANYTIME[:5]), StepFunctions(lambda i, w: None, store.load, store.exchange), lanes
        )
        store.go.set()
        with pytest.raises(LaneError, match="plane 2 is damaged"):
            lanes.drain()


def test_a_single_thread_runs_all_lanes_in_the_order_of_steps() -> None:
    """What a member of a cluster does: no step waits for another thread to wake up."""
    ran: list[tuple[int, int]] = []

    def note(i: int, w: object) -> None:
        ran.append((i, threading.get_ident()))

    before = threading.active_count()
    steps = (
        Step("a/cpu", layer(0)),
        Step("net:a->b", Exchange("x", 4, "a", "b"), after=(0,)),
        Step("net:b->a", Exchange("y", 4, "b", "a")),
        Step("a/cpu", layer(1), after=(2,)),
    )
    with Lanes((), own="a/cpu", is_single=True) as lanes:
        spans = execute(one_segment(*steps), StepFunctions(note, note, note), lanes)
        assert threading.active_count() == before
    assert ran == [(i, threading.get_ident()) for i in range(4)]
    assert [s.lane for s in spans] == [s.lane for s in steps]


def test_times_count_from_the_origin_the_caller_names() -> None:
    """A request's clock starts at its text, before the program does."""
    with Lanes((), clock=lambda: 5.0) as lanes:
        program = one_segment(Step("cpu", layer(0)))
        spans = execute(program, StepFunctions(lambda i, w: None, lambda i, w: None), lanes, origin_s=3.0)
    assert spans[0].start_s == 2.0


def test_closing_ends_every_thread() -> None:
    """Sessions come and go in one process; their threads go with them."""
    before = threading.active_count()
    lanes = Lanes(("io", "net:a->b"))
    assert threading.active_count() == before + 2
    lanes.close()
    lanes.close()
    assert threading.active_count() == before


def test_lanes_that_are_lost_end_their_threads() -> None:
    """A session that a notebook opens again and again is not closed by anybody."""
    before = threading.enumerate()
    lanes = Lanes(("io",))
    (thread,) = set(threading.enumerate()) - set(before)
    del lanes
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_lane_that_waits_keeps_nothing_of_its_last_step() -> None:
    """That holds a session's weights, tens of megabytes."""

    class Job:
        def __call__(self) -> None: ...

    gone, job = threading.Event(), Job()
    watched = weakref.ref(job, lambda _: gone.set())
    with Lanes(("io",)) as lanes:
        lanes.submit("io", job)
        del job
        assert gone.wait(PATIENCE_S)
        assert watched() is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_runs_on_lanes_of_its_own() -> None:
    """The parent's threads do not exist there: a load handed to them would never end."""
    step = Step("io", Load(0, (SliceRun(0, 0, 0, 1),), 1, 1))
    with Lanes(("io",)) as lanes:
        assert _spans_of_load(lanes, step) == 1
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # what hangs dies of it
            lanes.drain()
            os._exit(_spans_of_load(lanes, step))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 1
        assert _spans_of_load(lanes, step) == 1


def _spans_of_load(lanes: Lanes, step: Step) -> int:
    compute = Step("cpu", Compute("head"), (0,))
    return sum(
        span.lane == "io"
        for span in execute(
            Program((Segment((step, compute)),)),
            StepFunctions(lambda i, work: None, lambda i, work: None),
            lanes,
        )
    )


def test_a_lane_alone_keeps_the_rules_of_many() -> None:
    """Without other threads there is a shorter way: spans, skipped loads and errors are the same."""
    now = iter(float(t) for t in range(100))
    steps = (
        Step("cpu", load(0), latest_start_s=1.0),
        Step("cpu", load(1), latest_start_s=2.0),
        Step("cpu", layer(0), (0,), (1,), 9.0),
    )
    with Lanes((), clock=lambda: next(now)) as lanes:
        spans = execute(one_segment(*steps), StepFunctions(lambda i, w: None, lambda i, w: None), lanes)
    assert spans == (
        Span(0, "cpu", 1.0, 2.0),
        Span(1, "cpu", 3.0, 4.0, SpanState.SKIPPED),
        Span(2, "cpu", 5.0, 6.0),
    )
    with Lanes(()) as lanes, pytest.raises(LaneError, match=r"step 0 \(layer 0 x1 .* failed on lane cpu: no"):
        execute(one_segment(Step("cpu", layer(0))), StepFunctions(_fail), lanes)


def _fail(step: int, work: Compute) -> None:
    raise StoreError("no")
