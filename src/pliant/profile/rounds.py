"""Time several things in rounds that visit each of them: a machine that drifts drifts for all alike.

Where other processes held the cores meanwhile, that is no property of what is timed: samples in which a
thread of this process waited for a core are left out, or shortened by what it waited.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from pliant.ir.device import BUSY
from pliant.system import waited_s

Clock = Callable[[], float]

_CHAIN_S = 30e-3
_LEAST_S = 1e-9
_SHORTEST = 0.75
"""Of a sample at most: a wait may be of the sample before, or of a thread that had no part in it."""
_DISTURBED = 0.05
"""Of a sample's time, spent waiting for a core: others ran there."""


@dataclass(slots=True)
class Timed:
    """One thing to time: `run(i)` is its i-th repeat.

    A sample is the mean of a chain of repeats, `longest_chain` at most: an interruption hits one of them.
    """

    run: Callable[[int], object]
    longest_chain: int = 1
    chain: int = field(default=1, init=False)
    n_repeats: int = field(default=0, init=False)
    samples_s: list[float] = field(default_factory=list, init=False)
    waits: list[float] = field(default_factory=list, init=False)

    def sample(self, i: int, clock: Clock) -> float:
        """Seconds of one repeat, above 0."""
        start_s = clock()
        for link in range(self.chain):
            self.run(i * self.chain + link)
        return max((clock() - start_s) / self.chain, _LEAST_S)

    @property
    def n_disturbed(self) -> int:
        return sum(wait > _DISTURBED for wait in self.waits)

    def keep_calm(self, least: int) -> None:
        """Leave disturbed samples out; where fewer than `least` are not, shorten all by what they waited."""
        both = list(zip(self.samples_s, self.waits, strict=True))
        calm = [s for s, wait in both if wait <= _DISTURBED]
        shortened = [s * (1.0 - min(wait, _SHORTEST)) for s, wait in both]
        self.samples_s = calm if len(calm) >= least else shortened


def time_in_rounds(
    alone: Sequence[Timed],
    seconds: float,
    *,
    least: int,
    most: int,
    beside: Sequence[Timed] = (),
    load: Callable[[], AbstractContextManager[None]] = nullcontext,
    clock: Clock = time.perf_counter,
    waited: Callable[[], Mapping[int, float]] = waited_s,
    rest: Callable[[float], None] = lambda took_s: None,
    on_round: Callable[[int], None] = lambda done: None,
) -> float:
    """Fill the samples of all: those `alone`, then those `beside` a `load`, in each of `most` rounds.

    All are run twice first: caches, pages and threads wake, and what each takes says how often it can be
    repeated in about `seconds`, from `least` to `most` times. What is emulated as slower `rest`s after each
    sample; it is measured as it is.

    The share of disturbed samples among those `alone`. Where it is above BUSY they are left out or shortened:
    `waited` tells for how long each thread of this process has waited for a core, and those that are there
    at the start count.
    """
    threads = tuple(waited())

    def waiting() -> list[float]:
        now = waited()
        return [now.get(thread, 0.0) for thread in threads]

    def sample(one: Timed, i: int) -> float:
        took_s = one.sample(i, clock)
        rest(took_s * one.chain)
        return took_s

    def visit(group: Sequence[Timed], i: int) -> None:
        for one in group:
            before = waiting()
            took_s = one.sample(i, clock)
            most_s = max((b - a for a, b in zip(before, waiting(), strict=True)), default=0.0)
            one.samples_s.append(took_s)
            one.waits.append(most_s / (took_s * one.chain))
            rest(took_s * one.chain)

    costs: list[tuple[float, Timed]] = []
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
    if disturbed > BUSY:
        for one in (*alone, *beside):
            one.keep_calm(least)
    return disturbed


def _share(costs: list[tuple[float, Timed]], seconds: float, least: int, most: int) -> None:
    """Give all the same time, and what short ones leave of theirs to longer ones."""
    for i, (took_s, one) in enumerate(sorted(costs, key=lambda cost: cost[0])):
        one.n_repeats = max(least, min(most, int(seconds / (len(costs) - i) / took_s)))
        seconds -= one.n_repeats * took_s


def _due(group: Sequence[Timed], i: int, most: int) -> list[Timed]:
    """Those with a repeat in round `i`: repeats are spread evenly over all rounds."""
    return [one for one in group if (i + 1) * one.n_repeats // most > i * one.n_repeats // most]
