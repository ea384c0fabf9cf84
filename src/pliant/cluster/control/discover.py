"""Discovery of primaries: they announce their address, workers look for it.

It admits nobody: an announcement says which key is needed, by a fingerprint, and the key decides.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b

from pliant import multicast
from pliant.cluster.net.key import Key
from pliant.cluster.net.zmq_sockets import host_and_port

_SERVICE = "_pliant._tcp.local."


@contextmanager
def announced(name: str, address: str, key: Key) -> Iterator[None]:
    """While it is open, workers that hold `key` find `address`, on the network that it belongs to.

    Raises MulticastError where that network carries no multicast.
    """
    host, port = host_and_port(address)
    with multicast.announced(_SERVICE, name, [host], port, {"key": _fingerprint(key)}):
        yield


@contextmanager
def discovered(key: Key, on_found: Callable[[str], None]) -> Iterator[None]:
    """While it is open, `on_found` hears HOST:PORT of every primary that announces `key`, on another thread.

    One that goes may come back there: who knocks goes on knocking. Raises MulticastError where no network
    carries multicast.
    """
    fingerprint = _fingerprint(key)

    def hear(found: multicast.Found) -> None:
        if found.properties.get("key") == fingerprint:
            for address in found.addresses:
                on_found(address)

    with multicast.browsed(_SERVICE, hear):
        yield


def _fingerprint(key: Key) -> str:
    return blake2b(key.public, digest_size=8).hexdigest()
