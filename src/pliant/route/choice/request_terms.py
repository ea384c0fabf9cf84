"""The terms of a request: deadline, accuracy, and whether a late answer is wanted."""

from dataclasses import dataclass
from math import isfinite
from numbers import Real

from pliant.errors import InputError
from pliant.quantities import format_seconds

_LONGEST_S = 1e6


@dataclass(frozen=True, slots=True)
class Terms:
    """`deadline_s` from now to the answer, and the least accuracy (a fraction); None if unspecified.

    If no answer is expected by the deadline, none is given, unless with `best_effort` (None: unspecified).
    `given_s` is the deadline at the arrival of the request, for error messages; None if it is `deadline_s`.
    Raises InputError for values out of range.
    """

    deadline_s: float | None = None
    accuracy_floor: float | None = None
    best_effort: bool | None = None
    given_s: float | None = None

    def __post_init__(self) -> None:
        deadline_s, floor = self.deadline_s, self.accuracy_floor
        if deadline_s is not None and not (
            _is_number(deadline_s) and 0 < deadline_s <= _LONGEST_S and isfinite(deadline_s)
        ):
            raise InputError(f"deadline_s is {deadline_s!r}; give seconds above 0, up to {_LONGEST_S:g}.")
        if floor is not None and not (_is_number(floor) and 0 <= floor <= 1):
            raise InputError(f"accuracy_floor is {floor!r}; give a fraction, 0 to 1.")
        if self.best_effort not in (None, True, False):
            raise InputError(f"best_effort is {self.best_effort!r}; give True or False.")

    def with_defaults(self, usual: "Terms") -> "Terms":
        """Return these terms, completed by `usual` where unspecified."""
        return Terms(
            usual.deadline_s if self.deadline_s is None else self.deadline_s,
            usual.accuracy_floor if self.accuracy_floor is None else self.accuracy_floor,
            usual.best_effort if self.best_effort is None else self.best_effort,
            self.given_s,
        )

    @property
    def left(self) -> str:
        """What is left of the deadline, as text for error messages."""
        return left_of(self.deadline_s or 0.0, self.given_s)


def left_of(left_s: float, given_s: float | None) -> str:
    """Return the text that `left_s` are left of a deadline of `given_s`, or of one that is not named."""
    whole = "" if given_s is None else f" of {format_seconds(given_s)}"
    return f"{left_s * 1e3:.4g} ms are left of the deadline{whole}"


def _is_number(value: object) -> bool:
    return isinstance(value, float | int | Real) and not isinstance(value, bool)


NO_TERMS = Terms()
"""The most accurate answer, without a deadline."""
