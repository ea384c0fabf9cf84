"""Arrived messages, and the threads that wait for them."""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from pliant.cluster.net.comm import Arrival, Tag, Traffic, writable_bytes
from pliant.errors import ClusterError, PeerLostError, PeerProtocolError


@dataclass(frozen=True, slots=True)
class DataMessage:
    """A payload, in the pieces it arrived in, and its note."""

    payload: tuple[bytes | memoryview, ...]
    n_bytes: int
    note: bytes
    arrived_s: float = field(default_factory=time.monotonic)


class Mailbox:
    """One member's inbox and its counters. Engines deliver, lane threads receive.

    `unclaimed_limit_bytes` bounds the undelivered bytes of one peer.
    """

    def __init__(self, name: str, unclaimed_limit_bytes: int = 1 << 28) -> None:
        self._name = name
        self._limit_bytes = unclaimed_limit_bytes
        self._lock = Lock()
        self._messages: dict[tuple[str, Tag], deque[DataMessage]] = {}
        self._waiting: dict[tuple[str, Tag], Lock] = {}  # each is held until a message or an error arrives
        self._unclaimed_bytes: dict[str, int] = {}
        self._errors: dict[str, ClusterError] = {}
        self._sent_bytes: dict[str, int] = {}
        self._received_bytes: dict[str, int] = {}
        self._dropped = -1
        self._is_closed = False

    def deliver(self, src: str, tag: Tag, message: DataMessage) -> None:
        """Queue a message for its receiver; a message of a dropped epoch is discarded."""
        with self._lock:
            if tag.epoch <= self._dropped or self._is_closed:
                return
            unclaimed = self._unclaimed_bytes.get(src, 0) + message.n_bytes
            if unclaimed > self._limit_bytes and (src, tag) not in self._waiting:
                self._refuse(
                    src,
                    PeerProtocolError(
                        f"{src} sent {unclaimed:,} bytes that {self._name} never asked for; the limit is "
                        f"{self._limit_bytes:,}. {src} runs another plan, or is too far ahead.",
                        src,
                    ),
                )
                return
            self._unclaimed_bytes[src] = unclaimed
            self._messages.setdefault((src, tag), deque()).append(message)
            bell = self._waiting.get((src, tag))
        if bell is not None:  # outside the lock, which the woken thread needs at once
            _ring(bell)

    def receive(self, src: str, tag: Tag, into: np.ndarray, timeout_s: float) -> Arrival:
        """See `Comm.receive`."""
        target = writable_bytes(into)
        message = self._take(src, tag, timeout_s)
        if message.n_bytes != target.nbytes:
            raise PeerProtocolError(
                f"{src} sent {message.n_bytes:,} bytes as message {tag} to {self._name}, which expects "
                f"{target.nbytes:,}: {src} runs another plan or model.",
                src,
            )
        at = 0
        for piece in message.payload:
            target[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        waited_s = time.monotonic() - message.arrived_s
        self._count(self._received_bytes, src, message.n_bytes)
        return Arrival(message.note, waited_s)

    def lose(self, peer: str, error: ClusterError) -> None:
        """Fail current and later receives from `peer` with `error`; earlier messages stay receivable."""
        with self._lock:
            self._refuse(peer, error)

    def regain(self, peer: str) -> None:
        """Clear the error that `lose` set for `peer`."""
        with self._lock:
            self._errors.pop(peer, None)

    def drop(self, epoch: int) -> None:
        """See `Comm.drop`."""
        with self._lock:
            self._dropped = max(self._dropped, epoch)
            for src, tag in [key for key in self._messages if key[1].epoch <= self._dropped]:
                gone = self._messages.pop((src, tag))
                self._unclaimed_bytes[src] -= sum(m.n_bytes for m in gone)
            self._wake(self._waiting.values())

    def close(self) -> None:
        """Wake all waiting threads with ClusterError and delete all messages."""
        with self._lock:
            self._is_closed = True
            self._messages.clear()
            self._unclaimed_bytes.clear()
            self._wake(self._waiting.values())

    def check(self, peer: str, epoch: int) -> None:
        """Raise the error that prevents exchanges with `peer` in `epoch`, if there is one."""
        with self._lock:
            self._check_epoch(epoch)
            if (error := self._errors.get(peer)) is not None:
                raise _again(error)

    def count_sent(self, dst: str, n_bytes: int) -> None:
        """Count one message sent."""
        self._count(self._sent_bytes, dst, n_bytes)

    @property
    def counters(self) -> Mapping[str, Traffic]:
        with self._lock:
            sent, received = self._sent_bytes, self._received_bytes
            return {peer: Traffic(sent.get(peer, 0), received.get(peer, 0)) for peer in {**sent, **received}}

    def _take(self, src: str, tag: Tag, timeout_s: float) -> DataMessage:
        key = (src, tag)
        until = time.monotonic() + timeout_s
        bell = Lock()
        bell.acquire()
        try:
            while True:
                with self._lock:
                    self._check_epoch(tag.epoch)
                    if key in self._messages:
                        return self._pop(key)
                    if (error := self._errors.get(src)) is not None:
                        raise _again(error)
                    left_s = until - time.monotonic()
                    if left_s <= 0:
                        raise self._late(src, tag, timeout_s)
                    assert self._waiting.get(key, bell) is bell, (
                        f"two threads wait for message {tag} of {src}"
                    )
                    self._waiting[key] = bell
                bell.acquire(timeout=left_s)
        finally:
            with self._lock:
                if self._waiting.get(key) is bell:
                    del self._waiting[key]

    def _late(self, src: str, tag: Tag, timeout_s: float) -> PeerLostError:
        return PeerLostError(
            f"{self._name} waited {timeout_s:.3g} s for message {tag} of {src}: it is frozen, cut off, "
            "or slower than planned.",
            src,
        )

    def _pop(self, key: tuple[str, Tag]) -> DataMessage:
        queue = self._messages[key]
        message = queue.popleft()
        if not queue:
            del self._messages[key]
        self._unclaimed_bytes[key[0]] -= message.n_bytes
        return message

    def _check_epoch(self, epoch: int) -> None:
        if self._is_closed:
            raise ClusterError(f"{self._name} has closed its connections.")
        if epoch <= self._dropped:
            raise ClusterError(f"epoch {epoch} has ended: {self._name} dropped all up to {self._dropped}.")

    def _refuse(self, peer: str, error: ClusterError) -> None:
        self._errors[peer] = error
        self._wake(bell for (src, _), bell in self._waiting.items() if src == peer)

    def _wake(self, bells: Iterable[Lock]) -> None:
        for bell in bells:
            _ring(bell)

    def _count(self, counts: dict[str, int], peer: str, n_bytes: int) -> None:
        with self._lock:
            counts[peer] = counts.get(peer, 0) + n_bytes


def _ring(bell: Lock) -> None:
    """Wake the waiting thread; repeated calls have no effect."""
    with suppress(RuntimeError):
        bell.release()


def _again(error: ClusterError) -> ClusterError:
    """Copy the error: threads that raise the same object would share its traceback."""
    if isinstance(error, PeerLostError | PeerProtocolError):
        return type(error)(str(error), error.peer)
    return ClusterError(str(error))
