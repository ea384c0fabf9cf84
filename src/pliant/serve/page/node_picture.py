"""The state of a node for the page: models, endpoints, choice by length, memory, devices and counts."""

import time
from collections.abc import Sequence
from math import ceil

import msgspec

from pliant.cluster.lead.status_report import MemberStatus
from pliant.errors import BudgetError, PliantError, RouteError
from pliant.ir.port import Port
from pliant.route.choice.choose_endpoint import Option
from pliant.route.choice.request_terms import Terms
from pliant.route.upstream.peer_state import PeerState
from pliant.run.memory_use import MemoryUse
from pliant.run.process_memory import MemoryShare
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.page.answer_timeline import ClusterSplit, ShardBits, shards_of, split_of
from pliant.system import rss_bytes

_N_LENGTHS = 24
"""The number of lengths at which curves and choices are shown."""
_OUTCOMES = ("ok", "refused", "failed", "cancelled")


class PortPicture(msgspec.Struct, frozen=True):
    """An input or output; an open dimension is -1."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Device(msgspec.Struct, frozen=True):
    """Another device: an upstream node or a cluster worker; unknown values are None."""

    name: str
    kind: str
    state: str
    node: str | None = None
    reason: str | None = None
    rtt_s: float | None = None
    bandwidth_Bps: float | None = None
    in_flight: int | None = None
    limit: int | None = None
    waiting: int | None = None
    wait_s: float | None = None
    heard_s_ago: float | None = None
    free_bytes: int | None = None
    n_threads: int | None = None
    n_faults: int | None = None


class PlanPicture(msgspec.Struct, frozen=True):
    """A submodel of a store with `layers`, and the bits of its shards: planned, and already in memory."""

    layers: tuple[int, ...]
    width: int
    n_layers: int
    n_slices: int
    bits: tuple[tuple[int, ...], ...]
    held: tuple[tuple[int, ...], ...]
    latency_s: float
    accuracy: float | None
    reasons: tuple[str, ...]


class ModelPicture(msgspec.Struct, frozen=True):
    """Properties of a model that rarely change; `key` identifies it in the other events."""

    key: str
    name: str
    version: str
    platform: str
    identity: str
    max_length: int
    inputs: tuple[PortPicture, ...]
    outputs: tuple[PortPicture, ...]
    deadline_s: float | None
    floor: float | None
    best_effort: bool
    best: float | None
    endpoints: tuple[str, ...]
    memory: MemoryUse | None = None
    plan: PlanPicture | None = None


class NodePicture(msgspec.Struct, frozen=True):
    """Properties of a node that rarely change; `shows_texts` is set if the page keeps texts of requests."""

    name: str
    version: str
    run: str
    shows_texts: bool
    models: tuple[ModelPicture, ...]


class ModelNumbers(msgspec.Struct, frozen=True):
    """Continuously changing state of a model; `requests` by endpoint and outcome, as in `/metrics`."""

    requests: dict[str, dict[str, int]]
    n_open: int
    n_waiting: int
    backlog_s: float
    devices: tuple[Device, ...]
    share: MemoryShare | None
    shards: ShardBits | None
    split: ClusterSplit | None


class NodeNumbers(msgspec.Struct, frozen=True):
    """Continuously changing state of a node, by keys of models; `cpu_s` is the CPU time of its process."""

    at_s: float
    is_draining: bool
    cpu_s: float
    rss_bytes: int
    budget_bytes: int | None
    models: dict[str, ModelNumbers]


class Outlook(msgspec.Struct, frozen=True):
    """The current estimates of each endpoint for some lengths under given terms, and the choices.

    `seconds` and `bounds` have one entry per length for each endpoint, None if it is not a candidate.
    `chosen` is None at a length that would be refused, for the reason in `reasons`.
    """

    model: str
    lengths: tuple[int, ...]
    seconds: dict[str, tuple[float | None, ...]]
    bounds: dict[str, tuple[float | None, ...]]
    accuracies: dict[str, tuple[float | None, ...]]
    chosen: tuple[str | None, ...]
    reasons: tuple[str, ...]


def model_key(node: ServingNode) -> str:
    """The key of a node's model in events: several versions of one name may be loaded."""
    return f"{node.model.name}:{node.model.version}"


def model_picture(node: ServingNode) -> ModelPicture:
    """The picture of a node's model.

    It may wait for the session's current run, so do not call it on an event loop.
    """
    served, terms = node.served, node.terms
    return ModelPicture(
        model_key(node),
        served.name,
        node.model.version,
        served.platform,
        served.identity,
        served.max_length,
        _ports(node.signature.inputs),
        _ports(node.signature.outputs),
        terms.deadline_s,
        terms.accuracy_floor,
        bool(terms.best_effort),
        served.best,
        node.router.endpoints,
        _memory_of(node),
        _plan_of(node),
    )


