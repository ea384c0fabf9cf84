"""Back-off before an excluded device or link is trusted again.

Pure: no clock. Time without runs does not count.
"""

from collections.abc import Collection
from typing import final

FIRST_S = 30.0
LAST_S = 1920.0


@final
class RetryBackoff:
    """Excluded names are due after FIRST_S; the wait doubles each time that the retry fails."""

    def __init__(self) -> None:
        self._heard_s: dict[str, float] = {}
        self._tried_s: dict[str, float] = {}
        self._wait_s: dict[str, float] = {}
        self._last_s: float | None = None

    def record_reports(self, names: Collection[str], now_s: float) -> None:
        """Record that a run reported `names`; one that outlasts its wait starts at FIRST_S again."""
        self._last_s = now_s
        for name in names:
            self._heard_s[name] = now_s
            if name in self._tried_s and now_s - self._tried_s[name] >= self._wait_s[name]:
                del self._tried_s[name], self._wait_s[name]

    def take_due(self, names: Collection[str]) -> frozenset[str]:
        """Return those of `names` that runs have not reported for their wait, once per wait."""
        now_s, found = self._last_s, set()
        if now_s is None:
            return frozenset()
        for name in names:
            wait_s = self._wait_s.get(name, FIRST_S)
            if now_s - self._heard_s.setdefault(name, now_s) >= wait_s:
                found.add(name)
                self._heard_s[name] = self._tried_s[name] = now_s
                self._wait_s[name] = min(2 * wait_s, LAST_S)
        return frozenset(found)
