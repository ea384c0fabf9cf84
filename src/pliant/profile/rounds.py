"""Time several things in rounds that visit each of them: a machine that drifts drifts for all alike."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

Clock = Callable[[], float]

_CHAIN_S = 30e-3
_LEAST_S = 1e-9


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

    def sample(self, i: int, clock: Clock) -> float:
        """Seconds of one repeat, above 0."""
        start_s = clock()
        for link in range(self.chain):
            self.run(i * self.chain + link)
        return max((clock() - start_s) / self.chain, _LEAST_S)


def time_in_rounds(
    alone: Sequence[Timed],
    seconds: float,
    *,
    least: int,
    most: int,
    beside: Sequence[Timed] = (),
    load: Callable[[], AbstractContextManager[None]] = nullcontext,
    clock: Clock = time.perf_counter,
    rest: Callable[[float], None] = lambda took_s: None,
    on_round: Callable[[int], None] = lambda done: None,
) -> None:
    """Fill the samples of all: those `alone`, then those `beside` a `load`, in each of `most` rounds.

    All are run twice first: caches, pages and threads wake, and what each takes says how often it can be
    repeated in about `seconds`, from `least` to `most` times. What is emulated as slower `rest`s after each
    sample; it is measured as it is.
    """

    def sample(one: Timed, i: int) -> float:
        took_s = one.sample(i, clock)
        rest(took_s * one.chain)
        return took_s

    def visit(group: Sequence[Timed], i: int) -> None:
        for one in group:
            one.samples_s.append(sample(one, i))

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


def _share(costs: list[tuple[float, Timed]], seconds: float, least: int, most: int) -> None:
    """Give all the same time, and what short ones leave of theirs to longer ones."""
    for i, (took_s, one) in enumerate(sorted(costs, key=lambda cost: cost[0])):
        one.n_repeats = max(least, min(most, int(seconds / (len(costs) - i) / took_s)))
        seconds -= one.n_repeats * took_s


def _due(group: Sequence[Timed], i: int, most: int) -> list[Timed]:
    """Those with a repeat in round `i`: repeats are spread evenly over all rounds."""
    return [one for one in group if (i + 1) * one.n_repeats // most > i * one.n_repeats // most]
