"""Limit the number of connections, and choose which ones to close."""

from dataclasses import dataclass, field
from typing import Protocol, final

from pliant.serve.http.limits import Limits


class EvictableConnection(Protocol):
    """A connection that can be closed to make room; `evict` is called once, after it was removed."""

    def evict(self) -> None: ...


@dataclass(slots=True)
class _Client:
    """One address: its number of connections, and those that may be closed, oldest first.

    `new` have not sent a complete head yet, `idle` wait for another request, `reading` send a body.
    """

    n: int = 0
    new: dict[EvictableConnection, None] = field(default_factory=dict)
    idle: dict[EvictableConnection, None] = field(default_factory=dict)
    reading: dict[EvictableConnection, None] = field(default_factory=dict)

    @property
    def oldest(self) -> EvictableConnection | None:
        """The connection to close first; those without a complete request head come first."""
        return next(iter(self.new or self.idle or self.reading), None)

    def forget(self, connection: EvictableConnection) -> None:
        """Remove from the connections that may be closed."""
        for those in (self.new, self.idle, self.reading):
            those.pop(connection, None)


@final
class ConnectionLimiter:
    """Limits connections, in total and for each client address.

    A connection may be closed until a complete request has arrived. If there is no place for a new
    connection, the oldest such connection is closed: of the same address if it is at its limit, or else of
    the address with the most connections. Half-sent requests therefore only displace each other. If all
    connections are processing requests, a new one gets one of `n_reserved_connections` places, for health
    checks only.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._clients: dict[str, _Client] = {}
        self._addresses: dict[EvictableConnection, str] = {}
        self._reserved: dict[EvictableConnection, None] = {}

    def __len__(self) -> int:
        return len(self._addresses) + len(self._reserved)

    def enter(self, connection: EvictableConnection, address: str) -> bool:
        """Add a connection; another may be evicted for it.

        Returns False if the connection may only request the node's health.
        """
        if not self._make_room(address):
            self._reserve(connection)
            return False
        client = self._clients.setdefault(address, _Client())
        client.n += 1
        client.new[connection] = None
        self._addresses[connection] = address
        return True

    def mark_reading(self, connection: EvictableConnection) -> None:
        """The head of a request is complete."""
        client = self._client(connection)
        if client is not None:
            client.forget(connection)
            client.reading[connection] = None

    def mark_busy(self, connection: EvictableConnection) -> None:
        """A request is complete: the connection is kept until its response."""
        client = self._client(connection)
        if client is not None:
            client.forget(connection)

    def mark_idle(self, connection: EvictableConnection) -> None:
        """All its requests are answered: the connection is idle."""
        client = self._client(connection)
        if client is not None:
            client.forget(connection)
            client.idle[connection] = None

    def leave(self, connection: EvictableConnection) -> None:
        """The connection was closed; idempotent."""
        self._reserved.pop(connection, None)
        client, address = self._client(connection), self._addresses.pop(connection, None)
        if client is None or address is None:
            return
        client.n -= 1
        client.forget(connection)
        if not client.n:
            del self._clients[address]

    def _client(self, connection: EvictableConnection) -> _Client | None:
        address = self._addresses.get(connection)
        return None if address is None else self._clients[address]

    def _make_room(self, address: str) -> bool:
        own = self._clients.get(address)
        if own is not None and own.n >= self._limits.n_client_connections:
            return self._evict(own.oldest)
        if len(self._addresses) < self._limits.n_connections:
            return True
        waiting = [client for client in self._clients.values() if client.oldest is not None]
        return self._evict(max(waiting, key=lambda client: client.n).oldest if waiting else None)

    def _reserve(self, connection: EvictableConnection) -> None:
        """Give a reserved place for a health check.

        The oldest of these is evicted, since checks take little time.
        """
        if len(self._reserved) >= self._limits.n_reserved_connections:
            self._evict(next(iter(self._reserved)))
        self._reserved[connection] = None

    def _evict(self, connection: EvictableConnection | None) -> bool:
        if connection is None:
            return False
        self.leave(connection)
        connection.evict()
        return True
