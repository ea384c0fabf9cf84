"""The primary that all sessions of one cluster share."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Lock
from typing import final

from pliant.cluster.lead.margin import Margins
from pliant.cluster.lead.open_member import Leader
from pliant.cluster.lead.overview import MemberStatus
from pliant.cluster.net.activation_coding import Coding
from pliant.errors import ClusterError, InputError
from pliant.models.encoder.encoder_source import EncoderSource


@final
class SharedPrimary:
    """A primary whose runs and plans take turns, from the start to `close`, in the process that opened it.

    `name` is what it is called in partitions, `coding` how activations travel, and `margins` what a split has
    to save to be chosen. Threads may share it.
    """

    def __init__(
        self, leading: AbstractContextManager[Leader], name: str, coding: Coding, margins: Margins
    ) -> None:
        self.name, self.coding, self.margins = name, coding, margins
        self._opened = ExitStack()
        self.leader: Leader = self._opened.enter_context(leading)
        self._lock, self._process, self._is_closed = Lock(), os.getpid(), False

    def enter(self, context: AbstractContextManager[object]) -> None:
        """Enter a context that is left when the primary is closed."""
        self._opened.enter_context(context)

    def check_open(self) -> None:
        """Raise InputError once closed, ClusterError in a forked child."""
        if self._process != os.getpid():
            raise ClusterError(
                "this cluster belongs to the process that opened it, and this is a forked child: ask there, "
                "or open a cluster here."
            )
        if self._is_closed:
            raise InputError("this cluster is closed; open another one.")

    @contextmanager
    def turn(self) -> Iterator[Leader]:
        """What one thread at a time may ask. Raises as `check_open` does."""
        self.check_open()  # a forked child's copy of the lock may be held for ever
        with self._lock:
            self.check_open()
            yield self.leader

    def usable_workers(self) -> tuple[str, ...]:
        """Names of the workers that a plan may count on now."""
        return tuple(member.name for member in self.workers() if member.is_usable)

    def workers(self) -> tuple[MemberStatus, ...]:
        """Every worker that ever joined, by name."""
        self.check_open()
        return self.leader.primary.status().members

    def dismiss(self, name: str) -> None:
        """Leave a worker out until it is readmitted."""
        self.check_open()
        self.leader.primary.dismiss(name)

    def readmit(self, name: str) -> None:
        """A worker that was dismissed may join again."""
        self.check_open()
        self.leader.primary.readmit(name)

    def forget(self, source: EncoderSource) -> None:
        """Let all members give up what they hold ready of a model; nothing once closed, or in a child."""
        if self._process == os.getpid():
            with self._lock:
                if not self._is_closed:
                    self.leader.steering.forget(source)

    def close(self) -> None:
        """Let go of everything, after the run under way; safe to call twice.

        A forked child lets go of nothing: connections and threads are its parent's.
        """
        if self._process == os.getpid():
            with self._lock:
                self._is_closed = True
                self._opened.close()
