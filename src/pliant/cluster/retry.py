"""When what runs no longer tell of counts as it was measured: nothing else would show that it recovered.

Pure: no clock.
"""

from collections.abc import Collection
from typing import final

FIRST_S = 30.0
LAST_S = 1920.0


@final
class Retries:
    """Names that were left out are due after FIRST_S, and after twice as long each time that did not last."""

    def __init__(self) -> None:
        self._heard_s: dict[str, float] = {}
        self._tried_s: dict[str, float] = {}
        self._wait_s: dict[str, float] = {}

    def heard(self, names: Collection[str], now_s: float) -> None:
        """A run told of `names`; who is still heard of a wait after it was due starts with FIRST_S again."""
        for name in names:
            self._heard_s[name] = now_s
            if name in self._tried_s and now_s - self._tried_s[name] >= self._wait_s[name]:
                del self._tried_s[name], self._wait_s[name]

    def due(self, names: Collection[str], now_s: float) -> frozenset[str]:
        """Those of `names` that were not heard of for their wait; each is said once."""
        found = set()
        for name in names:
            wait_s = self._wait_s.get(name, FIRST_S)
            if now_s - self._heard_s.setdefault(name, now_s) >= wait_s:
                found.add(name)
                self._heard_s[name] = self._tried_s[name] = now_s
                self._wait_s[name] = min(2 * wait_s, LAST_S)
        return frozenset(found)
