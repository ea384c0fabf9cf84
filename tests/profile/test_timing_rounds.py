"""Rounds, on a clock that moves by what each run takes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pliant.profile.timing_rounds import TimedFunction, time_in_rounds


class _Clockwork:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.ran: list[str] = []

    def timed(self, name: str, seconds: float, longest_chain: int = 1) -> TimedFunction:
        def run(i: int) -> None:
            self.now_s += seconds
            self.ran.append(name)

        return TimedFunction(run, longest_chain)

    def clock(self) -> float:
        return self.now_s


def test_each_gets_its_own_time_within_its_repeats() -> None:
    """A sample is the mean of a chain, and holds nothing of what runs between."""
    work = _Clockwork()
    short, long = work.timed("short", 0.001, longest_chain=6), work.timed("long", 0.5)
    time_in_rounds([short, long], 3.0, least=2, most=9, clock=work.clock, waited=dict)
    assert (short.chain, short.n_repeats, long.n_repeats) == (6, 9, 5)
    assert len(short.samples_s) == 9
    assert len(long.samples_s) == 5
    assert all(abs(s - 0.001) < 1e-9 for s in short.samples_s)
    assert all(abs(s - 0.5) < 1e-9 for s in long.samples_s)


def test_a_round_visits_all_before_any_again() -> None:
    """A machine that slows down for a second slows all alike, not the one that ran then."""
    work = _Clockwork()
    time_in_rounds([work.timed(n, 0.01) for n in "abc"], 10.0, least=1, most=4, clock=work.clock, waited=dict)
    assert "".join(work.ran) == "aabbcc" + 4 * "abc"


def test_too_little_time_still_gives_the_least_repeats() -> None:
    """A median of one would be what it met; the promise of about so many seconds gives way."""
    work = _Clockwork()
    slow = work.timed("slow", 5.0)
    time_in_rounds([slow], 0.1, least=2, most=9, clock=work.clock, waited=dict)
    assert len(slow.samples_s) == 2


def test_what_is_beside_a_load_runs_within_it_and_nothing_else_does() -> None:
    """Interference is the ratio of the two."""
    work = _Clockwork()

    @contextmanager
    def load() -> Iterator[None]:
        work.ran.append("[")
        yield
        work.ran.append("]")

    alone, beside = [work.timed("a", 0.1)], [work.timed("b", 0.1)]
    time_in_rounds(alone, 0.4, least=1, most=2, beside=beside, load=load, clock=work.clock, waited=dict)
    assert "".join(work.ran) == "aabb" + 2 * "a[b]"


def test_what_other_processes_took_from_a_sample_is_left_out() -> None:
    """Half of the samples wait as long again for a core: the medians are those of a machine of our own."""
    work, waited = _Clockwork(), 0.0

    def run(i: int) -> None:
        nonlocal waited
        lost_s = 0.3 * (i % 2)
        work.now_s += 0.1 + lost_s
        waited += lost_s

    one = TimedFunction(run)
    disturbed = time_in_rounds([one], 2.0, least=3, most=8, clock=work.clock, waited=lambda: {1: waited})
    assert disturbed == 0.5
    assert one.samples_s == pytest.approx(4 * [0.1])


def test_where_every_sample_is_disturbed_all_are_shortened_by_what_they_waited() -> None:
    """By the longest wait of one thread: the others may have waited at the same time."""
    work, waited = _Clockwork(), 0.0

    def run(i: int) -> None:
        nonlocal waited
        work.now_s += 0.1 + 0.1 * i
        waited += 0.05 * i + 0.05

    def waits() -> dict[int, float]:
        return {1: waited, 2: waited / 2.0}

    one = TimedFunction(run)
    assert time_in_rounds([one], 9.0, least=2, most=8, clock=work.clock, waited=waits) == 1.0
    assert one.samples_s == pytest.approx([0.05 * (i + 1) for i in range(8)])


def test_an_emulated_device_rests_after_each_run_and_is_measured_as_it_is() -> None:
    """The core that slept is slower for a while, as it will be in a run; the dilation comes on top once."""
    work, rests = _Clockwork(), list[float]()
    one = work.timed("a", 0.25)
    time_in_rounds([one], 0.5, least=1, most=2, clock=work.clock, waited=dict, rest=rests.append)
    assert one.samples_s == rests[2:] == [0.25, 0.25]


def test_no_wait_makes_a_sample_nothing() -> None:
    """It may have been of a thread without a part in it, or while an emulated device rested."""
    work, waited = _Clockwork(), 0.0

    def run(i: int) -> None:
        nonlocal waited
        work.now_s += 0.1
        waited += 5.0

    one = TimedFunction(run)
    time_in_rounds([one], 9.0, least=2, most=4, clock=work.clock, waited=lambda: {1: waited})
    assert one.samples_s == pytest.approx(4 * [0.025])


def test_waiting_while_an_emulated_device_rests_does_not_count() -> None:
    """Threads that look after a cluster may wait then, as long as they like."""
    work, waited = _Clockwork(), 0.0

    def rest(took_s: float) -> None:
        nonlocal waited
        waited += 3.0 * took_s

    one = work.timed("a", 0.1)
    disturbed = time_in_rounds(
        [one], 9.0, least=2, most=4, clock=work.clock, waited=lambda: {1: waited}, rest=rest
    )
    assert disturbed == 0.0
    assert one.samples_s == pytest.approx(4 * [0.1])
