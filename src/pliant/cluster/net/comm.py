"""The protocol of data engines: send and receive tagged tensors, point to point."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pliant.errors import ClusterError

NAME_LIMIT_BYTES = 255
NOTE_LIMIT_BYTES = 1024
_LIMIT = 2**63


@dataclass(frozen=True, slots=True, order=True)
class Tag:
    """Identifies a message between two members. `epoch` increases with each new plan after a failure."""

    epoch: int
    segment: int
    step: int

    def __post_init__(self) -> None:
        if not (0 <= self.epoch < _LIMIT and 0 <= self.segment < _LIMIT and 0 <= self.step < _LIMIT):
            raise ValueError(f"{self} does not fit: each number lies in 0..2**63-1.")

    def __str__(self) -> str:
        return f"{self.epoch}:{self.segment}:{self.step}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes exchanged with one peer: payload only, without tags, notes, framing or encryption."""

    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A received message: its note, and how long it waited here before it was received."""

    note: bytes
    waited_s: float


class Comm(Protocol):
    """One member's view of the cluster's data connections. All methods are thread-safe.

    Messages between two members are identified by tag, so receives may be posted in any order.
    """

    name: str

    def send(self, dst: str, tag: Tag, payload: np.ndarray, note: bytes = b"") -> None:
        """Send the bytes of `payload` (any dtype, any layout) and a note of up to NOTE_LIMIT_BYTES.

        Returns when the buffer may be reused, possibly before the message arrived. Raises PeerLostError if
        `dst` is lost or accepts no data within the engine's send timeout, ClusterError if `dst` is not a
        member, the payload exceeds the engine's limit, or the tag's epoch was dropped.
        """

    def receive(self, src: str, tag: Tag, into: np.ndarray, timeout_s: float) -> Arrival:
        """Wait for the message and write it into `into` (C-contiguous, writable).

        Raises PeerProtocolError unless it has exactly `into.nbytes` bytes, PeerLostError if `src` is lost or
        no message arrives within `timeout_s`, ClusterError if the tag's epoch is dropped meanwhile.
        """

    def drop(self, epoch: int) -> None:
        """End all epochs up to `epoch`: waiting threads get ClusterError, and queued messages are deleted.

        Messages of these epochs that arrive later are discarded.
        """

    @property
    def counters(self) -> Mapping[str, Traffic]:
        """Traffic per peer, as a snapshot: counted when `send` or `receive` returns."""

    def close(self) -> None:
        """Close all connections, threads and processes; waiting threads get ClusterError.

        Idempotent.
        """


def payload_bytes(payload: np.ndarray) -> np.ndarray:
    """Return `payload` as uint8 [n], without a copy if it is C-contiguous."""
    return np.ascontiguousarray(payload).reshape(-1).view(np.uint8)


def writable_bytes(into: np.ndarray) -> np.ndarray:
    """Return `into` as uint8 [n], sharing its memory. Raises ValueError if that is impossible."""
    if not (into.flags.c_contiguous and into.flags.writeable):
        raise ValueError("a message is received into a C-contiguous, writable array.")
    return into.reshape(-1).view(np.uint8)


def check_name(name: str) -> None:
    """Raise ClusterError for an invalid member name."""
    if not 0 < len(name.encode()) <= NAME_LIMIT_BYTES:
        raise ClusterError(f"a member's name has 1 to {NAME_LIMIT_BYTES} bytes, unlike {name!r:.80}.")
    if name.split() != [name] or "/" in name:
        raise ClusterError(
            f"a member's name has no blank and no '/', unlike {name!r:.80}: give another --name."
        )


def check_note(note: bytes) -> None:
    """Raise ValueError for a note that is too long."""
    if len(note) > NOTE_LIMIT_BYTES:
        raise ValueError(
            f"a note has {len(note)} bytes; the limit is {NOTE_LIMIT_BYTES}. Send it as payload."
        )
