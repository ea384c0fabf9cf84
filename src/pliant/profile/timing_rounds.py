"""Time several functions in rounds that visit each of them, so that drift of the machine affects all alike.

Waiting for cores that other processes use is no property of the timed functions: samples in which a thread of
this process waited for a core are left out, or shortened by the waiting time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from pliant.ir.device import MAX_DISTURBED
from pliant.system import waited_s

Clock = Callable[[], float]

_CHAIN_S = 30e-3
_LEAST_S = 1e-9
_SHORTEST = 0.75
"""Maximum shortening of a sample: a wait may belong to the previous sample, or to an idle thread."""
_DISTURBED = 0.05
"""Share of a sample's time spent waiting for a core, above which the sample counts as disturbed."""


@dataclass(slots=True)
class TimedFunction:
    """One function to time: `run(i)` is its i-th repeat.

    A sample is the mean of a chain of at most `longest_chain` repeats, which spreads an interruption over the
    chain.
    """

    run: Callable[[int], object]
    longest_chain: int = 1
    chain: int = field(default=1, init=False)
    n_repeats: int = field(default=0, init=False)
    samples_s: list[float] = field(default_factory=list, init=False)
    waits: list[float] = field(default_factory=list, init=False)

    def sample(self, i: int, clock: Clock) -> float:
        """Return the seconds of one repeat, above 0."""
        start_s = clock()
        for link in range(self.chain):
            self.run(i * self.chain + link)
        return max((clock() - start_s) / self.chain, _LEAST_S)

    @property
    def n_disturbed(self) -> int:
        return sum(wait > _DISTURBED for wait in self.waits)

    def drop_disturbed(self, least: int) -> None:
        """Drop disturbed samples; if fewer than `least` remain, keep all, shortened by their waits."""
        both = list(zip(self.samples_s, self.waits, strict=True))
        calm = [s for s, wait in both if wait <= _DISTURBED]
        shortened = [s * (1.0 - min(wait, _SHORTEST)) for s, wait in both]
        self.samples_s = calm if len(calm) >= least else shortened


def time_in_rounds(
    alone: Sequence[TimedFunction],
    seconds: float,
    *,
    least: int,
    most: int,
    beside: Sequence[TimedFunction] = (),
    load: Callable[[], AbstractContextManager[None]] = nullcontext,
    clock: Clock = time.perf_counter,
    waited: Callable[[], Mapping[int, float]] = waited_s,
    rest: Callable[[float], None] = lambda took_s: None,
    on_round: Callable[[int], None] = lambda done: None,
) -> float:
    """Sample all functions: those `alone`, then those `beside` a `load`, in each of `most` rounds.

    Each is run twice first, which warms up caches, pages and threads; the second run's time determines how
    often it is repeated in about `seconds`, from `least` to `most` times. An emulated slower device `rest`s
    after each sample, outside the measured time.

    Returns the share of disturbed samples among those `alone`. If it is above BUSY, disturbed samples are
    left out or shortened. `waited` returns how long each thread of this process has waited for a core; only
    threads that exist at the start count.
    """
    threads = tuple(waited())

    def waiting() -> list[float]:
        now = waited()
        return [now.get(thread, 0.0) for thread in threads]

    def sample(one: TimedFunction, i: int) -> float:
        took_s = one.sample(i, clock)
        rest(took_s * one.chain)
        return took_s

    def visit(group: Sequence[TimedFunction], i: int) -> None:
        for one in group:
            before = waiting()
            took_s = one.sample(i, clock)
            most_s = max((b - a for a, b in zip(before, waiting(), strict=True)), default=0.0)
            one.samples_s.append(took_s)
            one.waits.append(most_s / (took_s * one.chain))
            rest(took_s * one.chain)

    costs: list[tuple[float, TimedFunction]] = []
    for one in (*alone, *beside):
        sample(one, 0)
        took_s = sample(one, 0)
        one.chain = max(1, min(one.longest_chain, int(_CHAIN_S / took_s)))
        costs.append((took_s * one.chain, one))
    _share(costs, seconds, least, most)
    for i in range(most):
        on_round(i)
        visit(_due(alone, i, most), i)
        now_beside = _due(beside, i, most)
        if now_beside:
            with load():
                visit(now_beside, i)
    on_round(most)
    disturbed = sum(one.n_disturbed for one in alone) / max(sum(one.n_repeats for one in alone), 1)
    if disturbed > MAX_DISTURBED:
        for one in (*alone, *beside):
            one.drop_disturbed(least)
    return disturbed


def _share(costs: list[tuple[float, TimedFunction]], seconds: float, least: int, most: int) -> None:
    """Give all the same time, and the unused time of short ones to longer ones."""
    for i, (took_s, one) in enumerate(sorted(costs, key=lambda cost: cost[0])):
        one.n_repeats = max(least, min(most, int(seconds / (len(costs) - i) / took_s)))
        seconds -= one.n_repeats * took_s


def _due(group: Sequence[TimedFunction], i: int, most: int) -> list[TimedFunction]:
    """Return those with a repeat in round `i`: repeats are spread evenly over all rounds."""
    return [one for one in group if (i + 1) * one.n_repeats // most > i * one.n_repeats // most]
