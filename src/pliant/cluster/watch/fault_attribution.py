"""Decide which member is at fault when a segment fails, from the members' reports."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pliant.errors import NonFiniteError, PeerLostError, PeerProtocolError

_A_BEAT_S = 0.1
"""A departed member that was heard more recently than this sent a Bye, rather than fell silent."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """`accuser` timed out waiting for `accused`, or received an invalid message (`is_misbehaviour`) or
    numbers that are not finite (`is_non_finite`).
    """

    accuser: str
    accused: str
    is_misbehaviour: bool
    reason: str
    is_non_finite: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """A member to exclude, and why; `is_liar` members are never admitted again.

    If it `is_non_finite`, the member sent numbers that are not finite, which the input may have caused.
    """

    member: str
    is_liar: bool
    reason: str
    is_non_finite: bool = False


@dataclass(frozen=True, slots=True)
class FaultCause:
    """What an error says of a fault: the peer that it names, if any, and the kind of the fault."""

    peer: str | None
    is_misbehaviour: bool
    reason: str
    is_non_finite: bool = False


def fault_of(error: BaseException) -> FaultCause:
    """Return the peer that `error` or its cause names, the kind of its fault, and the reason."""
    cause = error.__cause__ if error.__cause__ is not None else error
    match cause:
        case PeerLostError(peer=peer) | PeerProtocolError(peer=peer) | NonFiniteError(peer=peer):
            is_misbehaviour = isinstance(cause, PeerProtocolError)
            return FaultCause(peer, is_misbehaviour, str(cause), isinstance(cause, NonFiniteError))
        case _:
            return FaultCause(None, False, str(cause))


def attribute_faults(
    primary: str, accusations: Collection[Accusation], silent: Mapping[str, float]
) -> tuple[Verdict, ...]:
    """Return the members at fault in a fixed order, including those silent for so many seconds.

    A member that waits for another accuses it, and is itself accused by the members that wait for it. The
    fault therefore lies at the end of the chain: with accused members that accuse no other. In a circle,
    it lies with the most accused. An accusation of the primary, which judges, counts against its accuser,
    which may be in error. A silent or misbehaving member explains all waiting, so that no other member is
    at fault.
    """
    found: dict[str, Verdict] = {}
    for a in accusations:
        if a.accused == primary:
            found[a.accuser] = Verdict(a.accuser, False, f"blames the primary: {a.reason}", a.is_non_finite)
        elif a.is_misbehaviour:
            found[a.accused] = Verdict(a.accused, True, a.reason)
    for member, for_s in silent.items():
        reason = "it left" if for_s < _A_BEAT_S else f"not heard for {for_s:.1f} s"
        found.setdefault(member, Verdict(member, False, reason))
    waiting = [a for a in accusations if a.accused != primary]
    if not found and waiting:
        accusers = {a.accuser for a in waiting}
        ends = [a for a in waiting if a.accused not in accusers] or _most_accused(waiting)
        found = {a.accused: Verdict(a.accused, False, a.reason, a.is_non_finite) for a in reversed(ends)}
    return tuple(found[member] for member in sorted(found) if member != primary)


def _most_accused(waiting: Collection[Accusation]) -> list[Accusation]:
    counts = Counter(a.accused for a in waiting)
    worst = max(sorted(counts), key=lambda member: counts[member])
    return [a for a in waiting if a.accused == worst]
