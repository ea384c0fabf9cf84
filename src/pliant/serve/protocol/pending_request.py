"""The terms of a request, deadline and accuracy, read from its parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from pliant.errors import InputError
from pliant.ir.endpoint import Request
from pliant.ir.times.timing import is_in_time
from pliant.route.choice.request_terms import Terms, left_of

LEAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request in progress: its input, its due time on the node's clock, and its accuracy floor.

    `client` is the address of the caller. An endpoint works at most `most_s` seconds on it, at the accuracy
    that this allows, because other requests wait. `given_s` is its whole deadline, for error messages.
    """

    request: Request
    due_s: float | None = None
    floor: float | None = None
    best_effort: bool = False
    client: str = ""
    most_s: float | None = None
    given_s: float | None = None

    @property
    def length(self) -> int:
        return self.request.length

    @property
    def has_no_terms(self) -> bool:
        """Whether the request has no terms: any time, the best accuracy."""
        return self.due_s is None and self.floor is None

    def left_s(self, now_s: float) -> float:
        """Seconds until the request is due; infinity without a deadline."""
        return inf if self.due_s is None else self.due_s - now_s

    def met(self, end_s: float) -> bool | None:
        """Whether an answer at `end_s` is in time; None without a deadline."""
        return is_in_time(end_s, self.due_s)

    def terms_at(self, now_s: float) -> Terms:
        """The terms at `now_s`, with the remaining time."""
        left_s = None if self.due_s is None else max(self.left_s(now_s), LEAST_S)
        return Terms(left_s, self.floor, self.best_effort, self.given_s)

    def left_text(self, now_s: float) -> str:
        """What is left of its deadline at `now_s`, as text for error messages."""
        return left_of(max(self.left_s(now_s), 0.0), self.given_s)

    def at(self, now_s: float) -> Request:
        """The request for an endpoint at `now_s`."""
        left_s = self.terms_at(now_s).deadline_s
        if left_s is not None and self.most_s is not None:
            left_s = min(left_s, self.most_s)
        return replace(self.request, deadline_s=left_s, accuracy_floor=self.floor)

    def forwarded_terms(self, now_s: float, way_s: float) -> Terms:
        """The terms for another node with a round trip of `way_s`."""
        left_s = None if self.due_s is None else max(self.left_s(now_s) - way_s, LEAST_S)
        return Terms(left_s, self.floor, self.best_effort or None)


_TERMS = ("deadline_s", "accuracy_floor", "best_effort", "objective")
_LIKE_TERMS = {
    **dict.fromkeys(("deadline", "latency"), "deadline_s"),
    **dict.fromkeys(("accuracy", "floor"), "accuracy_floor"),
    **dict.fromkeys(("best_eff", "best-eff", "besteff"), "best_effort"),
    "objective": "objective",
}
"""How misspelt names of terms begin, in any case, and the terms."""


def read_terms(parameters: Mapping[str, Any]) -> Terms:
    """Read the terms in a request's `parameters`.

    Raises InputError for values that are not numbers in range, and for a name that looks like a misspelt
    term: the request would run without it. Other unknown names are those of other servers, and ignored.
    """
    for name in parameters:
        if name in _TERMS:
            continue
        meant = next((term for start, term in _LIKE_TERMS.items() if name.lower().startswith(start)), None)
        if meant is not None:
            raise InputError(
                f"the parameter {name!r:.40} is unknown; give {meant}. The terms are {', '.join(_TERMS)}."
            )
    best_effort = parameters.get("best_effort")
    if "best_effort" in parameters and type(best_effort) is not bool:
        raise InputError(f"best_effort is {best_effort!r:.40}; give true or false.")
    found: list[float | None] = []
    for name in ("deadline_s", "accuracy_floor"):
        value = parameters.get(name)
        if name in parameters and type(value) not in (int, float):
            raise InputError(f"{name} is {value!r:.40}; give a number.")
        try:
            found.append(None if value is None else float(value))
        except OverflowError as error:
            raise InputError(f"{name} has too many digits; give a number in range.") from error
    return Terms(found[0], found[1], best_effort)
