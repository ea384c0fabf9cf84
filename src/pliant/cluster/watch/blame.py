"""Decide which member is at fault when a segment fails, from the members' reports."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pliant.errors import PeerLost, PeerMisbehaved

_A_BEAT_S = 0.1
"""Who is gone, and was heard more lately than this, said goodbye."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """`accuser` waited for `accused` in vain, or got what it must not get (`is_misbehaviour`)."""

    accuser: str
    accused: str
    is_misbehaviour: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is left out of what follows, and why; `is_liar` members are never taken in again."""

    member: str
    is_liar: bool
    reason: str


def fault_of(error: BaseException) -> tuple[str | None, bool, str]:
    """(the peer that `error`, or what caused it, names; whether it lied; what happened)."""
    cause = error.__cause__ if error.__cause__ is not None else error
    if isinstance(cause, PeerLost | PeerMisbehaved):
        return cause.peer, isinstance(cause, PeerMisbehaved), str(cause)
    return None, False, str(cause)


def judge(
    primary: str, accusations: Collection[Accusation], silent: Mapping[str, float]
) -> tuple[Verdict, ...]:
    """The members at fault, those silent for so many seconds among them, in a fixed order.

    A member that waits for another accuses it, and is itself accused by whoever waits for it: so the fault
    lies at the end of the chain, with the accused that accuse nobody. Where the chain is a circle, with the
    most accused. An accusation of the primary, which judges, falls back on its accuser, who may err;
    whoever is silent or has lied explains all waiting, and then nobody else is at fault.
    """
    found: dict[str, Verdict] = {}
    for a in accusations:
        if a.accused == primary:
            found[a.accuser] = Verdict(a.accuser, False, f"blames the primary: {a.reason}")
        elif a.is_misbehaviour:
            found[a.accused] = Verdict(a.accused, True, a.reason)
    for member, for_s in silent.items():
        reason = "it left" if for_s < _A_BEAT_S else f"not heard for {for_s:.1f} s"
        found.setdefault(member, Verdict(member, False, reason))
    waiting = [a for a in accusations if a.accused != primary]
    if not found and waiting:
        accusers = {a.accuser for a in waiting}
        ends = [a for a in waiting if a.accused not in accusers] or _most_accused(waiting)
        found = {a.accused: Verdict(a.accused, False, a.reason) for a in reversed(ends)}
    return tuple(found[member] for member in sorted(found) if member != primary)


def _most_accused(waiting: Collection[Accusation]) -> list[Accusation]:
    counts = Counter(a.accused for a in waiting)
    worst = max(sorted(counts), key=lambda member: counts[member])
    return [a for a in waiting if a.accused == worst]
