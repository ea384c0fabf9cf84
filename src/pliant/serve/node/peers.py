"""Add and remove upstreams and workers of a running node or session, as `POST /v2/pliant/peers` does."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

import msgspec

from pliant.cluster.lead.status_report import MemberStatus
from pliant.errors import InputError, NodeError
from pliant.route.upstream.peer_state import PeerState
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.node.worker_registry import WorkerRegistry
from pliant.serve.upstream.client import checked_url
from pliant.serve.upstream.upstreams import Upstreams

PEERS_PATH = "/v2/pliant/peers"
MOST_UPSTREAMS = 256
"""Limit, since each upstream is pinged and evaluated for every request."""


class PeerChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of peers: URLs in `add` become upstreams, those in `remove` are no longer used.

    Workers of the cluster in `remove_workers` are left out of its plans until they are in `add_workers`. A
    new worker joins by itself (`pliant worker --join`).
    """

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    add_workers: tuple[str, ...] = ()
    remove_workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """The state of an upstream: `state` is ready, unknown, down, aside, circle or mismatch.

    `is_found` is set if it was discovered by its announcement rather than configured. `heard_s_ago` is the
    time since its last answer, None before the first: without requests, a failure shows at the next ping.
    """

    url: str
    node: str | None
    state: str
    reason: str | None
    is_found: bool = False
    heard_s_ago: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker of the node's cluster; `reason` explains why it is unused, if it is."""

    name: str
    is_usable: bool
    reason: str | None
    heard_s_ago: float | None
    n_faults: int


@dataclass(frozen=True, slots=True)
class PeerList:
    """Upstreams, names of recently seen downstream nodes, and workers of the cluster."""

    upstreams: tuple[UpstreamState, ...]
    predecessors: tuple[str, ...]
    workers: tuple[WorkerState, ...] = ()


def list_peers(node: ServingNode) -> PeerList:
    """The peers that the router knows."""
    now_s, cluster = node.clock(), node.workers
    found = () if node.upstreams is None else node.upstreams.discovered
    return PeerList(
        tuple(_upstream(peer, peer.name in found, now_s) for peer in node.router.states(now_s)),
        node.router.predecessors.names,
        () if cluster is None else tuple(_worker(member) for member in cluster.status().members),
    )


def read_changes(given: bytes | Mapping[str, Collection[str]]) -> PeerChanges:
    """Return the changes that are `given` as JSON or by name. Raises InputError."""
    try:
        if isinstance(given, bytes):
            return msgspec.json.decode(given, type=PeerChanges)
        return msgspec.convert(given, PeerChanges)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f'the changes cannot be read: {error}; give {{"add": ["URL"]}}.') from error


def change_peers(node: ServingNode, changes: PeerChanges) -> PeerList:
    """Add and remove upstreams and workers, atomically; call on the node's event loop.

    Adding an existing upstream or removing a missing one is not an error, so the call is idempotent. Requests
    that wait for a removed upstream use other endpoints; those in flight still complete. Raises InputError
    for an invalid URL, for a worker that never joined, and for too many upstreams.
    """
    try:
        add, remove = ([checked_url(url) for url in urls] for urls in (changes.add, changes.remove))
    except NodeError as error:
        raise InputError(str(error)) from error
    if node.upstreams is None:
        raise NodeError("this node is not connected yet; try again.", status=503, retry_after_s=1)
    known = {peer.name for peer in node.router.states(node.clock())}
    if both := set(add) & set(remove):
        raise InputError(f"{', '.join(sorted(both))} is both added and removed; give one of them.")
    _check_count((known | set(add)) - set(remove))
    cluster = _checked_cluster(node, changes)
    for url in remove:
        node.upstreams.discovered.bar(url)
    for url in add:
        node.upstreams.discovered.pin(url)
    _change_upstreams(node.upstreams, add, remove)
    if cluster is not None:
        for name in changes.remove_workers:
            cluster.dismiss(name)
        for name in changes.add_workers:
            cluster.readmit(name)
    return list_peers(node)


def upstreams_with(node: ServingNode, configured: Collection[str]) -> frozenset[str]:
    """The upstreams that the node would have if its options named `configured`. Raises InputError."""
    known = frozenset(peer.name for peer in node.router.states(node.clock()))
    if node.upstreams is None:
        return known
    added, removed = node.upstreams.discovered.changes(configured)
    return _check_count((known | added) - removed)


def configure_upstreams(node: ServingNode, configured: Collection[str]) -> None:
    """Use the upstreams that the node's options name now instead of those before.

    Those that an operator added stay, and those that one removed do not come back. Requests go on as for
    `change_peers`. `upstreams_with` checks the number before.
    """
    if node.upstreams is not None:
        _change_upstreams(node.upstreams, *node.upstreams.discovered.configure(configured))


def _change_upstreams(upstreams: Upstreams, add: Iterable[str], remove: Iterable[str]) -> None:
    for url in remove:
        upstreams.remove(url)
    for url in add:
        upstreams.add(url)


def _check_count(urls: frozenset[str] | set[str]) -> frozenset[str]:
    if len(urls) > MOST_UPSTREAMS:
        raise InputError(f"a node has {MOST_UPSTREAMS} upstreams at most; remove some first.")
    return frozenset(urls)


def _checked_cluster(node: ServingNode, changes: PeerChanges) -> WorkerRegistry | None:
    """The cluster whose workers change, None without such changes. Raises InputError."""
    add, remove = {*changes.add_workers}, {*changes.remove_workers}
    if not add | remove:
        return None
    cluster = node.workers
    known = set() if cluster is None else {member.name for member in cluster.status().members}
    if strange := sorted((add | remove) - known):
        raise InputError(
            f"{', '.join(strange)!r:.80} never joined this node's cluster: start it with "
            "`pliant worker --join`."
        )
    if add & remove:
        raise InputError(f"{', '.join(sorted(add & remove))} is both added and removed; give one of them.")
    return cluster


def _upstream(peer: PeerState, is_found: bool, now_s: float) -> UpstreamState:
    ago_s = None if peer.contact_s is None else now_s - peer.contact_s
    return UpstreamState(peer.name, peer.node, peer.state, peer.reason, is_found, ago_s)


def _worker(member: MemberStatus) -> WorkerState:
    ago_s = member.heard_s_ago if isfinite(member.heard_s_ago) else None
    return WorkerState(member.name, member.is_usable, member.reason, ago_s, member.n_faults)
