"""Check the callback address that a downstream node gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from pliant.errors import NodeError
from pliant.serve.upstream.client import checked_url

_IP = IPv4Address | IPv6Address
_METADATA = (ip_address("100.100.100.200"), ip_address("168.63.129.16"), ip_address("fd00:ec2::254"))
"""Cloud metadata services outside the link-local networks."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Networks and host names allowed as callback addresses, besides the address of the caller."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    def url(self, address: str, caller: str) -> str | None:
        """The callback URL of a node that calls from `caller` and claims to listen at `address`.

        It is `address` if it is the caller's own or a configured one. Any other address, and a wildcard
        address, is replaced by that of the caller with the same port: otherwise a caller could make this node
        call arbitrary hosts. None if only a link-local address or a cloud metadata service remains. Raises
        NodeError for an invalid address.
        """
        url = checked_url(address)
        parts = urlsplit(url)
        host, own = parts.hostname or "", _ip(caller)
        ip = _ip(host)
        if ip is None and host in self.hosts:
            return url
        if ip is not None and (ip == own or any(ip in network for network in self.networks)):
            return None if _is_forbidden(ip) else url
        if own is None or _is_forbidden(own):
            return None
        at = f"[{own}]" if isinstance(own, IPv6Address) else f"{own}"
        return f"{parts.scheme}://{at}" + (f":{parts.port}" if parts.port else "")


def parse_callbacks(texts: Sequence[str]) -> Callbacks:
    """Parse networks (10.0.0.0/8), addresses and host names. Raises NodeError for anything else."""
    networks, hosts = [], set()
    for text in texts:
        try:
            networks.append(ip_network(text))
            continue
        except ValueError as error:
            is_name = bool(text) and all(c.isalnum() or c in ".-" for c in text) and not text[0].isdigit()
            if not is_name:
                raise NodeError(
                    f"{text!r:.80} is not a network ({error}); give one such as 10.0.0.0/8, or a host's name."
                ) from error
        hosts.add(text.lower())
    return Callbacks(tuple(networks), frozenset(hosts))


@lru_cache(maxsize=256)
def _ip(host: str) -> _IP | None:
    """Parse an address; IPv4-mapped IPv6 becomes IPv4; None for a name."""
    try:
        ip = ip_address(host)
    except ValueError:
        return None
    inner = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return ip if inner is None else inner


def _is_forbidden(ip: _IP) -> bool:
    return ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip in _METADATA
