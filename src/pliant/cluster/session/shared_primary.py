"""The primary that all sessions of one cluster share."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Lock
from typing import final

from pliant.cluster.lead.margin import Margins
from pliant.cluster.lead.open_member import PrimaryMember
from pliant.cluster.lead.status_report import ClusterStatus
from pliant.cluster.net.activation_coding import Coding
from pliant.errors import ClusterError, InputError
from pliant.models.encoder.encoder_source import EncoderSource


@final
class SharedPrimary:
    """A primary that serializes runs and plans, until `close`, in the process that opened it. Thread-safe.

    `name` is its name in partitions, `coding` the encoding of activations, and `margins` the saving that a
    split needs to be chosen.
    """

    def __init__(
        self, leading: AbstractContextManager[PrimaryMember], name: str, coding: Coding, margins: Margins
    ) -> None:
        self.name, self.coding, self.margins = name, coding, margins
        self._opened = ExitStack()
        self.leader: PrimaryMember = self._opened.enter_context(leading)
        self._lock, self._process, self._is_closed = Lock(), os.getpid(), False

    def enter(self, context: AbstractContextManager[object]) -> None:
        """Enter a context that exits when the primary is closed."""
        self._opened.enter_context(context)

    def check_open(self) -> None:
        """Raise InputError after `close`, ClusterError in a forked child."""
        if self._process != os.getpid():
            raise ClusterError(
                "this cluster belongs to the process that opened it, and this is a forked child: ask there, "
                "or open a cluster here."
            )
        if self._is_closed:
            raise InputError("this cluster is closed; open another one.")

    @contextmanager
    def exclusive(self) -> Iterator[PrimaryMember]:
        """Give one thread at a time access to the leader. Raises as `check_open` does."""
        self.check_open()  # a forked child's copy of the lock may never be released
        with self._lock:
            self.check_open()
            yield self.leader

    def usable_workers(self) -> tuple[str, ...]:
        """Return the names of the workers that a plan may use now."""
        return tuple(member.name for member in self.status().members if member.is_usable)

    def packs_texts(self, identity: str) -> bool:
        """Return whether all usable workers with a model run several texts together, as of this release."""
        usable = self.leader.primary.monitor.usable()
        return all(one.hello.packs_texts for one in usable if identity in one.hello.models)

    def status(self) -> ClusterStatus:
        """Return the runs, and every worker that ever joined, by name."""
        self.check_open()
        return self.leader.primary.status()

    def dismiss(self, name: str) -> None:
        """Exclude a worker until it is readmitted."""
        self.check_open()
        self.leader.primary.dismiss(name)

    def readmit(self, name: str) -> None:
        """Allow a dismissed worker to join again."""
        self.check_open()
        self.leader.primary.readmit(name)

    def forget(self, source: EncoderSource) -> None:
        """Free a model's plans on all members; no effect after `close` or in a forked child."""
        if self._process == os.getpid():
            with self._lock:
                if not self._is_closed:
                    self.leader.planner.forget(source)

    def close(self) -> None:
        """Close all connections and threads, after a running request. Idempotent.

        Has no effect in a forked child: connections and threads belong to its parent.
        """
        if self._process == os.getpid():
            with self._lock:
                self._is_closed = True
                self._opened.close()
