"""The protocol through which workers and primaries exchange control messages."""

from collections.abc import Collection
from typing import Protocol

from pliant.cluster.control.messages import AnyMessage


class Control(Protocol):
    """One member's control connections: small messages, and who was heard when (see `messenger`)."""

    def connect(self, address: str) -> None:
        """Knock at one more HOST:PORT, for as long as this is open. Raises ClusterError if it is none."""

    def send(self, peer: str, message: AnyMessage) -> None:
        """Hand over a message. Raises ClusterError if `peer` is not here."""

    def heard_s_ago(self, peer: str) -> float:
        """Seconds since anything came from `peer`, heartbeats too; infinite if it was never heard."""

    @property
    def peers(self) -> Collection[str]:
        """Who is here."""

    @property
    def problems(self) -> Collection[str]:
        """Why nobody is heard where this member knocks, in words."""

    def close(self) -> None:
        """Let go of every connection and thread."""
