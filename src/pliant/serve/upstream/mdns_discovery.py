"""Discover upstreams by multicast DNS: nodes announce their URL, downstream nodes browse for it.

An announcement is not trusted. If nodes share a peer token, it carries a proof that a holder of the token
announced this URL (an HMAC): others can repeat it, which leads to the same URL, but cannot forge one for
their own. Without peer tokens, any host on the network can announce itself. A discovered URL is treated like
a configured upstream: model, software, certificate and curve are checked as usual.
"""

import hmac
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import final
from urllib.parse import urlsplit

from pliant.errors import MulticastError, NodeError
from pliant.multicast import DiscoveredService, announce_service, browse_services
from pliant.route.node_identity import Identity
from pliant.serve.upstream.client import checked_url

_LOG = logging.getLogger("pliant.serve")
SERVICE = "_pliant-node._tcp.local."
_LONGEST_URL = 200
_PROOF_BYTES = 16
_MOST_PROOFS = 7
"""Limit from the size of an announcement's property, 255 bytes."""


@dataclass(frozen=True, slots=True)
class Announcer:
    """The announcement of a node: `run` identifies this process, `tokens` are its peer tokens."""

    url: str
    name: str
    model: str
    identity: Identity
    tokens: tuple[str, ...] = field(repr=False)
    run: str

    def properties(self) -> dict[str, str]:
        """The TXT properties of the announcement."""
        proofs = ",".join(_proof(token, self.url, self.model) for token in self.tokens[:_MOST_PROOFS])
        content = self.identity.model
        said = {"url": self.url, "model": self.model, "run": self.run, "proof": proofs}
        return said if content is None else {**said, "content": content}


@contextmanager
def announcing(node: Announcer) -> Iterator[None]:
    """Announce `node` while the context is open. Call without a running event loop.

    Raises NodeError for a wildcard address or a URL that is too long, and MulticastError if the network has
    no multicast.
    """
    parts = urlsplit(checked_url(node.url))
    hosts = _addresses(parts.hostname or "")
    if len(node.url) > _LONGEST_URL or not hosts or any(ip_address(host).is_unspecified for host in hosts):
        raise NodeError(
            f"{node.url:.80} cannot be announced: give --address, the URL at which other nodes reach this "
            "one."
        )
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with announce_service(SERVICE, node.name, hosts, port, node.properties()):
        yield


@final
class Discovery:
    """The currently announced URLs by service name; call on one thread.

    `on_join` and `on_leave` are called with URLs that appear and disappear. Accepted are at most `most` URLs
    of the same model, from other processes than `me`, with a proof by one of the tokens of `me` if it has
    any. With `is_loopback`, only URLs of this machine are accepted.
    """

    def __init__(
        self,
        me: Announcer,
        on_join: Callable[[str], None],
        on_leave: Callable[[str], None],
        is_loopback: bool,
        most: int,
    ) -> None:
        self._me, self._on_join, self._on_leave = me, on_join, on_leave
        self._is_loopback, self._most = is_loopback, most
        self._urls: dict[str, str] = {}

    def found(self, service: DiscoveredService) -> None:
        """A service was announced, or its properties changed."""
        url = self._url(service)
        before = self._urls.get(service.name)
        if before == url:
            return
        if before is not None:
            self.gone(service.name)
        if url is None:
            return
        if len(self._urls) >= self._most:
            _LOG.warning("%s is announced, but %d upstreams are found already", url, len(self._urls))
            return
        is_new = url not in self._urls.values()
        self._urls[service.name] = url
        if is_new:
            self._on_join(url)

    def gone(self, name: str) -> None:
        """A service is no longer announced."""
        url = self._urls.pop(name, None)
        if url is not None and url not in self._urls.values():
            self._on_leave(url)

    def end(self) -> None:
        """Drop all announcements."""
        for name in list(self._urls):
            self.gone(name)

    def _url(self, service: DiscoveredService) -> str | None:
        """The URL of an acceptable upstream; None for other services."""
        said, me = service.properties, self._me
        if said.get("run") == me.run or said.get("model") != me.model:
            return None
        if None not in (content := said.get("content"), me.identity.model) and content != me.identity.model:
            return None
        try:
            url = checked_url(said.get("url", ""))
        except NodeError:
            return None
        if url == me.url or len(url) > _LONGEST_URL or (self._is_loopback and not _is_loopback(url)):
            return None
        return url if not me.tokens or self._is_proven(url, said.get("proof", "")) else None

    def _is_proven(self, url: str, proofs: str) -> bool:
        """Whether a holder of one of this node's peer tokens announced `url`."""
        given = [proof.encode() for proof in proofs.split(",")[:_MOST_PROOFS]]
        return any(
            hmac.compare_digest(_proof(token, url, self._me.model).encode(), proof)
            for token in self._me.tokens
            for proof in given
        )


@contextmanager
def discovering(
    discovery: Discovery, on_thread: Callable[[Callable[[], None]], None], hosts: Sequence[str] = ()
) -> Iterator[None]:
    """Report services to `discovery` while the context is open, by `on_thread` calls on its thread.

    Call without a running event loop. Raises MulticastError if no network has multicast.
    """

    def found(service: DiscoveredService) -> None:
        on_thread(lambda: discovery.found(service))

    def gone(name: str) -> None:
        on_thread(lambda: discovery.gone(name))

    with browse_services(SERVICE, found, gone, hosts):
        yield


def _proof(token: str, url: str, model: str) -> str:
    return hmac.digest(token.encode(), f"pliant-node {model} {url}".encode(), "sha256")[:_PROOF_BYTES].hex()


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or (_is_ip(host) and ip_address(host).is_loopback)


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _addresses(host: str) -> list[str]:
    """The addresses of a host name, or the address itself. Raises MulticastError if it has none."""
    if _is_ip(host):
        return [host]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise MulticastError(f"{host} has no address to announce: {error}.") from error
    hosts = sorted({f"{address[0]}" for *_, address in found})
    return [host for host in hosts if ":" not in host] or hosts
