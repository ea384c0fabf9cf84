"""Query the state of a running primary, without being one of its workers."""

import secrets
from queue import Empty, SimpleQueue
from time import monotonic

from pliant.cluster.control.messages import AnyMessage, StatusReply, StatusRequest, UnreadableMessage
from pliant.cluster.control.messenger import Messenger
from pliant.cluster.lead.status_report import ClusterStatus
from pliant.cluster.net.key import Key
from pliant.errors import ClusterError, PeerProtocolError


def query_status(address: str, key: Key, timeout_s: float = 5.0) -> ClusterStatus:
    """Return the state of the primary at HOST:PORT, which holds `key`; read-only.

    Raises ClusterError if no primary answers in time, PeerProtocolError if the answer cannot be decoded.
    """
    answers: SimpleQueue[ClusterStatus | PeerProtocolError] = SimpleQueue()

    def hear(peer: str, message: AnyMessage) -> None:
        match message:
            case StatusReply(status=status):
                answers.put(status)
            case UnreadableMessage(why=why):
                answers.put(PeerProtocolError(why, peer))

    def ask(peer: str) -> None:
        messenger.send(peer, StatusRequest())

    until_s = monotonic() + timeout_s
    with Messenger(
        f"status-{secrets.token_hex(4)}", key, on_message=hear, on_peer=ask, silence_s=max(timeout_s, 1.0)
    ) as messenger:
        messenger.connect(address)
        try:
            answer = answers.get(timeout=max(0.0, until_s - monotonic()))
        except Empty:
            why = "".join(f" ({problem})" for problem in messenger.problems)
            raise ClusterError(
                f"no primary answers at {address} within {timeout_s:.3g} s{why}. One is there while `pliant "
                "cluster run` or `bench`, or a Cluster in Python, is open: give its address and key."
            ) from None
    if isinstance(answer, PeerProtocolError):
        raise answer
    return answer
