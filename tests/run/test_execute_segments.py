"""Segments advance, are replaced and repeated; an emulated device's lanes are slower."""

import pytest

from pliant.errors import LaneError
from pliant.ir.cost import Span
from pliant.ir.dilation import Dilation
from pliant.ir.program import Compute, Exchange, Program, Segment, Step
from pliant.run.emulated_device import EmulatedDevice
from pliant.run.execute import StepFunctions, execute
from pliant.run.lanes import Lanes
from tests.run.test_execute import layer, one_segment


def layers(*numbers: int) -> Segment:
    return Segment(tuple(Step("cpu", layer(n)) for n in numbers))


def test_a_segment_may_be_replaced_at_its_boundary() -> None:
    """Re-partitioning and retargeting hook in between two segments; whoever does decides on the end too."""
    ran: list[int] = []
    coming = {1: layers(7, 8), 2: layers(9)}

    def advance(number: int, observed: tuple[Span, ...]) -> Segment | None:
        assert [s.step for s in observed] == {1: [0], 2: [1, 2], 3: [3]}[number]
        return coming.get(number)

    with Lanes() as lanes:
        functions = StepFunctions(lambda i, w: ran.append(w.layer or 0), lambda i, w: None)
        spans = execute(Program((layers(0), layers(1)), (), ()), functions, lanes, advance=advance)
    assert ran == [0, 7, 8, 9]
    assert [s.step for s in spans] == [0, 1, 2, 3]


@pytest.mark.parametrize("is_single", [False, True])
def test_a_segment_that_fails_may_be_repeated_as_another(is_single: bool) -> None:
    """A failure costs its segment alone: what ended before stands, what runs instead counts."""
    ran: list[int] = []
    heard: list[int] = []
    failures: list[tuple[int, str]] = []

    def compute(step: int, work: Compute) -> None:
        ran.append(work.layer or 0)
        if work.layer == 2:
            raise ValueError("a member is gone")

    def repeat(number: int, error: LaneError) -> Segment:
        failures.append((number, str(error.__cause__)))
        return layers(5)

    functions = StepFunctions(compute, lambda i, w: None, on_end=lambda span: heard.append(span.step))
    program = Program((layers(0), layers(1, 2), layers(3)), (), ())
    with Lanes(is_single=is_single) as lanes:
        spans = execute(program, functions, lanes, repeat=repeat)
        assert failures == [(1, "a member is gone")]
        assert ran == [0, 1, 2, 5, 3]
        assert [s.step for s in spans] == [0, 1, 2]
        assert heard == [0, 1, 1, 2], "what ran in vain is heard of too"
        with pytest.raises(LaneError, match=r"step 2 .* a member is gone"):
            execute(program, functions, lanes)


def test_what_was_here_before_it_was_taken_ended_then() -> None:
    """A message that lies in the mailbox while its receiver computes was no slow link's."""
    times_s = iter([0.0, 3.0, 4.0, 5.0])
    steps = (
        Step("net:b->a", Exchange("x", 4, "b", "a")),
        Step("net:b->a", Exchange("y", 4, "b", "a")),
    )
    arrived_s = {"x": 2.0, "y": None}
    with Lanes((), own="a/cpu", clock=lambda: next(times_s), is_single=True) as lanes:
        functions = StepFunctions(lambda i, w: None, lambda i, w: None, lambda i, w: arrived_s[w.tensor])
        spans = execute(one_segment(*steps), functions, lanes, origin_s=0.0)
    assert [(s.start_s, s.end_s) for s in spans] == [(0.0, 2.0), (3.0, 4.0)]


