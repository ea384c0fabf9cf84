"""Discovery of primaries: they announce their address by multicast, workers browse for it.

Discovery grants no access: an announcement holds a fingerprint of the required key, and the connection
itself checks the key.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b

from pliant import multicast
from pliant.cluster.net.key import Key
from pliant.cluster.net.zmq_sockets import host_and_port, is_every_address
from pliant.errors import ClusterError

_SERVICE = "_pliant._tcp.local."


@contextmanager
def announce_primary(name: str, address: str, key: Key) -> Iterator[None]:
    """Announce `address` in its network, to workers that hold `key`, while the context is open.

    Raises MulticastError if that network does not support multicast, ClusterError for all addresses.
    """
    host, port = host_and_port(address)
    if is_every_address(host):
        raise ClusterError(
            f"{host} is every address of this device, and one is announced: listen at the one by which "
            "workers reach it, as in 10.77.0.1:29500."
        )
    with multicast.announce_service(_SERVICE, name, [host], port, {"key": _fingerprint(key)}):
        yield


@contextmanager
def discover_primaries(key: Key, on_found: Callable[[str], None]) -> Iterator[None]:
    """Call `on_found` with HOST:PORT of every primary that announces `key`, on another thread.

    A primary that leaves is not reported, because it may return: callers keep retrying. Raises
    MulticastError if no network supports multicast.
    """
    fingerprint = _fingerprint(key)

    def hear(found: multicast.DiscoveredService) -> None:
        if found.properties.get("key") == fingerprint:
            for address in found.addresses:
                on_found(address)

    with multicast.browse_services(_SERVICE, hear):
        yield


def _fingerprint(key: Key) -> str:
    return blake2b(key.public, digest_size=8).hexdigest()
