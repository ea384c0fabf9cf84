"""Add and remove upstreams and workers of a running node or session, as `POST /v2/pliant/peers` does."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import isfinite

import msgspec

from pliant.cluster.lead.status_report import MemberStatus
from pliant.errors import InputError, NodeError
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.node.worker_registry import WorkerRegistry
from pliant.serve.upstream.client import checked_url

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

    `is_found` is set if it was discovered by its announcement rather than configured.
    """

    url: str
    node: str | None
    state: str
    reason: str | None
    is_found: bool = False


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
    states, found = (
        node.router.states(node.clock()),
        () if node.upstreams is None else node.upstreams.discovered,
    )
    cluster = node.workers
    return PeerList(
        tuple(UpstreamState(p.name, p.node, p.state, p.reason, p.name in found) for p in states),
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
    if len((known | set(add)) - set(remove)) > MOST_UPSTREAMS:
        raise InputError(f"a node has {MOST_UPSTREAMS} upstreams at most; remove some first.")
    cluster = _checked_cluster(node, changes)
    for url in remove:
        node.upstreams.discovered.bar(url)
        node.upstreams.remove(url)
    for url in add:
        node.upstreams.discovered.pin(url)
        node.upstreams.add(url)
    if cluster is not None:
        for name in changes.remove_workers:
            cluster.dismiss(name)
        for name in changes.add_workers:
            cluster.readmit(name)
    return list_peers(node)


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


def _worker(member: MemberStatus) -> WorkerState:
    ago_s = member.heard_s_ago if isfinite(member.heard_s_ago) else None
    return WorkerState(member.name, member.is_usable, member.reason, ago_s, member.n_faults)
