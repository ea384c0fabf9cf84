"""How the requests of one endpoint are worked on, and what those that wait for it will take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pliant.ir.times.timing import Timing
from pliant.serve.batching.batch_times import BatchTimes
from pliant.serve.batching.plan_batch import Waiting


class Worker(Protocol):
    """How the requests of one endpoint are worked on, on the thread."""

    times: BatchTimes

    @property
    def most_together(self) -> int:
        """How many run together at most."""
        ...

    @property
    def most_items(self) -> float:
        """How many items these have at most, all together; one that is longer runs alone."""
        ...

    def refusal(self, one: Any, is_contended: bool) -> Exception | None:
        """Why a request whose bound does not keep its deadline any more is refused; None where it is not.

        `is_contended` where another one waits that would still be in time.
        """
        ...

    def work(self, ones: Sequence[Any]) -> Sequence[Any]:
        """A result for each request, in their order, or the Exception that it fails with."""
        ...


@dataclass(slots=True)
class Load:
    """What waits for one worker: how many, of how many items, and what they would take one by one."""

    worker: Worker
    n: int = 0
    n_items: int = 0
    seconds: float = 0.0

    def add(self, waiting: Waiting, sign: int) -> None:
        """One more waits, or one less."""
        self.n += sign
        self.n_items += sign * waiting.length
        self.seconds = max(self.seconds + sign * waiting.alone.median_s, 0.0) if self.n else 0.0

    @property
    def pace(self) -> float:
        """What those that wait take together, as a part of that."""
        n = min(self.n, self.worker.most_together)
        if self.n_items * n > self.worker.most_items * self.n:
            n = int(self.worker.most_items * self.n / self.n_items)
        if n < 2:
            return 1.0
        return self.worker.times.expected(n, n * self.n_items // self.n, Timing(1.0, 1.0)).median_s
