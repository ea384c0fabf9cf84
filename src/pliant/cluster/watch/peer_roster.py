"""Track the members of a cluster: connected, silent and returned."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Route = TypeVar("Route")
MAX_PEERS = 1000
"""Maximum number of known peers: a holder of the key may invent any number of names."""


@dataclass(slots=True)
class _Entry(Generic[Route]):
    incarnation: int
    heard_s: float
    is_here: bool
    route: Route


class PeerRoster(Generic[Route]):
    """Peers by name, with the latest route to each. Times are readings of one clock, in seconds."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._entries: dict[str, _Entry[Route]] = {}

    def record(self, name: str, incarnation: int, route: Route, now_s: float) -> bool | None:
        """Record that `name` was heard: True if it is new, None if another process has its name."""
        entry = self._entries.get(name)
        if entry is not None and entry.is_here and entry.incarnation != incarnation:
            return None
        self._entries[name] = _Entry(incarnation, now_s, True, route)
        return entry is None or not entry.is_here

    def has_room(self, name: str) -> bool:
        """Return whether `name` may be added; departed peers are deleted if it would exceed the maximum."""
        if name not in self._entries and len(self._entries) >= MAX_PEERS:
            self._entries = {n: e for n, e in self._entries.items() if e.is_here}
        return name in self._entries or len(self._entries) < MAX_PEERS

    def leave(self, name: str, incarnation: int | None = None) -> bool:
        """Record that `name` has left (that incarnation of it, if given); True if it was connected."""
        entry = self._entries.get(name)
        if entry is None or not entry.is_here or incarnation not in (None, entry.incarnation):
            return False
        entry.is_here = False
        return True

    def replace(self, incarnation: int, is_same: Callable[[Route], bool]) -> dict[str, int]:
        """Record that process `incarnation` took over the routes that `is_same` selects.

        Returns the processes that had them, by name: they are gone.
        """
        gone = {
            name: entry.incarnation
            for name, entry in self._entries.items()
            if entry.is_here and entry.incarnation != incarnation and is_same(entry.route)
        }
        for name in gone:
            self._entries[name].is_here = False
        return gone

    def mark_silent(self, now_s: float) -> list[str]:
        """Mark and return the peers that were not heard for too long."""
        late = [n for n, e in self._entries.items() if e.is_here and now_s - e.heard_s > self._silence_s]
        for name in late:
            self._entries[name].is_here = False
        return late

    def reset_timers(self, now_s: float) -> None:
        """Restart all silence timers: this process itself was suspended."""
        for entry in self._entries.values():
            entry.heard_s = now_s

    def routes(self) -> dict[str, Route]:
        """Return the connected peers and their routes."""
        return {name: entry.route for name, entry in self._entries.items() if entry.is_here}

    def heard_s(self, name: str) -> float | None:
        """Return when `name` was last heard; None if never."""
        entry = self._entries.get(name)
        return None if entry is None else entry.heard_s
