"""The simulator against a hand-made timeline, a brute-force clock and its own invariants."""

from collections.abc import Collection
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import ProfileError
from pliant.ir.cost import (
    EMBED,
    HEAD,
    TOKENISE,
    Cost,
    CostTable,
    LayerCost,
    Span,
    SpanState,
    cost_table,
    latency,
    simulate,
)
from pliant.ir.device import DeviceProfile, LayerTime, Overhead, emulate
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.program import Compute, Exchange, Load, Program, Segment, SliceRun, Step, Work
from pliant.ir.times.timing import Timing
from pliant.plan.submodel.prices import layer_seconds

TABLE = CostTable((LayerCost(4, 1.0, 2.0),), Link(0.0, 100.0), 0.0, 0.5, 0.25)


def load(layer: int, n_bytes: int) -> Load:
    return Load(layer, (SliceRun(layer, 0, 0, 1),), n_bytes)


def times(*steps: Step, cost: Cost = TABLE) -> list[tuple[float, float]]:
    spans = simulate(Program((Segment(steps),)), cost, {"tokens": 4})
    return [(round(s.start_s, 9), round(s.end_s, 9)) for s in spans]


def test_lanes_overlap_and_wait_for_what_they_need() -> None:
    """The next layer loads while one computes; compute runs at half speed beside IO."""
    got = times(
        Step("io", load(0, 100)),
        Step("cpu", Compute("layer", 0, 4), after=(0,)),
        Step("io", load(1, 100)),
        Step("cpu", Compute("layer", 1, 4), after=(2,)),
    )
    # IO 0 ends at 1; layer 0 runs at half speed beside IO 1 until 2, then needs another half second alone.
    assert got == [(0, 1), (1, 2.5), (1, 2), (2.5, 3.5)]


def test_io_slows_beside_compute_only_while_compute_runs() -> None:
    """Interference is piecewise: it ends when the other lane does."""
    slow_io = CostTable((LayerCost(4, 1.0, 1.0),), Link(0.0, 100.0), io_slowdown=2.0)
    got = times(Step("cpu", Compute("layer", 0, 4)), Step("io", load(0, 100)), cost=slow_io)
    assert got == [(0, 1), (0, 1.5)]


def test_preferred_work_is_waited_for_until_the_latest_start() -> None:
    """Anytime: the plan expects refinements, and knows when it would give up on them."""
    steps = (Step("io", load(0, 20)), Step("io", load(0, 300)))
    late = Step("cpu", Compute("layer", 0, 4), (0,), (1,), 1.0)
    assert times(*steps, late)[2][0] == 1.0
    patient = Step("cpu", Compute("layer", 0, 4), (0,), (1,))
    assert times(*steps, patient)[2][0] == 3.2
    assert times(*steps, Step("cpu", Compute("layer", 0, 4), (1,), (0,), 0.1))[2][0] == 3.2


def test_a_load_that_nobody_waits_for_any_more_is_skipped() -> None:
    """The simulator must foresee what the executor does with late refinements."""
    steps = (
        Step("io", load(0, 20)),
        Step("io", load(0, 300)),
        Step("io", load(0, 300)),
        Step("cpu", Compute("layer", 0, 4), (0,), (1, 2), 1.0),
        Step("io", load(1, 100)),
    )
    spans = simulate(Program((Segment(steps),)), TABLE, {"tokens": 4})
    assert [s.state for s in spans] == [SpanState.RAN] * 2 + [SpanState.SKIPPED] + [SpanState.RAN] * 2
    assert spans[2].seconds == 0
    assert spans[4].start_s == pytest.approx(3.2)


def test_a_read_that_nobody_needs_any_more_does_not_make_the_answer_late() -> None:
    """What is still being read when the last layer ends is cut, as the executor leaves it behind."""
    steps = (
        Step("io", load(0, 20)),
        Step("io", load(0, 900)),
        Step("io", load(0, 900)),
        Step("cpu", Compute("layer", 0, 4), (0,), (1, 2), 1.0),
    )
    spans = simulate(Program((Segment(steps),)), TABLE, {"tokens": 4})
    assert [s.state for s in spans] == [SpanState.RAN, SpanState.CUT, SpanState.SKIPPED, SpanState.RAN]
    assert latency(spans) == spans[3].end_s == pytest.approx(3.0)


def test_segments_wait_for_each_other() -> None:
    """A segment can be repeated or replanned, so nothing of the next one starts before its end."""
    first = Segment((Step("io", load(0, 300)), Step("cpu", Compute("embed"))))
    second = Segment((Step("cpu", Compute("head")),))
    spans = simulate(Program((first, second)), TABLE, {"tokens": 1})
    assert [s.step for s in spans] == [0, 1, 2]
    assert spans[2].start_s == 3.0


