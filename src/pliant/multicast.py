"""Services announced and found by multicast DNS (RFC 6762, 6763).

Anybody on the network may announce anything: who finds a service has to make sure of it by other means.
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
_TTL_S = 120
"""Who leaves without a word is forgotten after that: a browser asks again before."""


@dataclass(frozen=True, slots=True)
class Found:
    """A service that somebody announces: its `name` on the network, HOST:PORT of it, and what it says."""

    name: str
    addresses: tuple[str, ...]
    properties: Mapping[str, str]


@contextmanager
def announced(
    kind: str, name: str, hosts: Sequence[str], port: int, properties: Mapping[str, str]
) -> Iterator[None]:
    """While it is open, whoever looks for `kind` (as in _http._tcp.local.) finds `port` of `hosts`.

    These are addresses of this device; it is announced on the networks that they belong to. Where another has
    its name, it is given a number. Call without an event loop. Raises MulticastError.
    """
    ips = [ip_address(host) for host in hosts]
    info = zeroconf.ServiceInfo(
        kind,
        f"{name.replace('.', '-')}.{kind}",
        addresses=[ip.packed for ip in ips],
        port=port,
        properties=dict(properties),
        host_ttl=_TTL_S,
        other_ttl=_TTL_S,
    )
    version = zeroconf.IPVersion.V6Only if all(ip.version == 6 for ip in ips) else zeroconf.IPVersion.V4Only
    with _network([str(ip) for ip in ips], version) as network:
        try:
            network.register_service(info, allow_name_change=True)
        except (OSError, zeroconf.Error) as error:
            raise _refusal(error) from error
        yield


@contextmanager
def browsed(
    kind: str,
    on_found: Callable[[Found], None],
    on_gone: Callable[[str], None] = lambda name: None,
    hosts: Sequence[str] = (),
) -> Iterator[None]:
    """While it is open, `on_found` hears of every service of `kind`, and of it again when it changes.

    `on_gone` hears the names of those that say goodbye or are not heard any more. Both are called on another
    thread. Only the networks of `hosts`, addresses of this device, are listened to, or else all. Call without
    an event loop. Raises MulticastError.
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
    def __init__(self, on_found: Callable[[Found], None], on_gone: Callable[[str], None]) -> None:
        self._on_found, self._on_gone = on_found, on_gone
        self._names: set[str] = set()

    def add_service(self, network: zeroconf.Zeroconf, kind: str, name: str) -> None:
        self._names.add(name)
        info = network.get_service_info(kind, name, _ANSWER_MS)
        if info is None or not info.port:  # another may have taken the name, and not be heard
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
        self._on_found(Found(name, tuple(addresses), said))

    def update_service(self, network: zeroconf.Zeroconf, kind: str, name: str) -> None:
        if name in self._names:  # else it is the last of one that said goodbye
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
        with suppress(zeroconf.Error):  # a goodbye that takes too long on a busy machine is not waited for
            network.close()


def _refusal(error: Exception) -> MulticastError:
    return MulticastError(
        f"this network carries no multicast ({error}): name addresses instead, with --join or --upstream."
    )
