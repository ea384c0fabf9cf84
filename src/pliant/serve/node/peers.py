"""Upstreams that join and leave while a node runs: `POST /v2/pliant/peers`."""

from dataclasses import dataclass

import msgspec

from pliant.errors import InputError, NodeError
from pliant.serve.node.serving_node import Node
from pliant.serve.upstream.client import checked_url
from pliant.serve.upstream.upstreams import FIRST_GUESS

PEERS_PATH = "/v2/pliant/peers"
MOST_UPSTREAMS = 256
"""Each of them is pinged, and looked at for every request."""


class PeerChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Addresses of nodes: those in `add` become upstreams, those in `remove` are no longer used."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Upstream:
    """An upstream as it stands: `state` is ready, unknown, down, aside, circle or mismatch."""

    url: str
    node: str | None
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Peers:
    """The nodes above, and the names of those below that were heard of lately."""

    upstreams: tuple[Upstream, ...]
    predecessors: tuple[str, ...]


def peers_of(node: Node) -> Peers:
    """As the router knows them."""
    states = node.router.states(node.clock())
    return Peers(
        tuple(Upstream(peer.name, peer.node, peer.state, peer.reason) for peer in states),
        node.router.predecessors.names,
    )


def change_peers(node: Node, body: bytes) -> Peers:
    """Add and remove upstreams as `body`, JSON of PeerChanges, says: all of it, or nothing.

    An upstream that is there already, or is not there, is no error: the same call may be made again. Requests
    that wait for one that is removed go elsewhere; what is on its way there is still answered. Raises
    InputError for a body that cannot be read, NodeError for a URL that cannot be and for too many upstreams.
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
    for url in remove:
        node.router.remove(url)
        node.upstreams.slots.refuse(url)
    for url in dict.fromkeys(add):
        if url not in known:
            node.router.successor(url, FIRST_GUESS)
    node.upstreams.changed()
    return peers_of(node)