def test_work_without_a_measured_cost_is_refused() -> None:
    """A guess would be a promise nobody measured."""
    with pytest.raises(ProfileError, match="width 7"):
        times(Step("cpu", Compute("layer", 0, 7)))
    with pytest.raises(ProfileError, match="not measured"):
        times(Step("net:a->b", Exchange("x", 4, "a", "b")))


class Fixed:
    """Costs from a list; a lane runs slower while others are busy."""

    def __init__(self, seconds: list[float], slower: float) -> None:
        self.by_layer = seconds
        self.slower = slower

    def seconds(self, work: Work, busy: Collection[str] = ()) -> float:
        assert isinstance(work, Compute)
        assert work.layer is not None
        return self.by_layer[work.layer] * (self.slower if busy else 1.0)

    def link(self, lane: str, busy: Collection[str] = ()) -> Link:
        raise AssertionError(f"nothing moves on {lane} beside {busy}")

    def message_overhead(self, work: Exchange) -> tuple[float, float]:
        return 0.0, 0.0


def random_program(rng: np.random.Generator) -> Program:
    steps = []
    for i in range(int(rng.integers(1, 14))):
        picks = rng.permutation(i)[: int(rng.integers(0, 3))].tolist()
        cut = int(rng.integers(0, len(picks) + 1))
        prefer = tuple(picks[cut:])
        latest = float(rng.uniform(0, 10)) if prefer and rng.integers(2) else None
        lane = f"lane{rng.integers(3)}"
        steps.append(Step(lane, Compute("k", i), tuple(picks[:cut]), prefer, latest))
    return Program((Segment(tuple(steps)),))


def clockwork(program: Program, cost: Fixed, dt: float) -> list[tuple[float, float]]:
    """The same semantics by ticking a clock: the independent reference."""
    steps = program.steps
    left = [cost.by_layer[i] for i in range(len(steps))]
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    now = 0.0
    while len(end) < len(steps):
        for lane in {s.lane for s in steps}:
            mine = [i for i, s in enumerate(steps) if s.lane == lane and i not in end]
            if not mine or mine[0] in start or any(j not in end for j in steps[mine[0]].after):
                continue
            s = steps[mine[0]]
            if all(j in end for j in s.prefer) or (s.latest_start_s is not None and now >= s.latest_start_s):
                start[mine[0]] = now
        running = [i for i in start if i not in end]
        for i in running:
            left[i] -= dt / (cost.slower if len(running) > 1 else 1.0)
        now += dt
        for i in running:
            if left[i] <= 0:
                end[i] = now
    return [(start[i], end[i]) for i in range(len(steps))]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_simulation_equals_a_ticking_clock(seed: int) -> None:
    """Piecewise speeds, lanes, needs, preferences and latest starts, all at once, against brute force."""
    rng = np.random.default_rng(seed)
    program = random_program(rng)
    cost = Fixed(rng.uniform(0.1, 2, len(program.steps)).tolist(), float(rng.choice([1.0, 1.7])))
    dt = 2e-3
    got = simulate(program, cost, {"tokens": 1})
    want = clockwork(program, cost, dt)
    # A tick is lost at most once a step, and a late start may tip over one latest start.
    if not any(s.latest_start_s for s in program.steps):
        for span, (start, end) in zip(got, want, strict=True):
            assert span.start_s == pytest.approx(start, abs=4 * dt * len(want))
            assert span.end_s == pytest.approx(end, abs=4 * dt * len(want))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_simulation_keeps_every_rule(seed: int) -> None:
    """Lanes in order and never doubly busy, needs ended, preferences ended or given up, every step once."""
    rng = np.random.default_rng(seed)
    program = random_program(rng)
    cost = Fixed(rng.uniform(0.0, 2, len(program.steps)).tolist(), 1.3)
    spans = simulate(program, cost, {"tokens": 1})
    assert [s.step for s in spans] == list(range(len(program.steps)))
    for i, (span, step) in enumerate(zip(spans, program.steps, strict=True)):
        assert span.lane == step.lane
        assert span.seconds >= cost.by_layer[i] - 1e-9
        assert all(spans[j].end_s <= span.start_s + 1e-12 for j in step.after)
        if step.latest_start_s is None or span.start_s < step.latest_start_s:
            assert all(spans[j].end_s <= span.start_s + 1e-12 for j in step.prefer)
    for lane in program.lanes:
        for a, b in pairwise([s for s in spans if s.lane == lane]):
            assert a.end_s <= b.start_s + 1e-12
    assert latency(spans) == max(s.end_s for s in spans)


