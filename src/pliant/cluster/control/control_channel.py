"""The protocol for control messages between workers and primaries."""

from collections.abc import Collection
from typing import Protocol

from pliant.cluster.control.messages import AnyMessage


class ControlChannel(Protocol):
    """One member's control connections, and the time each peer was last heard (see `messenger`)."""

    def connect(self, address: str) -> None:
        """Connect to HOST:PORT, with retries until closed. Raises ClusterError if the address is invalid."""

    def send(self, peer: str, message: AnyMessage) -> None:
        """Queue a message. Raises ClusterError if `peer` is not connected."""

    def heard_s_ago(self, peer: str) -> float:
        """Seconds since the last message or heartbeat from `peer`; infinite if there was none."""

    @property
    def peers(self) -> Collection[str]:
        """The connected peers."""

    @property
    def problems(self) -> Collection[str]:
        """Why the addresses passed to `connect` do not answer, as messages for a person."""

    def close(self) -> None:
        """Close all connections and threads."""
