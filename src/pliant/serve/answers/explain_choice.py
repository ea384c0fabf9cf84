"""Explain a node's choice, endpoint by endpoint."""

from dataclasses import dataclass, replace

from pliant.errors import BudgetError, RouteError
from pliant.quantities import format_bytes, format_seconds
from pliant.route.choice.choose_endpoint import Option
from pliant.route.choice.objective import Objective
from pliant.route.choice.terms import Terms
from pliant.route.router import Router
from pliant.route.upstream.peer_state import PeerState
from pliant.run.process_memory import MemoryShare

_REASONS = {
    "unknown": "has not answered a ping yet",
    "down": "does not answer; pinged again with back-off",
    "aside": "sent what cannot be, or took far longer than it told; set aside for a while",
    "mismatch": "holds another model, or speaks another protocol; pinged again with back-off",
    "circle": "its answers would come back through this node",
}
_CONSTRAINTS = {"floor": "is less accurate than the floor", "deadline": "is later than the deadline"}


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate: seconds on the way (or waiting, here), of the answer itself, and in total.

    95 % of its answers come within `bound_s`, with `accuracy` (a fraction). `constraint` is what it does not
    keep of the request's terms. `age_s` is since it was last heard; `reason` says why it is no candidate.
    None where unknown.
    """

    target: str
    node: str | None
    is_chosen: bool
    accuracy: float | None
    transfer_s: float | None
    answer_s: float | None
    total_s: float | None
    bound_s: float | None
    energy_j: float | None
    constraint: str | None
    reason: str | None
    age_s: float | None = None
    rtt_s: float | None = None
    bandwidth_Bps: float | None = None

    @property
    def words(self) -> str:
        """What is known of it, for people."""
        found = []
        if self.total_s is not None and self.bound_s is not None:
            found.append(f"{format_seconds(self.total_s)}, 95 % within {format_seconds(self.bound_s)}")
        if self.transfer_s:
            found.append(f"transfer and queue {format_seconds(self.transfer_s)}")
        if self.energy_j:
            found.append(f"{self.energy_j:.3g} J")
        if self.rtt_s is not None and self.bandwidth_Bps is not None:
            found.append(f"round trip {format_seconds(self.rtt_s)}, {format_bytes(self.bandwidth_Bps)}/s")
        if self.age_s is not None:
            found.append(f"last contact {format_seconds(self.age_s)} ago")
        why = self.reason or _CONSTRAINTS.get(self.constraint or "", "")
        return "; ".join([*found, why] if why else found)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `node` would do with an input of length `length` now, and the rule or refusal that decides.

    `memory` says what of a budget is held for each of its models, where several share one.
    """

    node: str
    length: int
    deadline_s: float | None
    accuracy_floor: float | None
    target: str | None
    reason: str
    candidates: tuple[Row, ...]
    memory: tuple[MemoryShare, ...] = ()

    def __str__(self) -> str:
        asked = [f"{self.node}, an input of length {self.length}"]
        if self.deadline_s is not None:
            asked.append(f"within {format_seconds(self.deadline_s)}")
        if self.accuracy_floor is not None:
            asked.append(f"at an accuracy of {self.accuracy_floor:g} or more")
        lines = [" ".join(asked) + ":"]
        names = [
            row.target if row.node in (None, self.node) else f"{row.target} ({row.node})"
            for row in self.candidates
        ]
        longest = max(map(len, names), default=0)
        for name, row in zip(names, self.candidates, strict=True):
            accuracy = "" if row.accuracy is None else f"{row.accuracy:.4f}"
            mark = "->" if row.is_chosen else "  "
            lines.append(f"{mark} {name:{longest}}  {accuracy:6}  {row.words}".rstrip())
        for share in self.memory:
            loading = f", answers load for {format_seconds(share.loading_s)}" if share.loading_s else ""
            held = f"{format_bytes(share.held_bytes)} held of {format_bytes(share.share_bytes)}{loading}"
            asked_of = f"asked {share.n_asked:.3g} times in the last minute"
            lines.append(f"memory of {share.name}: {held}, {asked_of}.")
        lines.append(self.reason if self.target is None else f"{self.target}: {self.reason}.")
        return "\n".join(lines)


def explain(router: Router, n: int, objective: Objective, terms: Terms, now_s: float) -> Explanation:
    """Every candidate and every upstream that is none, those of this device first."""
    try:
        choice = router.choose(n, now_s, objective, terms=terms, is_coming=False)
        target, reason = choice.target, choice.reason
        chosen = {target: choice.option}
    except (RouteError, BudgetError) as refusal:
        target, reason, chosen = None, str(refusal), {}
    found = {option.name: option for option in router.options(n, now_s, objective, terms)} | chosen
    rows = []
    for name in router.endpoints:
        why = "was never measured, and is tried first" if router.curve_here(name) is None else None
        rows.append(_row(name, router.name, found.get(name), n, name == target, why))
    for peer in router.states(now_s):
        row = _row(peer.name, peer.node, found.get(peer.name), n, peer.name == target, _reason(peer))
        age_s = None if peer.contact_s is None else now_s - peer.contact_s
        rows.append(replace(row, age_s=age_s, rtt_s=peer.rtt_s, bandwidth_Bps=peer.bandwidth_Bps))
    return Explanation(router.name, n, terms.deadline_s, terms.accuracy_floor, target, reason, tuple(rows))


def _row(
    name: str, node: str | None, option: Option | None, n: int, is_chosen: bool, reason: str | None
) -> Row:
    if option is None:
        unknown = (None,) * 7
        return Row(name, node, is_chosen, *unknown, reason)
    answer_s = option.level.curve.at(n)
    return Row(
        name,
        node,
        is_chosen,
        option.accuracy,
        option.seconds - answer_s,
        answer_s,
        option.seconds,
        option.bound_s,
        option.energy_j,
        option.excluded,
        reason,
    )


def _reason(peer: PeerState) -> str | None:
    reason = _REASONS.get(peer.state)
    return reason if reason is None or peer.reason is None else f"{reason} ({peer.reason})"
