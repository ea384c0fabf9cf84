"""Explain a node's routing choice for each endpoint."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pliant.errors import BudgetError, RouteError
from pliant.quantities import format_bytes, format_seconds
from pliant.route.choice.choose_endpoint import Choice, Option
from pliant.route.choice.objective import Objective
from pliant.route.choice.request_terms import Terms
from pliant.route.router import Router
from pliant.route.upstream.peer_state import PeerState
from pliant.run.process_memory import MemoryShare
from pliant.serve.answers.endpoint_memory import EndpointMemory

_REASONS = {
    "unknown": "has not answered a ping yet",
    "down": "does not answer; pinged again with back-off",
    "aside": "sent invalid values, or took far longer than its curve says; excluded for a while",
    "mismatch": "serves another model or protocol version; pinged again with back-off",
    "circle": "its answers would come back through this node",
}
_CONSTRAINTS = {
    "memory": "has no memory for this length",
    "floor": "is less accurate than the floor",
    "deadline": "is later than the deadline",
}
_UNKNOWN = (None,) * 5
"""Times and energy of an endpoint that cannot be asked."""
MemoryOf = Callable[[str, int, float | None], EndpointMemory]
"""The memory of an endpoint of this device for an answer: its name, the length and the accuracy."""
_NOT_ASKED = "had no room, had failed or was already asked when the request was routed"


@dataclass(frozen=True, slots=True)
class EndpointEstimate:
    """One endpoint: seconds of transfer and queue, of the answer itself, and in total; None if unknown.

    95 % of its answers take at most `bound_s`, with `accuracy` (a fraction). `constraint` is the term of the
    request that it violates, or "memory". There is memory for inputs of up to length `most_n` (None: all
    that the model takes). Of the seconds of the answer, `compiling_s` are for compiling for the input's
    shape. `age_s` is the time since the last contact; `reason` is why it is excluded. `memory` is that of an
    endpoint of this device; of an upstream only `most_n` is known. `uncounted` is the option without which
    `energy_j` is 0, on a node that counts other joules.
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
    most_n: int | None = None
    compiling_s: float | None = None
    memory: EndpointMemory | None = None
    uncounted: str | None = None

    @property
    def summary(self) -> str:
        """The line that `route explain` prints for it."""
        found = []
        if self.total_s is not None and self.bound_s is not None:
            found.append(f"{format_seconds(self.total_s)}, 95 % within {format_seconds(self.bound_s)}")
        if self.transfer_s:
            found.append(f"transfer and queue {format_seconds(self.transfer_s)}")
        if self.compiling_s:
            found.append(f"compiling for this shape {format_seconds(self.compiling_s)}")
        if self.energy_j is not None and (self.energy_j or self.uncounted):
            why = f" (no {self.uncounted})" if self.uncounted else ""
            found.append(f"{self.energy_j:.3g} J{why}")
        if self.rtt_s is not None and self.bandwidth_Bps is not None and self.age_s is not None:
            trip = format_seconds(self.rtt_s) if self.rtt_s else "too short to measure"
            found.append(f"round trip {trip}, {format_bytes(self.bandwidth_Bps)}/s")
        elif self.rtt_s is not None:
            found.append("round trip not measured yet")
        if self.age_s is not None:
            found.append(f"last contact {format_seconds(self.age_s)} ago")
        if self.memory is not None:
            found.append(f"{self.memory}")
        if self.most_n is not None:
            found.append(f"memory for lengths up to {self.most_n}")
        why = self.reason or _CONSTRAINTS.get(self.constraint or "", "")
        return "; ".join([*found, why] if why else found)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The endpoint that `node` would choose now for an input of length `length`, and the rule or refusal.

    `memory` lists the weights held for each model, where several models share one budget.
    """

    node: str
    length: int
    deadline_s: float | None
    accuracy_floor: float | None
    target: str | None
    reason: str
    candidates: tuple[EndpointEstimate, ...]
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
            lines.append(f"{mark} {name:{longest}}  {accuracy:6}  {row.summary}".rstrip())
        for share in self.memory:
            loading = f", {format_seconds(share.loading_s)} loading per answer" if share.loading_s else ""
            of = (
                f"held of {format_bytes(share.share_bytes)}" if share.share_bytes else "mapped from its files"
            )
            held = f"{format_bytes(share.held_bytes)} {of}{loading}"
            asked_of = f"{share.n_asked:.3g} requests in the last minute"
            lines.append(f"memory of {share.name}: {held}, {asked_of}.")
        lines.append(self.reason if self.target is None else f"{self.target}: {self.reason}.")
        return "\n".join(lines)


def explain(
    router: Router,
    n: int,
    objective: Objective,
    terms: Terms,
    now_s: float,
    memory_of: MemoryOf | None = None,
) -> Explanation:
    """Every endpoint with its estimates, excluded upstreams too; those of this device first."""
    try:
        choice = router.choose(n, now_s, objective, terms=terms, is_coming=False)
        target, reason = choice.target, choice.reason
        chosen = {target: choice.option}
    except (RouteError, BudgetError) as refusal:
        target, reason, chosen = None, str(refusal), {}
    found = {option.name: option for option in router.options(n, now_s, objective, terms)} | chosen
    rows = _rows(router, n, found, target, now_s, memory_of)
    return Explanation(router.name, n, terms.deadline_s, terms.accuracy_floor, target, reason, rows)


def explain_answer(
    router: Router, n: int, choice: Choice, now_s: float, memory_of: MemoryOf | None = None
) -> tuple[EndpointEstimate, ...]:
    """Every endpoint with the estimates by which `choice` was made for an input of length n."""
    found = {option.name: option for option in (choice.option, *choice.runners_up)}
    rows = _rows(router, n, found, choice.target, now_s, memory_of)
    return tuple(
        row if row.target in found or row.reason is not None else replace(row, reason=_NOT_ASKED)
        for row in rows
    )


def _rows(
    router: Router,
    n: int,
    found: Mapping[str, Option],
    target: str | None,
    now_s: float,
    memory_of: MemoryOf | None,
) -> tuple[EndpointEstimate, ...]:
    rows, power, radio = [], router.settings.power, router.settings.radio
    for name in router.endpoints:
        why = "not measured yet; it is tried first" if router.curve_here(name) is None else None
        option = found.get(name)
        row = _row(name, router.name, option, n, name == target, why)
        if power is None and radio is not None and not row.energy_j:
            row = replace(row, uncounted="--power")
        if memory_of is not None:
            row = replace(row, memory=memory_of(name, n, None if option is None else option.accuracy))
        rows.append(row)
    for peer in router.states(now_s):
        age_s = None if peer.contact_s is None else now_s - peer.contact_s
        link, option = (age_s, peer.rtt_s, peer.bandwidth_Bps), found.get(peer.name)
        row = _row(peer.name, peer.node, option, n, peer.name == target, _reason(peer), link)
        rows.append(replace(row, uncounted="--radio") if power is not None and radio is None else row)
    return tuple(rows)


def _row(
    name: str,
    node: str | None,
    option: Option | None,
    n: int,
    is_chosen: bool,
    reason: str | None,
    link: tuple[float | None, float | None, float | None] = (None, None, None),
) -> EndpointEstimate:
    if option is None or option.level.reason is not None:
        reason = reason if option is None else option.level.reason
        return EndpointEstimate(name, node, is_chosen, None, *_UNKNOWN, None, reason, *link)
    about = name, node, is_chosen, option.accuracy
    if option.excluded == "memory":
        return EndpointEstimate(*about, *_UNKNOWN, option.excluded, reason, *link, option.level.most_n)
    answer_s = option.level.curve.at(n)
    times = option.seconds - answer_s, answer_s, option.seconds, option.bound_s, option.energy_j
    more = option.level.most_n, option.compiling_s or None
    return EndpointEstimate(*about, *times, option.excluded, reason, *link, *more)


def _reason(peer: PeerState) -> str | None:
    reason = _REASONS.get(peer.state)
    return reason if reason is None or peer.reason is None else f"{reason} ({peer.reason})"