def profile() -> DeviceProfile:
    def t(x: float) -> Timing:
        return Timing(x, 1.5 * x)

    return DeviceProfile(
        cpu="test", n_threads=2, memory_bytes=1 << 30, frequency_Hz=None, frequency_reason="a test",
        subject="6x12", io_method="O_DIRECT", reads=(), disk=Link(1e-4, 1e9), disk_p95=Link(2e-4, 5e8),
        layers=tuple(LayerTime(n, m, t(n * m * 1e-5), t(n * m * 1.2e-5)) for n in (16, 64) for m in (3, 12)),
        overheads=tuple(Overhead(n, t(1e-4), t(n * 1e-6), t(2e-5)) for n in (16, 64)),
        io_slowdown=1.1,
    )  # fmt: skip


def test_costs_between_measured_lengths_are_interpolated() -> None:
    """Lengths are bucketed for profiling: between two of them time is bounded by the line through both."""
    table = cost_table(profile(), 40, "median")
    assert layer_seconds(table, 3, with_io=False) == pytest.approx(40 * 3e-5)
    assert layer_seconds(table, 3, with_io=True) == pytest.approx(40 * 3.6e-5)
    assert table.seconds(EMBED) == pytest.approx(40e-6)
    p95 = cost_table(profile(), 5, "p95")
    assert layer_seconds(p95, 12, with_io=False) == pytest.approx(16 * 12e-5 * 1.5)
    assert p95.link("io") == Link(2e-4, 5e8)
    with pytest.raises(ProfileError, match="65 tokens"):
        cost_table(profile(), 65, "median")


def test_a_dilated_device_takes_longer_for_all_but_exchanges_and_its_profile_says_so() -> None:
    """The testbed's devices are real ones, slowed by known factors: a slow processor tokenises slowly too."""
    slow = emulate(emulate(profile(), Dilation(2.0, 3.0)), Dilation(2.0, 1.0))
    assert slow.dilation == Dilation(4.0, 3.0)
    assert (slow.layers, slow.disk) == (profile().layers, profile().disk)
    costs, measured = cost_table(slow, 16, "median"), cost_table(profile(), 16, "median")
    for work in (TOKENISE, EMBED, HEAD, Compute("layer", 0, 3)):
        assert costs.seconds(work) == 4 * measured.seconds(work)
        assert costs.seconds(work, ("io",)) == 4 * measured.seconds(work, ("io",))
    for busy in ((), ("cpu",)):
        assert costs.seconds(load(0, 1000), busy) == pytest.approx(3 * measured.seconds(load(0, 1000), busy))
        assert costs.link("io", busy).latency_s == pytest.approx(3 * measured.link("io", busy).latency_s)
    with pytest.raises(ProfileError, match="sped up"):
        emulate(profile(), Dilation(0.5, 1.0))


def test_a_flat_device_dilates_layers_by_their_width() -> None:
    """Compute flat in the number of slices, as on a GPU; a run of one width is slowed alike throughout."""
    flat = Dilation(2.0, 3.0, (1.5, 1.0))
    assert [flat.factor(Compute("layer", 0, m)) for m in (1, 2)] == [3.0, 2.0]
    assert (flat.factor(EMBED), flat.factor(load(0, 1))) == (2.0, 3.0)
    assert flat.factor(Exchange("x", 4, "a", "b")) == 1.0
    assert flat.at_width(1) == Dilation(3.0, 3.0)


def test_a_dilation_covers_those_that_are_no_more_in_compute_and_in_reads() -> None:
    """Only then does a plan made for the one keep its target under the other."""
    assert Dilation(2.0, 2.0).covers(Dilation(1.0, 2.0))
    assert not Dilation(2.0, 1.0).covers(Dilation(1.0, 2.0))
    assert not Dilation(1.0, 2.0).covers(Dilation(2.0, 2.0))
    with pytest.raises(ProfileError, match="positive number of times"):
        Dilation(0.0)


def test_impossible_measurements_cannot_be_built() -> None:
    """Values are checked once, where they enter."""
    with pytest.raises(ProfileError):
        Timing(2.0, 1.0)
    with pytest.raises(ProfileError):
        Link(0.0, 0.0)
    with pytest.raises(ProfileError):
        LayerCost(3, 2.0, 1.0)


def test_a_link_costs_its_round_trip_and_its_bytes() -> None:
    """The same line as in design.md and CRIME: rtt + n / bandwidth."""
    assert Link(0.01, 1e6).seconds(500_000) == pytest.approx(0.51)
    assert Span(0, "cpu", 1.0, 3.0).seconds == 2.0
