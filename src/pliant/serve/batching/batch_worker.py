"""The interface of an endpoint to the compute workers, and the expected time of its queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

from pliant.ir.times.timing import Timing
from pliant.serve.batching.batch_times import BatchTimes
from pliant.serve.batching.plan_batch import QueuedRequest


class BatchWorker(Protocol):
    """Processes the requests of one endpoint on worker threads.

    `times` are of batches with all threads of the endpoint, `times_beside` of concurrent batches.
    """

    times: BatchTimes
    times_beside: BatchTimes

    @property
    def most_beside(self) -> int:
        """Maximum number of concurrent batches; 1 if they take turns."""
        ...

    @property
    def most_together(self) -> int:
        """Maximum number of requests in a batch with all threads."""
        ...

    @property
    def most_together_beside(self) -> int:
        """Maximum number of requests in a concurrent batch."""
        ...

    @property
    def most_items(self) -> float:
        """Maximum total number of items in a batch; a longer request runs alone."""
        ...

    def refusal(self, one: Any, is_contended: bool) -> Exception | None:
        """The error for a request whose bound no longer meets its deadline; None to keep it.

        `is_contended` is set if another request waits that would still be in time.
        """
        ...

    def lateness(self, one: Any, alone_s: float) -> Exception:
        """The error for a request of `alone_s` seconds that the others in the queue leave no time for."""
        ...

    def work(self, ones: Sequence[Any], is_beside: bool) -> Sequence[Any]:
        """A result for each request in order, or the exception that it failed with.

        With `is_beside` it may be called concurrently.
        """
        ...


@dataclass(slots=True)
class WorkerLoad:
    """The queue of one worker: number of requests, total items, and total time one by one."""

    worker: BatchWorker
    n_workers: int = 1
    n: int = 0
    n_items: int = 0
    seconds: float = 0.0

    def add(self, waiting: QueuedRequest, sign: int) -> None:
        """Add (`sign` 1) or remove (-1) a request."""
        self.n += sign
        self.n_items += sign * waiting.length
        self.seconds = max(self.seconds + sign * waiting.alone.median_s, 0.0) if self.n else 0.0

    @property
    def n_beside(self) -> int:
        """Maximum number of concurrent batches."""
        return min(self.n_workers, self.worker.most_beside)

    @property
    def pace(self) -> float:
        """Expected time until all are done, relative to their time one by one."""
        return self.pace_each / min(self.n_beside, max(self.n, 1))

    @property
    def pace_each(self) -> float:
        """Expected time of all in batches on one worker, relative to their time one by one."""
        n_beside = self.n_beside
        is_beside, most_items = n_beside > 1, self.worker.most_items / n_beside
        times = self.worker.times_beside if is_beside else self.worker.times
        most = self.worker.most_together_beside if is_beside else self.worker.most_together
        n = min(ceil(self.n / n_beside), most)
        if self.n_items * n > most_items * self.n:
            n = int(most_items * self.n / self.n_items)
        if n < 2:
            return 1.0
        return times.expected(n, n * self.n_items // self.n, Timing(1.0, 1.0)).median_s
