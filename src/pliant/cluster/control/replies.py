"""Keep peers' replies to numbered requests until the requesting thread takes them.

Answers that come too late, or to questions that nobody asks about any more, are let go of in time.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from threading import Condition
from typing import Generic, TypeVar, final

Answer = TypeVar("Answer")
_MOST = 256
"""Questions whose answers are kept."""


@final
@dataclass(slots=True)
class Replies(Generic[Answer]):
    """Answers by number and peer. `news` wakes who waits, here or for something else that it tells of."""

    news: Condition
    clock: Callable[[], float]
    _kept: dict[int, dict[str, Answer]] = field(default_factory=dict)

    def put(self, number: int, peer: str, answer: Answer) -> None:
        """`peer` has answered question `number`."""
        with self.news:
            self._kept.setdefault(number, {})[peer] = answer
            if len(self._kept) > _MOST:
                del self._kept[min(self._kept)]
            self.news.notify_all()

    def so_far(self, number: int) -> Collection[Answer]:
        """What came of question `number` until now."""
        with self.news:
            return tuple(self._kept.get(number, {}).values())

    def take(
        self, number: int, names: Collection[str], is_awaited: Callable[[str], bool], timeout_s: float
    ) -> dict[str, Answer]:
        """What came within `timeout_s`, which is not waited out for those that are not awaited any more."""
        until_s = self.clock() + timeout_s
        with self.news:
            while (left_s := until_s - self.clock()) > 0 and any(
                name not in self._kept.get(number, {}) and is_awaited(name) for name in names
            ):
                self.news.wait(left_s)
            return self._kept.pop(number, {})
