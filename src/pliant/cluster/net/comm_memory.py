"""The in-memory engine: members of a cluster in one process, for tests and simulated clusters."""

from threading import Lock

import numpy as np

from pliant.cluster.net.comm import Tag, check_note, payload_bytes
from pliant.cluster.net.mailbox import Mailbox, Message
from pliant.cluster.net.mailbox_comm import MailboxComm
from pliant.errors import ClusterError, PeerLost


class MemoryNetwork:
    """What members of one process share. A closed member's name may be taken again: it has returned."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._mailboxes: dict[str, Mailbox] = {}
        self._gone: set[str] = set()

    def join(self, name: str) -> "MemoryComm":
        """A new member. Raises ClusterError while another one has that name."""
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
        """Tell everybody that `name`, who had `mailbox`, is gone."""
        with self._lock:
            if self._mailboxes.get(name) is not mailbox:
                return
            del self._mailboxes[name]
            self._gone.add(name)
            for other in self._mailboxes.values():
                other.lose(name, _lost(name))

    def mailbox(self, name: str) -> Mailbox:
        """Where messages to `name` go. Raises PeerLost if it is gone, ClusterError if it never was."""
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
        self._network.mailbox(dst).deliver(self.name, tag, Message((copy,) if copy else (), len(copy), note))
        self._mailbox.count_sent(dst, len(copy))

    def close(self) -> None:
        self._network.leave(self.name, self._mailbox)
        self._mailbox.close()


def _lost(name: str) -> PeerLost:
    return PeerLost(f"{name} has left the cluster.", name)
