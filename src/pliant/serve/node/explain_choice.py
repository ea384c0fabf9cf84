"""Explain a node's choice as a table."""

from collections.abc import Callable
from dataclasses import dataclass

from pliant.errors import RouteError
from pliant.route.choose_endpoint import LOCAL, Choice, Objective, Option
from pliant.route.peer import PeerState
from pliant.route.router import Router
from pliant.serve.node.metrics import HERE

_REASONS = {
    "unknown": "has not answered a ping yet",
    "down": "does not answer; pinged again with back-off",
    "aside": "sent what cannot be, or took far longer than it told; set aside for a while",
    "mismatch": "holds another model, or speaks another protocol; pinged again with back-off",
    "circle": "its answers would come back through this node",
}

_LATE = "its answer would be late, and another one from here is in time or sooner"


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate: seconds on the way (or waiting, here), of the answer itself, and in total.

    `age_s` is since it was last heard; `reason` says why it is no candidate. None where unknown.
    """

    target: str
    node: str | None
    is_chosen: bool
    transfer_s: float | None
    answer_s: float | None
    total_s: float | None
    energy_j: float | None
    age_s: float | None
    rtt_s: float | None
    bandwidth_Bps: float | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `node` would do with an input of length `length` now."""

    node: str
    length: int
    target: str | None
    candidates: tuple[Row, ...]


def explain(
    router: Router,
    n: int,
    objective: Objective,
    waiting_s: float,
    now_s: float,
    is_asked: Callable[[Choice], bool],
    refusal: str | None = None,
) -> Explanation:
    """Every candidate and every upstream that is none, this device first.

    `refusal` says why this device would not answer, where the request has a deadline that it cannot keep.
    `is_asked` says whether a node above that was chosen is asked, by the terms that requests have.
    """
    late = None
    try:
        choice = router.choose(n, now_s, objective, is_coming=False)
        target: str | None = choice.target
        options = (Option(choice.target, choice.seconds, choice.energy_j, 0.0), *choice.runners_up)
        if target != LOCAL and not is_asked(choice):
            target, late = LOCAL, target
        if target == LOCAL and refusal is not None:
            target = None
    except RouteError:
        target, options = None, ()
    found = {option.name: option for option in options}
    curve, here = router.local_curve, found.get(LOCAL)
    local = Row(
        target=HERE,
        node=router.name,
        is_chosen=target == LOCAL,
        transfer_s=waiting_s,
        answer_s=None if curve is None else curve.at(n),
        total_s=None if here is None else here.seconds,
        energy_j=None if here is None else here.energy_j,
        age_s=None,
        rtt_s=None,
        bandwidth_Bps=None,
        reason=refusal if curve is not None else "was never measured, and is tried first",
    )
    rows = [local]
    for peer in router.states(now_s):
        option = found.get(peer.name)
        answer_s = None if peer.curve is None else peer.curve.at(n)
        rows.append(
            Row(
                target=peer.name,
                node=peer.node,
                is_chosen=target == peer.name,
                transfer_s=None if option is None or answer_s is None else option.seconds - answer_s,
                answer_s=answer_s,
                total_s=None if option is None else option.seconds,
                energy_j=None if option is None else option.energy_j,
                age_s=None if peer.contact_s is None else now_s - peer.contact_s,
                rtt_s=peer.rtt_s,
                bandwidth_Bps=peer.bandwidth_Bps,
                reason=_LATE if peer.name == late else _reason(peer),
            )
        )
    chosen = HERE if target == LOCAL else target
    return Explanation(router.name, n, chosen, tuple(rows))


def _reason(peer: PeerState) -> str | None:
    reason = _REASONS.get(peer.state)
    return reason if reason is None or peer.reason is None else f"{reason} ({peer.reason})"
