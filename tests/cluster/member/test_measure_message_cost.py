"""What messages are said to take of a device's thread."""

from collections.abc import Callable

from pliant.cluster.member.measure_message_cost import measure_message_cost
from pliant.ir.capability import MessageOverhead

_LARGE_BYTES = 400_000


def test_a_clock_that_moves_by_its_readings_gives_lines_of_these() -> None:
    """Every sample is as many readings as it takes: nothing else is in the measure, and no byte costs."""
    found = measure_message_cost(_LARGE_BYTES, clock=_ticking(1e-3), sleep=lambda seconds: None)
    for line in (found.send, found.take):
        assert line.message_s >= 0
        assert line.byte_s >= 0
    assert found.send.seconds(0) > 0


def test_this_device_takes_some_time_and_less_than_its_naps() -> None:
    """The real thing: encrypted, through sockets, and taken by a thread that waited."""
    found = measure_message_cost(_LARGE_BYTES)
    assert found.send != MessageOverhead()
    assert found.take != MessageOverhead()
    assert found.send.seconds(_LARGE_BYTES) > 0
    assert found.take.seconds(_LARGE_BYTES) > 0


def _ticking(step_s: float) -> Callable[[], float]:
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += step_s
        return now_s

    return clock
