"""The terms of a request: deadline, accuracy, and whether a late answer is wanted."""

from dataclasses import dataclass
from math import isfinite

from pliant.errors import InputError

_LONGEST_S = 1e6


@dataclass(frozen=True, slots=True)
class Terms:
    """`deadline_s` from now to the answer, and the least accuracy (a fraction); None if unspecified.

    If no answer is expected by the deadline, none is given, unless with `best_effort` (None: unspecified).
    Raises InputError for values out of range.
    """

    deadline_s: float | None = None
    accuracy_floor: float | None = None
    best_effort: bool | None = None

    def __post_init__(self) -> None:
        deadline_s, floor = self.deadline_s, self.accuracy_floor
        if deadline_s is not None and not (0 < deadline_s <= _LONGEST_S and isfinite(deadline_s)):
            raise InputError(f"deadline_s is {deadline_s}; give seconds above 0, up to {_LONGEST_S:g}.")
        if floor is not None and not 0 <= floor <= 1:
            raise InputError(f"accuracy_floor is {floor}; give a fraction, 0 to 1.")

    def with_defaults(self, usual: "Terms") -> "Terms":
        """Return these terms, completed by `usual` where unspecified."""
        return Terms(
            usual.deadline_s if self.deadline_s is None else self.deadline_s,
            usual.accuracy_floor if self.accuracy_floor is None else self.accuracy_floor,
            usual.best_effort if self.best_effort is None else self.best_effort,
        )


NO_TERMS = Terms()
"""The most accurate answer, without a deadline."""
