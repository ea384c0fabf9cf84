"""Hedging: when an upstream's answer may be late, what to start on this device, and when."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pliant.ir.endpoint import ACCURACY_TOLERANCE, RESOLUTION
from pliant.ir.times.timing import chance
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import Choice, choose, choose_soonest
from pliant.route.choice.request_terms import Terms

_SPARE, _SPARE_S = 1.05, 0.005
"""Safety margin before the latest start of a local answer: threads and sockets take time."""
_OVERDUE = 3.0
"""An answer is overdue well beyond its bound after this multiple of it."""
_TWICE = 0.25
"""Share of requests that may be answered twice, though hardly any is late."""


@dataclass(frozen=True, slots=True)
class Hedge:
    """Start `choice` as well, unless the upstream has answered after `after_s` seconds."""

    choice: Choice
    after_s: float


def hedge(n: int, choice: Choice, here: Sequence[Candidate], terms: Terms) -> Hedge | None:
    """Return the hedge on one of `here`, which have room, while `choice` is away with an input of length n.

    It is the option with the least bound at or above the floor, started as late as its bound allows. If the
    deadline leaves more time, it is the best option half-way between the upstream's bound and that start, but
    not before `_OVERDUE` bounds: a more accurate level is then in time, also on a busy machine. The latest
    start remains if the earlier one would make more requests late than it saves (`Crowding`). If the
    upstream's answer is expected later than the latest start, but bound to be in time, it is started once
    most such answers have arrived, provided that its median is still in time: otherwise most requests would
    be answered twice, though hardly any is late. None without a deadline, and if none of `here` can meet it.
    """
    if terms.deadline_s is None:
        return None
    found = choose_soonest(n, here, terms)
    if found is None:
        return None
    after_s = _latest_s(terms.deadline_s, found)
    is_worth = after_s >= choice.seconds or choice.option.bound_s > terms.deadline_s
    if after_s <= 0.0 or not is_worth:
        late_s = overdue_s(choice.seconds, choice.option.bound_s, found, terms.deadline_s)
        if late_s is None:
            return None
        after_s = late_s
    elif (early_s := _early_s(choice.option.bound_s, after_s)) < after_s:
        left_s = (terms.deadline_s - early_s - _SPARE_S) / _SPARE
        early = choose(n, here, terms=replace(terms, deadline_s=left_s))
        if early.option.bound_s <= left_s and not _crowds(n, choice, early, here, terms, early_s):
            return Hedge(early, early_s)
    return None if _crowds(n, choice, found, here, terms, after_s) else Hedge(found, after_s)


def overdue_s(seconds: float, bound_s: float, other: Choice, deadline_s: float) -> float | None:
    """Return when to start `other` beside an answer of median `seconds` and bound `bound_s`, after its start.

    That is at the bound. If `other` would be late then, it is as late as the median of `other` allows; None
    if that is before most such answers have arrived.
    """
    after_s = min(bound_s, deadline_s - _SPARE * other.seconds - _SPARE_S)
    return None if after_s < seconds or 1.0 - chance(seconds, bound_s, after_s) > _TWICE else after_s


def spare_s(choice: Choice, other: Choice, terms: Terms) -> float:
    """Return how long a request that is overdue at `choice` keeps waiting before it moves to `other`.

    0 for an equally accurate answer that is bound to be in time, else as long as the deadline allows.
    """
    if terms.deadline_s is None:
        return 0.0
    least = choice.option.level.quality - RESOLUTION - ACCURACY_TOLERANCE
    is_as_good = other.option.level.quality >= least
    return (
        0.0 if is_as_good and other.option.bound_s <= terms.deadline_s else _latest_s(terms.deadline_s, other)
    )


def _latest_s(deadline_s: float, choice: Choice) -> float:
    """Return the latest start of an answer whose bound is to meet the deadline."""
    return deadline_s - _SPARE * choice.option.bound_s - _SPARE_S


def _early_s(bound_s: float, latest_s: float) -> float:
    """Return the start of an answer beside one of bound `bound_s`, if it is well before `latest_s`."""
    return min(max(_OVERDUE * bound_s, (bound_s + latest_s) / 2.0), latest_s)


def _crowds(
    n: int, choice: Choice, found: Choice, here: Sequence[Candidate], terms: Terms, after_s: float
) -> bool:
    """Return whether `found` makes more requests late that depend on its endpoint than it may save.

    It is started for answers that take `after_s` or more.
    """
    crowding = next(c.crowding for c in here if c.name == found.target)
    if crowding is None or terms.deadline_s is None:
        return False
    begun, late = (
        1.0 - chance(choice.seconds, choice.option.bound_s, at_s) for at_s in (after_s, terms.deadline_s)
    )
    work_s = found.option.level.curve.at(n)
    return begun * crowding.expected_late(found.option.seconds - work_s, work_s) > late