def test_dilation_sleeps_for_what_a_slower_device_would_have_taken() -> None:
    """Each step's span is s times what it took; clock and sleep are arguments, so nothing sleeps here."""
    now = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def work(i: int, w: Compute) -> None:
        now[0] += 0.25

    with Lanes(
        (), emulated=EmulatedDevice(Dilation(4.0), clock=lambda: now[0], sleep=sleep), clock=lambda: now[0]
    ) as lanes:
        spans = execute(one_segment(Step("cpu", layer(0))), StepFunctions(work, lambda i, w: None), lanes)
    assert slept == [0.75]
    assert spans == (Span(0, "cpu", 0.0, 1.0),)


def test_a_rest_goes_by_the_effort_and_makes_up_for_sleeping_too_long() -> None:
    """What interrupts an emulated device lasts once, and its late wake-ups do not add up."""
    now, worked = [0.0], [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds + 2**-12

    def work(i: int, w: Compute) -> None:
        worked[0] += 0.25
        now[0] += 0.5  # half of it was another's

    steps = [Step("cpu", layer(i)) for i in range(3)]
    device = EmulatedDevice(Dilation(3.0), clock=lambda: now[0], sleep=sleep, effort=lambda: worked[0])
    with Lanes((), emulated=device, clock=lambda: now[0]) as lanes:
        spans = execute(one_segment(*steps), StepFunctions(work, lambda i, w: None), lanes)
    assert slept == [0.5, 0.5 - 2**-12, 0.5 - 2**-12]
    assert spans[-1].end_s == 3.0 + 2**-12


def test_a_step_counts_as_much_as_is_said_at_most() -> None:
    """What caches lost while a much slower device slept would be most of what it takes."""
    cpu = [0.0]
    slept: list[float] = []

    def work(i: int, w: Compute) -> None:
        cpu[0] += 0.5

    device = EmulatedDevice(
        Dilation(3.0),
        clock=lambda: sum(slept),
        sleep=slept.append,
        effort=lambda: cpu[0],
        cpu_clock=lambda: cpu[0],
    )
    device.most_s = lambda w: 0.25 if w == layer(0) else 1.0
    with Lanes((), emulated=device, clock=lambda: sum(slept)) as lanes:
        steps = [Step("cpu", layer(i)) for i in range(2)]
        execute(one_segment(*steps), StepFunctions(work, lambda i, w: None), lanes)
        since_s = device.host_s()
        cpu[0] += 2.0
        device.rest_host("cpu", since_s, 3.0, most_s=0.5)
    assert slept == [0.5, 1.0, 1.0]


def test_what_a_thread_does_outside_steps_is_dilated_apart_from_them() -> None:
    """A slow device tokenises slowly too; a step's own time, dilated already, does not count twice."""
    cpu = [10.0]
    slept: list[float] = []

    def work(i: int, w: Compute) -> None:
        cpu[0] += 0.25

    def clock() -> float:
        return sum(slept)

    device = EmulatedDevice(
        Dilation(4.0), clock=clock, sleep=slept.append, effort=lambda: cpu[0], cpu_clock=lambda: cpu[0]
    )
    with Lanes((), emulated=device, clock=clock) as lanes:
        since_s = device.host_s()
        cpu[0] += 0.5  # tokenising
        since_s = device.rest_host("cpu", since_s, 3.0)
        execute(one_segment(Step("cpu", layer(0))), StepFunctions(work, lambda i, w: None), lanes)
        cpu[0] += 0.125
        device.rest_host("cpu", since_s, 3.0)
    assert slept == [1.0, 0.75, 0.25]


def test_an_exchange_is_not_dilated() -> None:
    """It takes what the network takes, whichever thread runs it."""
    slept: list[float] = []
    sent: list[int] = []
    functions = StepFunctions(lambda i, w: None, lambda i, w: None, lambda i, w: sent.append(i))
    step = Step("net:a->b", Exchange("x", 4, "a", "b"))
    slower = EmulatedDevice(Dilation(9.0), sleep=slept.append)
    with Lanes((), own="a/cpu", emulated=slower, is_single=True) as lanes:
        execute(one_segment(step), functions, lanes)
    assert sent == [0]
    assert not slept
