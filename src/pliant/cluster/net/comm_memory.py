"""The in-memory engine: members of a cluster in one process, for tests and simulated clusters."""

from threading import Lock

import numpy as np

from pliant.cluster.net.comm import Tag, check_note, payload_bytes
from pliant.cluster.net.mailbox import DataMessage, Mailbox
from pliant.cluster.net.mailbox_comm import MailboxComm
from pliant.errors import ClusterError, PeerLostError


class MemoryNetwork:
    """The state shared by members in one process. The name of a closed member may be reused: it rejoins."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._mailboxes: dict[str, Mailbox] = {}
        self._gone: set[str] = set()

    def join(self, name: str) -> "MemoryComm":
        """Add a member. Raises ClusterError if the name is in use."""
        with self._lock:
            if name in self._mailboxes:
                raise ClusterError(f"there is a member {name} already; names are unique in a cluster.")
            self._mailboxes[name] = mailbox = Mailbox(name)
            self._gone.discard(name)
            for gone in self._gone:
                mailbox.lose(gone, _lost(gone))
            for other in self._mailboxes.values():
                other.regain(name)
        return MemoryComm(name, self, mailbox)

    def leave(self, name: str, mailbox: Mailbox) -> None:
        """Report `name`, which owned `mailbox`, as lost to all other members."""
        with self._lock:
            if self._mailboxes.get(name) is not mailbox:
                return
            del self._mailboxes[name]
            self._gone.add(name)
            for other in self._mailboxes.values():
                other.lose(name, _lost(name))

    def mailbox(self, name: str) -> Mailbox:
        """Return the mailbox of `name`. Raises PeerLostError if it left, ClusterError if it never joined."""
        with self._lock:
            if name in self._gone:
                raise _lost(name)
            if name not in self._mailboxes:
                raise ClusterError(f"there is no member {name}; there are {', '.join(self._mailboxes)}.")
            return self._mailboxes[name]


class MemoryComm(MailboxComm):
    """A `Comm` whose sends are copies into the other member's mailbox; made by `MemoryNetwork.join`."""

    def __init__(self, name: str, network: MemoryNetwork, mailbox: Mailbox) -> None:
        super().__init__(name, mailbox)
        self._network = network

    def send(self, dst: str, tag: Tag, payload: np.ndarray, note: bytes = b"") -> None:
        check_note(note)
        self._mailbox.check(dst, tag.epoch)
        copy = payload_bytes(payload).tobytes()
        self._network.mailbox(dst).deliver(
            self.name, tag, DataMessage((copy,) if copy else (), len(copy), note)
        )
        self._mailbox.count_sent(dst, len(copy))

    def close(self) -> None:
        self._network.leave(self.name, self._mailbox)
        self._mailbox.close()


def _lost(name: str) -> PeerLostError:
    return PeerLostError(f"{name} has left the cluster.", name)
