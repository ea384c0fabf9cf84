"""Discovery by multicast DNS (RFC 6762, 6763): primaries announce their address, workers look for it.

It admits nobody: an announcement says which key is needed, by a fingerprint, and the key decides.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from ipaddress import ip_address
from typing import final

from pliant.cluster.net.key import Key
from pliant.cluster.net.zmq_sockets import host_and_port
from pliant.errors import ClusterError

try:
    import zeroconf
except ImportError as error:
    raise ClusterError("to announce or discover needs zeroconf: pip install 'pliant[discover]'.") from error

_SERVICE = "_pliant._tcp.local."
_ANSWER_MS = 3000


@contextmanager
def announced(name: str, address: str, key: Key) -> Iterator[None]:
    """While it is open, workers that hold `key` find `address`, on the network that it belongs to.

    Raises ClusterError where that network carries no multicast.
    """
    host, port = host_and_port(address)
    info = zeroconf.ServiceInfo(
        _SERVICE,
        f"{name.replace('.', '-')}.{_SERVICE}",
        addresses=[ip_address(host).packed],
        port=port,
        properties={"key": _fingerprint(key)},
    )
    version = zeroconf.IPVersion.V6Only if ":" in host else zeroconf.IPVersion.V4Only
    with _network([host], version) as network:
        try:
            network.register_service(info, allow_name_change=True)
        except (OSError, zeroconf.Error) as error:
            raise _refusal(error) from error
        yield


@contextmanager
def discovered(key: Key, on_found: Callable[[str], None]) -> Iterator[None]:
    """While it is open, `on_found` hears HOST:PORT of every primary that announces `key`, on another thread.

    Raises ClusterError where no network carries multicast.
    """
    with _network(zeroconf.InterfaceChoice.All, None) as network:
        browser = zeroconf.ServiceBrowser(network, _SERVICE, listener=_Listener(_fingerprint(key), on_found))
        try:
            yield
        finally:
            browser.cancel()


@final
class _Listener(zeroconf.ServiceListener):
    def __init__(self, fingerprint: str, on_found: Callable[[str], None]) -> None:
        self._fingerprint, self._on_found = fingerprint.encode(), on_found

    def add_service(self, network: zeroconf.Zeroconf, kind: str, name: str) -> None:
        info = network.get_service_info(kind, name, _ANSWER_MS)
        if info is None or not info.port or info.properties.get(b"key") != self._fingerprint:
            return
        for host in info.parsed_scoped_addresses():
            self._on_found(f"[{host}]:{info.port}" if ":" in host else f"{host}:{info.port}")

    def update_service(self, network: zeroconf.Zeroconf, kind: str, name: str) -> None:
        self.add_service(network, kind, name)

    def remove_service(self, network: zeroconf.Zeroconf, kind: str, name: str) -> None:
        """It may come back there: who knocks goes on knocking."""


@contextmanager
def _network(
    interfaces: "list[str] | zeroconf.InterfaceChoice", version: "zeroconf.IPVersion | None"
) -> Iterator["zeroconf.Zeroconf"]:
    try:
        network = zeroconf.Zeroconf(interfaces=interfaces, ip_version=version)
    except (OSError, RuntimeError, zeroconf.Error) as error:
        raise _refusal(error) from error
    try:
        yield network
    finally:
        network.close()


def _refusal(error: Exception) -> ClusterError:
    return ClusterError(
        f"this network carries no multicast ({error}): name the primary's address with --join instead."
    )


def _fingerprint(key: Key) -> str:
    return blake2b(key.public, digest_size=8).hexdigest()
