"""Rate limits of requests and bytes for each client: token buckets (RFC 2697's, with debt)."""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, final

from pliant.errors import NodeError
from pliant.quantities import parse_bytes

_MOST: Final = 8192
"""Maximum number of tracked clients, the most recent ones; a dropped client starts again with a full
burst."""
_NETWORK_BITS: Final = 64
"""Prefix length of an IPv6 client: one client may use as many addresses as it likes within a /64 network."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_s` on average, which is positive, and `burst` at once, at least 1."""

    per_s: float
    burst: float

    def __post_init__(self) -> None:
        if not (0 < self.per_s < math.inf and 1 <= self.burst < math.inf):
            raise NodeError(
                f"a rate of {self.per_s:g} a second with a burst of {self.burst:g} lets nothing through; "
                "give more than 0 a second, and a burst of at least 1."
            )


@dataclass(frozen=True, slots=True)
class ClientRates:
    """The rate limits of one client; None for no limit."""

    requests: Rate | None = None
    n_bytes: Rate | None = None


@final
class RateLimiter:
    """Counts requests and bytes by client name. Call on one thread.

    A request is admitted while the client's buckets are not empty. The size of a request is unknown before it
    is received, so bytes may go into debt, which delays later requests: over any time, a client takes at most
    its burst, plus what the rate allows, plus the requests it had in flight at once.
    """

    def __init__(self, rates: ClientRates, clock: Callable[[], float]) -> None:
        self._rates, self._clock = rates, clock
        self._is_free = rates == ClientRates()
        self._clients: OrderedDict[str, _Client] = OrderedDict()

    @property
    def n_clients(self) -> int:
        """The number of tracked clients."""
        return len(self._clients)

    @property
    def counts_bytes(self) -> bool:
        """Whether bytes are limited."""
        return self._rates.n_bytes is not None

    def replace_rates(self, rates: ClientRates) -> None:
        """Change the rates; a client keeps what is left of its burst, up to the new burst.

        A newly added rate starts with a full burst.
        """
        before, self._rates, self._is_free = self._rates, rates, rates == ClientRates()
        for found in self._clients.values():
            found.requests = _carried(found.requests, before.requests, rates.requests)
            found.n_bytes = _carried(found.n_bytes, before.n_bytes, rates.n_bytes)

    def count_request(self, client: str) -> float:
        """Count a request; returns the seconds to wait before it is allowed, 0 if it is allowed now."""
        if self._is_free:
            return 0.0
        found = self._client(client)
        requests, n_bytes = self._rates.requests, self._rates.n_bytes
        waits_s = (
            0.0 if requests is None else (1.0 - found.requests) / requests.per_s,
            0.0 if n_bytes is None or found.n_bytes > 0.0 else (1.0 - found.n_bytes) / n_bytes.per_s,
        )
        if (wait_s := max(waits_s)) > 0.0:
            return wait_s
        found.requests -= 1.0
        return 0.0

    def count_bytes(self, client: str, n_bytes: int) -> None:
        """Count received or sent bytes."""
        if self._rates.n_bytes is not None:
            self._client(client).n_bytes -= n_bytes

    def _client(self, name: str) -> "_Client":
        """The client's buckets, refilled up to now."""
        now_s, found = self._clock(), self._clients.get(name)
        requests, n_bytes = self._rates.requests, self._rates.n_bytes
        if found is None:
            found = _Client(
                now_s, 0.0 if requests is None else requests.burst, 0.0 if n_bytes is None else n_bytes.burst
            )
            self._clients[name] = found
            if len(self._clients) > _MOST:
                self._clients.popitem(last=False)
        passed_s, found.at_s = now_s - found.at_s, now_s
        if requests is not None:
            found.requests = min(requests.burst, found.requests + passed_s * requests.per_s)
        if n_bytes is not None:
            found.n_bytes = min(n_bytes.burst, found.n_bytes + passed_s * n_bytes.per_s)
        self._clients.move_to_end(name)
        return found


@dataclass(slots=True)
class _Client:
    at_s: float
    requests: float
    n_bytes: float


def _carried(left: float, before: Rate | None, now: Rate | None) -> float:
    if now is None:
        return 0.0
    return now.burst if before is None else min(left, now.burst)


@lru_cache(maxsize=256)
def client_at(address: str) -> str:
    """The client of an address: the address itself, or for IPv6 its network of one client."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    bits = 128 - _NETWORK_BITS
    return f"{IPv6Address(int(ip) >> bits << bits)}/{_NETWORK_BITS}"


def parse_rates(requests: str | None, n_bytes: str | None) -> ClientRates:
    """Parse `RATE` or `RATE:BURST` of each; the default burst is that of one second.

    Raises NodeError and InputError for invalid rates.
    """
    return ClientRates(
        None if requests is None else _rate("--client-rate", requests, float),
        None if n_bytes is None else _rate("--client-bandwidth", n_bytes, parse_bytes),
    )


def _rate(option: str, text: str, number: Callable[[str], float]) -> Rate:
    per_s, _, burst = text.partition(":")
    try:
        rate = number(per_s)
        return Rate(rate, number(burst) if burst else max(1.0, rate))
    except ValueError as error:
        raise NodeError(
            f"{option} {text!r:.40} is not a rate a second; give RATE or RATE:BURST, such as 50:100."
        ) from error
