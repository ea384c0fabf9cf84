"""A batch worker for single callables."""

from collections.abc import Callable, Sequence
from typing import Any, final

from pliant.serve.batching.batch_times import BatchTimes


@final
class CallableWorker:
    """A worker for single callables."""

    most_together = most_together_beside = most_items = most_beside = 1

    def __init__(self) -> None:
        self.times = self.times_beside = BatchTimes()

    def refusal(self, one: Callable[[], Any], is_contended: bool) -> None:
        return None

    def lateness(self, one: Callable[[], Any], alone_s: float) -> Exception:
        raise AssertionError("this work has no deadline")

    def work(self, ones: Sequence[Callable[[], Any]], is_beside: bool) -> list[Any]:
        return [one() for one in ones]
