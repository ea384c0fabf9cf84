"""A fixed share of a memory budget, for a session that cannot free weights for others."""

import weakref
from contextlib import suppress
from typing import Protocol, final

from pliant.errors import PliantError
from pliant.plan.memory_shares import RequestCount
from pliant.run.memory_use import MemoryNeed


class HoldingSession(Protocol):
    """A session that knows what it holds."""

    def need(self, length: int, accuracy: float | None = None) -> MemoryNeed:
        """The bytes held now; must be fast."""
        ...


@final
class Reservation:
    """A share of a budget outside its division, for as long as this object lives or until its release.

    `name` is that of its model; `requests` counts those that nodes report.
    """

    def __init__(self, name: str) -> None:
        self.name, self.n_bytes, self.requests = name, 0, RequestCount(0.0)
        self._session: weakref.ref[HoldingSession] | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes that its session holds now; until there is one, those reserved for it."""
        session = None if self._session is None else self._session()
        if session is None:
            return self.n_bytes
        with suppress(PliantError):  # it is closed
            return session.need(1).held_bytes
        return 0

    def use(self, session: HoldingSession) -> None:
        """Reserve for `session`, which is not kept alive."""
        self._session = weakref.ref(session)
