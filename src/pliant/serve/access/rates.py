"""How many requests and bytes a second one client may have: token buckets (RFC 2697's, with debt)."""

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
"""Clients that are kept count of, those that asked last: one that is forgotten begins with a whole burst."""
_NETWORK_BITS: Final = 64
"""Of an IPv6 address, what one client is given: he may have as many addresses as he likes within."""


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
    """What one client may have of each; None for as much as it likes."""

    requests: Rate | None = None
    n_bytes: Rate | None = None


@final
class RateLimiter:
    """Counts what clients take, by any name of theirs. Call on one thread.

    A client is let in while it has something left of its bursts. The bytes of a request are not known before
    they have come, so they may make a debt, which is waited for: over any time, a client takes no more than
    its burst, what the rate gives, and the requests that it had under way at once.
    """

    def __init__(self, rates: ClientRates, clock: Callable[[], float]) -> None:
        self._rates, self._clock = rates, clock
        self._is_free = rates == ClientRates()
        self._clients: OrderedDict[str, _Client] = OrderedDict()

    @property
    def n_clients(self) -> int:
        """How many are kept count of."""
        return len(self._clients)

    @property
    def counts_bytes(self) -> bool:
        """Whether bytes are bounded."""
        return self._rates.n_bytes is not None

    def change(self, rates: ClientRates) -> None:
        """Other rates from now on: what a client has left of a burst counts on, up to the new one.

        A rate that there was not before begins with a whole burst.
        """
        before, self._rates, self._is_free = self._rates, rates, rates == ClientRates()
        for found in self._clients.values():
            found.requests = _carried(found.requests, before.requests, rates.requests)
            found.n_bytes = _carried(found.n_bytes, before.n_bytes, rates.n_bytes)

    def ask(self, client: str) -> float:
        """One request more; seconds to wait before it may be made, 0 where it may now."""
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

    def take(self, client: str, n_bytes: int) -> None:
        """Bytes came or went."""
        if self._rates.n_bytes is not None:
            self._client(client).n_bytes -= n_bytes

    def _client(self, name: str) -> "_Client":
        """What it has left now."""
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
    """Who calls from `address`: the address, or the network that one client of IPv6 is given."""
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
    """From `RATE` or `RATE:BURST` of each; the burst is one second's where it is not given.

    Raises NodeError and InputError for what is none.
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
            f"{option} {text!r:.40} is no rate; give RATE or RATE:BURST, such as 50:100."
        ) from error
