"""Emulate a slower device: sleep after work until it has lasted as long as it would there."""

import time
from collections.abc import Callable
from math import inf
from typing import final

from pliant.ir.dilation import Dilation, emulated
from pliant.ir.program import Work

_LATE_S = 1e-3
"""How late a sleep may end by the system's doing alone, some 0.2 ms as a rule."""


@final
class EmulatedDevice:
    """This machine, made to take `dilation` times as long; a function is asked for it before each work.

    `dilation` may be replaced between and during runs. What a lane computes counts by `effort`, read before
    and after on its own thread; by default the clock. A thread's CPU time is the effort where it does its
    work alone: what interrupts it then lasts once, not `dilation` times. Reads, and the runs of sessions
    without lanes, count by the clock. A step counts as `most_s` says at most, by default all that it took.
    Raises ProfileError for a device faster than this machine.
    """

    def __init__(
        self,
        dilation: Dilation | Callable[[], Dilation] = Dilation(),  # noqa: B008 - frozen
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        effort: Callable[[], float] | None = None,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.sleep = sleep
        self.most_s: Callable[[Work], float] = _unlimited
        self._clock, self._cpu_clock = clock, cpu_clock
        self._effort = clock if effort is None else effort
        self._step_cpu_s = 0.0  # of the threads that called `execute`, within dilated steps
        self._overslept_s: dict[str, float] = {}
        self.dilation = dilation if callable(dilation) else emulated(dilation)

    @property
    def dilation(self) -> Dilation:
        """As it is now."""
        return self._dilation() if callable(self._dilation) else self._dilation

    @dilation.setter
    def dilation(self, dilation: Dilation | Callable[[], Dilation]) -> None:
        self._dilation = dilation

    def compute(
        self, lane: str, slower: float, work: Work, action: Callable[[], None], *, is_host: bool
    ) -> None:
        """Call `action`, which does `work`, then sleep until it has lasted `slower` times as long.

        `is_host` says whether this is the thread that called `execute`, of which `rest_host` is told too.
        """
        cpu_s, effort_s = self._cpu_clock(), self._effort()
        action()
        effort_s = self._effort() - effort_s
        if is_host:
            self._step_cpu_s += self._cpu_clock() - cpu_s
        self._rest(lane, (slower - 1.0) * min(effort_s, self.most_s(work)))

    def rest_since(self, start_s: float, slower: float) -> None:
        """Sleep until what began at `start_s` of the clock has lasted `slower` times as long."""
        self.rest(self._clock() - start_s, slower)

    def rest(self, took_s: float, slower: float, most_s: float = inf) -> None:
        """Sleep, for `most_s` at most, as long as what took `took_s` here would go on there."""
        if slower > 1.0:
            self.sleep(min((slower - 1.0) * took_s, most_s))

    def host_s(self) -> float:
        """CPU time of the calling thread outside dilated steps: where `rest_host` begins to count."""
        return self._cpu_clock() - self._step_cpu_s

    def rest_host(self, lane: str, since_s: float, slower: float, most_s: float = inf) -> float:
        """Sleep for what the calling thread has done outside dilated steps since `since_s`: tokenising,
        planning, the hand-off between steps; `most_s` of it at most. Gives `host_s`, from which the next call
        counts on.
        """
        now_s = self.host_s()
        if slower > 1.0:
            self._rest(lane, (slower - 1.0) * min(now_s - since_s, most_s))
        return now_s

    def _rest(self, lane: str, seconds: float) -> None:
        """Sleep that long; what a sleep before lasted too long, up to a millisecond, comes off."""
        left_s = seconds - self._overslept_s.get(lane, 0.0)
        start_s = self._clock()
        if left_s > 0:
            self.sleep(left_s)
        self._overslept_s[lane] = min(self._clock() - start_s - left_s, _LATE_S)


def _unlimited(work: Work) -> float:
    return inf
