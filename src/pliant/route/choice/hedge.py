"""Where an answer from above may be late: what to begin at an endpoint of this device, and when."""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.ir.endpoint import ALIKE
from pliant.ir.times.timing import chance
from pliant.route.choice.choose_endpoint import Candidate, Choice, soonest
from pliant.route.choice.terms import Terms

_SPARE, _SPARE_S = 1.05, 0.005
"""An answer from here is begun so much before its bound asks for it: threads and sockets take time."""


@dataclass(frozen=True, slots=True)
class Hedge:
    """Have `choice` answer as well, unless the upstream has answered after `after_s` seconds."""

    choice: Choice
    after_s: float


def hedge(n: int, choice: Choice, here: Sequence[Candidate], terms: Terms) -> Hedge | None:
    """What to begin at one of `here`, which have room, while `choice` is away with an input of length n.

    That is the one with the least bound at or above the floor, as late as its bound allows. None where there
    is no deadline, where none of `here` can keep it, and where an answer from above is expected after that
    and is bound to be in time: else most requests would be answered twice, though hardly one is late.
    """
    if terms.deadline_s is None:
        return None
    found = soonest(n, here, terms)
    if found is None:
        return None
    after_s = _latest_s(terms.deadline_s, found)
    if after_s <= 0.0:
        return None
    is_worth = after_s >= choice.seconds or choice.option.bound_s > terms.deadline_s
    return Hedge(found, after_s) if is_worth and not _crowds(n, choice, found, here, terms, after_s) else None


def spare_s(choice: Choice, other: Choice, terms: Terms) -> float:
    """How long a request whose turn at `choice` is late waits on before it leaves for `other`: not at all
    for an answer as accurate that is bound to be in time, else as long as the deadline allows."""
    if terms.deadline_s is None:
        return 0.0
    is_as_good = other.option.level.quality >= choice.option.level.quality - ALIKE
    return (
        0.0 if is_as_good and other.option.bound_s <= terms.deadline_s else _latest_s(terms.deadline_s, other)
    )


def _latest_s(deadline_s: float, choice: Choice) -> float:
    """When an answer is to be begun at the latest, if its bound is to keep the deadline."""
    return deadline_s - _SPARE * choice.option.bound_s - _SPARE_S


def _crowds(
    n: int, choice: Choice, found: Choice, here: Sequence[Candidate], terms: Terms, after_s: float
) -> bool:
    """Whether an answer by `found` makes more requests late, of those that depend on its endpoint, than the
    one that it may save. It is begun for answers that take `after_s` and more."""
    crowding = next(c.crowding for c in here if c.name == found.target)
    if crowding is None or terms.deadline_s is None:
        return False
    begun, late = (
        1.0 - chance(choice.seconds, choice.option.bound_s, at_s) for at_s in (after_s, terms.deadline_s)
    )
    work_s = found.option.level.curve.at(n)
    return begun * crowding.lost(found.option.seconds - work_s, work_s) > late
