"""Levels of an endpoint that has memory for inputs up to a length."""

from typing import final

from pliant.errors import BudgetError
from pliant.ir.endpoint import ServiceLevel


@final
class LimitedLevels:
    """Applies a limit to levels, and returns the same tuple until the levels or the limit change."""

    def __init__(self) -> None:
        self._last: tuple[tuple[ServiceLevel, ...], int, tuple[ServiceLevel, ...]] | None = None

    def at(self, levels: tuple[ServiceLevel, ...], most_n: int | None) -> tuple[ServiceLevel, ...]:
        """Return `levels` for inputs of up to length `most_n`; None is no limit."""
        if most_n is None:
            return levels
        last = self._last
        if last is None or last[0] is not levels or last[1] != most_n:
            last = self._last = levels, most_n, tuple(level.limited(most_n) for level in levels)
        return last[2]


def check_length(name: str, n: int, most_n: int | None) -> None:
    """Raise BudgetError for an input of length n if endpoint `name` has memory for up to `most_n` only."""
    if most_n is not None and n > most_n:
        raise BudgetError(
            f"an input of length {n} needs more memory than {name} has, which is enough for {most_n}: give "
            "it a shorter input, or more memory."
        )
