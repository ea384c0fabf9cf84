"""The base class of all engines: received messages wait in a mailbox until a lane receives them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import numpy as np

from pliant.cluster.net.comm import Arrival, Tag, Traffic
from pliant.cluster.net.mailbox import Mailbox


class MailboxComm(ABC):
    """The receiving half of a `Comm`; a context manager."""

    def __init__(self, name: str, mailbox: Mailbox) -> None:
        self.name = name
        self._mailbox = mailbox

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def receive(self, src: str, tag: Tag, into: np.ndarray, timeout_s: float) -> Arrival:
        return self._mailbox.receive(src, tag, into, timeout_s)

    def drop(self, epoch: int) -> None:
        self._mailbox.drop(epoch)

    @property
    def counters(self) -> Mapping[str, Traffic]:
        return self._mailbox.counters

    @abstractmethod
    def close(self) -> None:
        """Leave the cluster and wake waiting threads. Idempotent."""
