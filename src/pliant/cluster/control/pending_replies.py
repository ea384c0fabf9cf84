"""Keep peers' replies to numbered requests until the requesting thread takes them.

At most `_MOST` requests are kept; the oldest are deleted, so late and unclaimed replies do not accumulate.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from threading import Condition
from typing import Generic, TypeVar, final

Answer = TypeVar("Answer")
_MOST = 256
"""Maximum number of requests whose answers are kept."""


@final
@dataclass(slots=True)
class PendingReplies(Generic[Answer]):
    """Answers by request number and peer. `news` is notified of each answer; the caller may share it."""

    news: Condition
    clock: Callable[[], float]
    _kept: dict[int, dict[str, Answer]] = field(default_factory=dict)

    def put(self, number: int, peer: str, answer: Answer) -> None:
        """Store the answer of `peer` to request `number`."""
        with self.news:
            self._kept.setdefault(number, {})[peer] = answer
            if len(self._kept) > _MOST:
                del self._kept[min(self._kept)]
            self.news.notify_all()

    def peek(self, number: int) -> Collection[Answer]:
        """Return the answers to request `number` received so far."""
        with self.news:
            return tuple(self._kept.get(number, {}).values())

    def take(
        self, number: int, names: Collection[str], is_awaited: Callable[[str], bool], timeout_s: float
    ) -> dict[str, Answer]:
        """Wait up to `timeout_s` for answers; peers that `is_awaited` rejects are not waited for."""
        until_s = self.clock() + timeout_s
        with self.news:
            while (left_s := until_s - self.clock()) > 0 and any(
                name not in self._kept.get(number, {}) and is_awaited(name) for name in names
            ):
                self.news.wait(left_s)
            return self._kept.pop(number, {})
