"""Announce and find services by multicast DNS (RFC 6762, 6763).

Any host on the network can announce any service, so a caller must verify a found service by other means.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import final

from pliant.errors import MulticastError

try:
    import zeroconf
except ImportError as error:
    raise MulticastError("to announce or discover needs zeroconf: pip install 'pliant[discover]'.") from error

_ANSWER_MS = 3000
TTL_S = 120
"""TTL of a record: a service that ends without a goodbye is dropped after it. Browsers query again before
that."""


@dataclass(frozen=True, slots=True)
class DiscoveredService:
    """An announced service: its `name` on the network, its addresses (HOST:PORT) and its TXT properties."""

    name: str
    addresses: tuple[str, ...]
    properties: Mapping[str, str]


@contextmanager
def announce_service(
    kind: str, name: str, hosts: Sequence[str], port: int, properties: Mapping[str, str]
) -> Iterator[None]:
    """Announce `port` of `hosts` as a service of `kind` (as in _http._tcp.local.) while the context is open.

    `hosts` are addresses of this device; the service is announced on the networks that they belong to. If the
    name is taken, a number is added to it. Call without a running event loop. Raises MulticastError.
    """
    ips = [ip_address(host) for host in hosts]
    info = zeroconf.ServiceInfo(
        kind,
        f"{name.replace('.', '-')}.{kind}",
        addresses=[ip.packed for ip in ips],
        port=port,
        properties=dict(properties),
        host_ttl=TTL_S,
        other_ttl=TTL_S,
    )
    version = zeroconf.IPVersion.V6Only if all(ip.version == 6 for ip in ips) else zeroconf.IPVersion.V4Only
    with _network([str(ip) for ip in ips], version) as network:
        try:
            network.register_service(info, allow_name_change=True)
        except (OSError, zeroconf.Error) as error:
            raise _refusal(error) from error
        yield


@contextmanager
def browse_services(
    kind: str,
    on_found: Callable[[DiscoveredService], None],
    on_gone: Callable[[str], None] = lambda name: None,
    hosts: Sequence[str] = (),
) -> Iterator[None]:
    """Call `on_found` for each service of `kind`, and again when it changes, while the context is open.

    `on_gone` is called with the name of a service that says goodbye or expires. Both callbacks run on another
    thread. Only the networks of `hosts` (addresses of this device) are browsed; all networks if it is empty.
    Call without a running event loop. Raises MulticastError.
    """
    interfaces = list(hosts) if hosts else zeroconf.InterfaceChoice.All
    with _network(interfaces, None) as network:
        browser = zeroconf.ServiceBrowser(network, kind, listener=_Listener(on_found, on_gone))
        try:
            yield
        finally:
            with suppress(zeroconf.Error):
                browser.cancel()


@final
class _Listener(zeroconf.ServiceListener):
    def __init__(self, on_found: Callable[[DiscoveredService], None], on_gone: Callable[[str], None]) -> None:
        self._on_found, self._on_gone = on_found, on_gone
        self._names: set[str] = set()

    def add_service(self, network: zeroconf.Zeroconf, kind: str, name: str) -> None:
        self._names.add(name)
        info = network.get_service_info(kind, name, _ANSWER_MS)
        if info is None or not info.port:  # another host may have taken the name but not respond
            self._on_gone(name)
            return
        addresses = [
            f"[{host}]:{info.port}" if ":" in host else f"{host}:{info.port}"
            for host in info.parsed_scoped_addresses()
        ]
        said = {
            key.decode("utf-8", "replace"): (value or b"").decode("utf-8", "replace")
            for key, value in info.properties.items()
        }
        self._on_found(DiscoveredService(name, tuple(addresses), said))

    def update_service(self, network: zeroconf.Zeroconf, kind: str, name: str) -> None:
        if name in self._names:  # else it is a late update of a removed service
            self.add_service(network, kind, name)

    def remove_service(self, network: zeroconf.Zeroconf, kind: str, name: str) -> None:
        self._names.discard(name)
        self._on_gone(name)


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
        with suppress(zeroconf.Error):  # a busy machine may time out while it sends the goodbye
            network.close()


def _refusal(error: Exception) -> MulticastError:
    return MulticastError(
        f"this network carries no multicast ({error}): name addresses instead, with --join or --upstream."
    )
