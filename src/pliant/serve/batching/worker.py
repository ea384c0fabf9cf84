"""How the requests of one endpoint are worked on, and what those that wait for it will take."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

from pliant.ir.times.timing import Timing
from pliant.serve.batching.batch_times import BatchTimes
from pliant.serve.batching.plan_batch import Waiting


class Worker(Protocol):
    """How the requests of one endpoint are worked on, on the threads of workers.

    `times` are of batches that have all threads of the endpoint, `times_beside` of those beside others.
    """

    times: BatchTimes
    times_beside: BatchTimes

    @property
    def most_beside(self) -> int:
        """How many batches run beside each other at most; 1 where they take turns."""
        ...

    @property
    def most_together(self) -> int:
        """How many run together at most, in a batch of all threads."""
        ...

    @property
    def most_together_beside(self) -> int:
        """How many run together at most, in a batch beside others."""
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

    def work(self, ones: Sequence[Any], is_beside: bool) -> Sequence[Any]:
        """A result for each request, in their order, or the Exception that it fails with.

        With `is_beside` it may be called while it works on others.
        """
        ...


@dataclass(slots=True)
class Load:
    """What waits for one worker: how many, of how many items, and what they would take one by one."""

    worker: Worker
    n_workers: int = 1
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
        """What those that wait take until all are done, as a part of that."""
        n_beside = min(self.n_workers, self.worker.most_beside)
        is_beside, most_items = n_beside > 1, self.worker.most_items / n_beside
        times = self.worker.times_beside if is_beside else self.worker.times
        most = self.worker.most_together_beside if is_beside else self.worker.most_together
        n = min(ceil(self.n / n_beside), most)
        if self.n_items * n > most_items * self.n:
            n = int(most_items * self.n / self.n_items)
        if n < 2:
            return 1.0 / min(n_beside, max(self.n, 1))
        return times.expected(n, n * self.n_items // self.n, Timing(1.0, 1.0)).median_s / n_beside
