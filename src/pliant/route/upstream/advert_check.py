"""Compare the times of an upstream's answers with its adverts, and exclude it if they are far above."""

from collections.abc import Callable
from typing import final

from pliant.route.router_settings import RouterSettings

_LIE = 3.0
"""A peer whose work takes longer than advertised by this factor, plus 1 ms, has advertised a wrong time."""
_LIE_S = 1e-3
_STRIKES = 3
_HONEST = 16


@final
class AdvertCheck:
    """The exclusion of one upstream: after `_STRIKES` wrong times in a row, after one if it was excluded
    before. Each exclusion lasts twice as long as the last one; `_HONEST` accurate times clear the record.
    """

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._n_excluded = self._n_strikes = self._n_honest = 0
        self._struck_at_s = float("-inf")
        self.until_s = float("-inf")
        """The end of the last exclusion."""

    def is_excluded(self, now_s: float) -> bool:
        return now_s < self.until_s

    def exclude(self, now_s: float) -> float | None:
        """Exclude it from `now_s` on; return the seconds, None if it is excluded already."""
        if self.is_excluded(now_s):
            return None
        settings = self._settings
        wait_s = min(settings.aside_s * 2.0 ** min(self._n_excluded, 16), settings.aside_limit_s)
        self._n_excluded += 1
        self._n_strikes = self._n_honest = 0
        self.until_s = now_s + wait_s
        return wait_s

    def record_answer(
        self, work_s: float, told_s: float, away_s: float, is_best: Callable[[], bool], now_s: float
    ) -> bool:
        """Record an answer after `away_s` with `work_s` of work, where `told_s` were advertised; return
        whether it is to be excluded.

        A time above the advert counts as accurate if the choice was right anyway (`is_best`). A busy
        interpreter adds milliseconds to a model that takes less than one. Answers that were pending together
        may have met the same disturbance, and count as one.
        """
        if work_s <= _LIE * told_s + _LIE_S or is_best():
            self._n_strikes = 0
            self._n_honest += 1
            if self._n_honest >= _HONEST:
                self._n_excluded = 0
            return False
        if now_s - away_s < self._struck_at_s:
            return False
        self._n_strikes += 1
        self._n_honest, self._struck_at_s = 0, now_s
        return self._n_strikes >= (1 if self._n_excluded else _STRIKES)