def numbers(nodes: Sequence[ServingNode], is_draining: bool) -> NodeNumbers:
    """The current state of a process's nodes; fast."""
    return NodeNumbers(
        time.time(),
        is_draining,
        time.process_time(),
        rss_bytes(),
        next((node.budget_bytes for node in nodes), None),
        {model_key(node): _model_numbers(node) for node in nodes},
    )


def outlook(node: ServingNode, terms: Terms) -> Outlook:
    """Estimates and choices over the model's input lengths; `terms` override those of the node."""
    node.dispatcher.offer()
    now_s, asked = node.clock(), terms.with_defaults(node.terms)
    lengths = _lengths(node.served.max_length)
    found: list[dict[str, Option]] = []
    chosen: list[str | None] = []
    reasons = []
    for n in lengths:
        options = {o.name: o for o in node.router.options(n, now_s, node.objective, asked)}
        try:
            choice = node.router.choose(n, now_s, node.objective, terms=asked, is_coming=False)
            chosen.append(choice.target)
            reasons.append(choice.reason)
            options[choice.target] = choice.option
        except (RouteError, BudgetError) as refusal:
            chosen.append(None)
            reasons.append(str(refusal))
        found.append({name: option for name, option in options.items() if option.excluded != "memory"})
    names = tuple(dict.fromkeys(name for options in found for name in options))
    picked = {name: [options.get(name) for options in found] for name in names}
    return Outlook(
        node.served.name,
        lengths,
        {name: tuple(None if o is None else o.seconds for o in picked[name]) for name in names},
        {name: tuple(None if o is None else o.bound_s for o in picked[name]) for name in names},
        {name: tuple(None if o is None else o.accuracy for o in picked[name]) for name in names},
        tuple(chosen),
        tuple(reasons),
    )


def _ports(side: Sequence[Port]) -> tuple[PortPicture, ...]:
    return tuple(
        PortPicture(p.name, p.dtype, tuple(d if isinstance(d, int) else -1 for d in p.dims or ()))
        for p in side
    )


def _lengths(longest: int) -> tuple[int, ...]:
    """Lengths from 1 to the longest, denser where small."""
    shown = min(longest, 4096)
    return tuple(sorted({max(1, ceil(shown ** (i / (_N_LENGTHS - 1)))) for i in range(_N_LENGTHS)}))


def _memory_of(node: ServingNode) -> MemoryUse | None:
    try:
        return node.served.memory
    except PliantError:
        return None


def _plan_of(node: ServingNode) -> PlanPicture | None:
    """The plan of an elastic model; None for others, whose `plan` may load a model that was freed."""
    if not isinstance(node.served, ElasticSession):
        return None
    try:
        plan = node.served.plan
    except PliantError:
        return None
    return PlanPicture(
        plan.layers,
        plan.width,
        plan.shape.n_layers,
        plan.shape.n_slices,
        plan.bits,
        plan.held,
        plan.latency_s,
        plan.expected_accuracy,
        plan.reasons,
    )


def _model_numbers(node: ServingNode) -> ModelNumbers:
    now_s, latest = node.clock(), node.feed.latest
    details = None if latest is None else latest.details
    workers = () if node.workers is None else tuple(map(_worker, node.workers.status().members))
    return ModelNumbers(
        _requests(node),
        node.n_open,
        sum(local.n_waiting for local in node.dispatcher.here.values()),
        node.local.backlog_s,
        (*(_upstream(peer, now_s) for peer in node.router.states(now_s)), *workers),
        node.share,
        shards_of(details),
        split_of(details),
    )


def _requests(node: ServingNode) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for family in node.metrics.requests.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                row = counts.setdefault(sample.labels["target"], dict.fromkeys(_OUTCOMES, 0))
                row[sample.labels["outcome"]] = int(sample.value)
    return counts


def _upstream(peer: PeerState, now_s: float) -> Device:
    return Device(
        peer.name,
        "upstream",
        peer.state,
        peer.node,
        peer.reason,
        peer.rtt_s,
        peer.bandwidth_Bps,
        peer.n_in_flight,
        peer.limit,
        peer.n_waiting,
        peer.wait_s,
        None if peer.contact_s is None else now_s - peer.contact_s,
    )


def _worker(member: MemberStatus) -> Device:
    return Device(
        member.name,
        "worker",
        "ready" if member.is_usable else "excluded",
        reason=member.reason,
        heard_s_ago=member.heard_s_ago,
        free_bytes=member.free_bytes,
        n_threads=member.n_threads,
        n_faults=member.n_faults,
    )
