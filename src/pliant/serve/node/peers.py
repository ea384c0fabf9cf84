"""Upstreams and workers that join and leave while a node runs: `POST /v2/pliant/peers`."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol, runtime_checkable

import msgspec

from pliant.cluster.lead.overview import MemberStatus
from pliant.errors import InputError, NodeError
from pliant.serve.node.serving_node import Node
from pliant.serve.upstream.client import checked_url

PEERS_PATH = "/v2/pliant/peers"
MOST_UPSTREAMS = 256
"""Each of them is pinged, and looked at for every request."""


class PeerChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Addresses of nodes: those in `add` become upstreams, those in `remove` are no longer used.

    Names of the cluster's workers: those in `remove_workers` are left out of its plans, until they stand in
    `add_workers`. A worker that was never here joins by itself (`pliant worker --join`).
    """

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    add_workers: tuple[str, ...] = ()
    remove_workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Upstream:
    """An upstream as it stands: `state` is ready, unknown, down, aside, circle or mismatch.

    It `is_found` where its announcement brought it, not its URL.
    """

    url: str
    node: str | None
    state: str
    reason: str | None
    is_found: bool = False


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker of the node's cluster; `reason` says why it is not used, where it is not."""

    name: str
    is_usable: bool
    reason: str | None
    heard_s_ago: float | None
    n_faults: int


@runtime_checkable
class LeadsWorkers(Protocol):
    """A cluster's session, as far as this concerns it; any thread may call it."""

    def workers(self) -> Sequence[MemberStatus]:
        """Every worker that ever joined, by name."""

    def dismiss(self, name: str) -> None:
        """Leave a worker out until it is admitted again."""

    def readmit(self, name: str) -> None:
        """A worker that was dismissed may join again."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The nodes above, the names of those below that were heard of lately, and the workers of the cluster."""

    upstreams: tuple[Upstream, ...]
    predecessors: tuple[str, ...]
    workers: tuple[Worker, ...] = ()


def peers_of(node: Node) -> Peers:
    """As the router knows them."""
    states, found = node.router.states(node.clock()), () if node.upstreams is None else node.upstreams.found
    cluster = _cluster_of(node)
    return Peers(
        tuple(Upstream(p.name, p.node, p.state, p.reason, p.name in found) for p in states),
        node.router.predecessors.names,
        () if cluster is None else tuple(_worker(member) for member in cluster.workers()),
    )


def change_peers(node: Node, body: bytes) -> Peers:
    """Add and remove upstreams and workers as `body`, JSON of PeerChanges, says: all of it, or nothing.

    An upstream that is there already, or is not there, is no error: the same call may be made again. Requests
    that wait for one that is removed go elsewhere; what is on its way there is still answered. Raises
    InputError for a body that cannot be read, a URL that cannot be, a worker that was never here, and for too
    many upstreams.
    """
    try:
        changes = msgspec.json.decode(body, type=PeerChanges)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f'the changes cannot be read: {error}; send {{"add": ["URL"]}}.') from error
    try:
        add, remove = ([checked_url(url) for url in urls] for urls in (changes.add, changes.remove))
    except NodeError as error:
        raise InputError(str(error)) from error
    if node.upstreams is None:
        raise NodeError("this node is not connected yet; ask again.", status=503, retry_after_s=1)
    known = {peer.name for peer in node.router.states(node.clock())}
    if both := set(add) & set(remove):
        raise InputError(f"{', '.join(sorted(both))} is to be added and removed; say one of them.")
    if len((known | set(add)) - set(remove)) > MOST_UPSTREAMS:
        raise InputError(f"a node has {MOST_UPSTREAMS} upstreams at most; remove some first.")
    cluster = _checked_cluster(node, changes)
    for url in remove:
        node.upstreams.found.bar(url)
        node.upstreams.remove(url)
    for url in add:
        node.upstreams.found.given(url)
        node.upstreams.add(url)
    if cluster is not None:
        for name in changes.remove_workers:
            cluster.dismiss(name)
        for name in changes.add_workers:
            cluster.readmit(name)
    return peers_of(node)


def _cluster_of(node: Node) -> LeadsWorkers | None:
    return next((session for session in node.sessions if isinstance(session, LeadsWorkers)), None)


def _checked_cluster(node: Node, changes: PeerChanges) -> LeadsWorkers | None:
    """The cluster whose workers are to change, None for no such changes. Raises InputError."""
    add, remove = {*changes.add_workers}, {*changes.remove_workers}
    if not add | remove:
        return None
    cluster = _cluster_of(node)
    known = set() if cluster is None else {member.name for member in cluster.workers()}
    if strange := sorted((add | remove) - known):
        raise InputError(
            f"{', '.join(strange)!r:.80} never joined this node's cluster: start it with "
            "`pliant worker --join`."
        )
    if add & remove:
        raise InputError(f"{', '.join(sorted(add & remove))} is to be added and removed; say one of them.")
    return cluster


def _worker(member: MemberStatus) -> Worker:
    ago_s = member.heard_s_ago if isfinite(member.heard_s_ago) else None
    return Worker(member.name, member.is_usable, member.reason, ago_s, member.n_faults)
