"""Emulate a slower device: sleep after each work until it has lasted as long as on that device."""

import time
from collections.abc import Callable
from math import inf
from typing import final

from pliant.ir.dilation import Dilation, require_emulable
from pliant.ir.program import Work

_LATE_S = 1e-3
"""The largest oversleep that the system causes; it is usually about 0.2 ms."""


@final
class EmulatedDevice:
    """Makes this machine take `dilation` times as long. A function as `dilation` is called before each work.

    `dilation` may be replaced between and during runs. The time of a lane's computation is measured by
    `effort`, read before and after on the lane's thread; the default is the clock. With the thread's CPU time
    as `effort`, interruptions are not multiplied by `dilation`. Reads, and runs of sessions without lanes,
    are measured by the clock. `most_s` limits the time that counts for a step; by default there is no limit.
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
        self._step_cpu_s = 0.0  # CPU time CPU time of the threads that called `execute`, within dilated steps
        self._overslept_s: dict[str, float] = {}
        self.dilation = dilation if callable(dilation) else require_emulable(dilation)

    @property
    def dilation(self) -> Dilation:
        """The current dilation."""
        return self._dilation() if callable(self._dilation) else self._dilation

    @dilation.setter
    def dilation(self, dilation: Dilation | Callable[[], Dilation]) -> None:
        self._dilation = dilation

    def compute(
        self, lane: str, slower: float, work: Work, action: Callable[[], None], *, is_host: bool
    ) -> None:
        """Call `action`, which does `work`, then sleep until it has lasted `slower` times as long.

        `is_host`: this is the thread that called `execute`; its CPU time is then recorded for `rest_host`.
        """
        cpu_s, effort_s = self._cpu_clock(), self._effort()
        action()
        effort_s = self._effort() - effort_s
        if is_host:
            self._step_cpu_s += self._cpu_clock() - cpu_s
        self._rest(lane, (slower - 1.0) * min(effort_s, self.most_s(work)))

    def rest_since(self, start_s: float, slower: float) -> None:
        """Sleep until the work that began at clock time `start_s` has lasted `slower` times as long."""
        self.rest(self._clock() - start_s, slower)

    def rest(self, took_s: float, slower: float, most_s: float = inf) -> None:
        """Sleep for the extra time that work of `took_s` needs on the emulated device, at most `most_s`."""
        if slower > 1.0:
            self.sleep(min((slower - 1.0) * took_s, most_s))

    def host_s(self) -> float:
        """CPU time of the calling thread outside dilated steps: the starting point of `rest_host`."""
        return self._cpu_clock() - self._step_cpu_s

    def rest_host(self, lane: str, since_s: float, slower: float, most_s: float = inf) -> float:
        """Sleep for what the calling thread has done outside dilated steps since `since_s`: tokenising,
        planning, the hand-off between steps; at most `most_s` of it counts. Returns `host_s`, the `since_s`
        of the next call.
        """
        now_s = self.host_s()
        if slower > 1.0:
            self._rest(lane, (slower - 1.0) * min(now_s - since_s, most_s))
        return now_s

    def _rest(self, lane: str, seconds: float) -> None:
        """Sleep for `seconds`, less the oversleep of the previous sleep (at most 1 ms)."""
        left_s = seconds - self._overslept_s.get(lane, 0.0)
        start_s = self._clock()
        if left_s > 0:
            self.sleep(left_s)
        self._overslept_s[lane] = min(self._clock() - start_s - left_s, _LATE_S)


def _unlimited(work: Work) -> float:
    return inf
