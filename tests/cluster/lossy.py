"""An in-memory network that loses, falsifies, delays or reorders what its members send, on demand."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Literal

import numpy as np

from pliant.cluster.net.comm import Arrival, Comm, Tag, Traffic
from pliant.cluster.net.comm_memory import MemoryNetwork
from pliant.errors import ClusterError

Order = Literal["at once", "late", "shuffled"]
"""When a message arrives: when it is sent; once its receiver waits for any; the same, in a random order."""


class LossyNetwork:
    """As `MemoryNetwork`, but messages of `losing` members vanish, and those of `lying` members are a
    byte too long.

    With an `order` other than "at once" messages are kept until their receiver waits: no clock is involved.
    """

    def __init__(self, seed: int = 0) -> None:
        self.losing: set[str] = set()
        self.lying: set[str] = set()
        self.order: Order = "at once"
        self._network = MemoryNetwork()
        self._random = random.Random(seed)
        self._lock = Lock()
        self._kept: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self._n_waiting: Counter[str] = Counter()

    def join(self, name: str) -> "LossyComm":
        return LossyComm(self._network.join(name), self)

    def heal(self) -> None:
        """From now on every message arrives at once."""
        with self._lock:
            self.losing, self.lying, self.order = set(), set(), "at once"
            for name in list(self._kept):
                self._deliver(name)

    def post(self, dst: str, send: Callable[[], None]) -> None:
        """Send a message now, or keep it while `dst` waits for none."""
        with self._lock:
            if self.order != "at once":
                self._kept[dst].append(send)
                if self._n_waiting[dst]:
                    self._deliver(dst)
                return
        send()

    def waits(self, name: str) -> None:
        """`name` begins to wait: what was kept for it arrives, and until `served` all that is sent to it."""
        with self._lock:
            self._n_waiting[name] += 1
            self._deliver(name)

    def served(self, name: str) -> None:
        with self._lock:
            self._n_waiting[name] -= 1

    def _deliver(self, name: str) -> None:
        kept = self._kept.pop(name, [])
        if self.order == "shuffled":
            self._random.shuffle(kept)
        for send in kept:
            with suppress(ClusterError):  # its sender or receiver left, or its epoch ended, meanwhile
                send()


class LossyComm:
    """A `Comm` over another whose messages pass through a `LossyNetwork`."""

    def __init__(self, comm: Comm, network: LossyNetwork) -> None:
        self.name = comm.name
        self._comm, self._network = comm, network

    def send(self, dst: str, tag: Tag, payload: np.ndarray, note: bytes = b"") -> None:
        if self.name in self._network.losing:
            return
        is_lie = self.name in self._network.lying
        sent = np.zeros(payload.nbytes + 1, np.uint8) if is_lie else payload.copy()
        self._network.post(dst, lambda: self._comm.send(dst, tag, sent, note))

    def receive(self, src: str, tag: Tag, into: np.ndarray, timeout_s: float) -> Arrival:
        self._network.waits(self.name)
        try:
            return self._comm.receive(src, tag, into, timeout_s)
        finally:
            self._network.served(self.name)

    def drop(self, epoch: int) -> None:
        self._comm.drop(epoch)

    @property
    def counters(self) -> Mapping[str, Traffic]:
        return self._comm.counters

    def close(self) -> None:
        self._comm.close()
