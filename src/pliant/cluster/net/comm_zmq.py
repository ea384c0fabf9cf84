"""The default engine: data connections over ZeroMQ.

Every member listens on one PULL socket and connects one PUSH socket to each peer. Long messages are split
into pieces, and each piece is passed to ZeroMQ without another copy; measured on loopback (bench/comm.py).
"""

from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic

import numpy as np

from pliant.cluster.net.comm import Tag, check_name, check_note, payload_bytes
from pliant.cluster.net.frame import FRAME_LIMIT_BYTES, BadFrame, PayloadPiece, pack, unpack
from pliant.cluster.net.key import Key
from pliant.cluster.net.mailbox import DataMessage, Mailbox
from pliant.cluster.net.mailbox_comm import MailboxComm
from pliant.cluster.net.zmq_sockets import (
    CONNECTED,
    SecureContext,
    Socket,
    Waker,
    event,
    find_local_address,
    host_and_port,
    is_every_address,
    zmq,
)
from pliant.errors import ClusterError, PeerLostError, PeerProtocolError

_QUEUED = 32  # frames queued per connection before `send` blocks: bounds the memory used for a stopped peer
_STALE_S = 30.0  # far above the time of the largest message on a slow link
_LOOK_MS = 50  # interval at which a waiting `send` checks for a lost peer or a timeout


class ZmqComm(MailboxComm):
    """A `Comm` over authenticated, encrypted TCP; it listens from the start, `connect` adds peers.

    `max_message_bytes` bounds a payload in either direction; `send_timeout_s` bounds how long a peer may
    accept no data. A peer that closed or died is detected at once; a frozen peer is detected by the
    timeouts here, or earlier by the control connection's heartbeats.
    """

    def __init__(
        self,
        name: str,
        key: Key,
        listen: str = "127.0.0.1:0",
        *,
        max_message_bytes: int = 64 << 20,
        send_timeout_s: float = 10.0,
    ) -> None:
        check_name(name)
        super().__init__(name, Mailbox(name))
        self._max_message_bytes = max_message_bytes
        self.send_timeout_s = send_timeout_s
        self._context = SecureContext(key, FRAME_LIMIT_BYTES, stale_s=_STALE_S)
        self._inbox, self.address = self._context.listen_or_close(zmq.PULL, listen, _QUEUED)
        self._lock = Lock()
        self._peers: dict[str, _Peer] = {}
        self._new: SimpleQueue[_Peer | None] = SimpleQueue()
        self._waker = Waker()
        self._is_closed = False
        self._pieces: dict[str, list[PayloadPiece]] = {}  # used by the reader thread only
        self.n_refused = 0  # malformed messages without a sender's name
        self._reader = Thread(target=self._read, name=f"pliant-comm-{name}", daemon=True)
        self._reader.start()

    def address_for(self, other: str) -> str:
        """Return where the member with the address `other` reaches this one.

        That is `address`, or if this member listens at all its addresses, the one on the route to `other`;
        an address without a route is left to the connection, which excludes that member.
        """
        host, port = host_and_port(self.address)
        if not is_every_address(host):
            return self.address
        with suppress(ClusterError):
            return f"tcp://{find_local_address(other)}:{port}"
        return self.address

    def connect(self, peer: str, address: str) -> None:
        """Connect to `peer` at `address`, or reconnect to a lost peer; does not block.

        Clears the peer's last violation of the protocol.
        """
        with self._lock:
            self._check_open()
            old = self._peers.get(peer)
            if old is not None and old.address == address and not old.is_lost:
                self._mailbox.regain(peer)
                return
            self._peers[peer] = new = _Peer(peer, address, self._context)
            self._mailbox.regain(peer)
            self._new.put(new)
        self._waker.wake()
        if old is not None:
            old.close()

    def send(self, dst: str, tag: Tag, payload: np.ndarray, note: bytes = b"") -> None:
        check_note(note)
        self._mailbox.check(dst, tag.epoch)
        with self._lock:
            peer = self._peers.get(dst)
            if peer is None:
                names = ", ".join(self._peers) or "none"
                raise ClusterError(f"{self.name} knows no member {dst}; it is connected to: {names}.")
        data = payload_bytes(payload)
        if data.nbytes > self._max_message_bytes:
            raise ClusterError(
                f"message {tag} to {dst} has {data.nbytes:,} bytes, the limit is "
                f"{self._max_message_bytes:,}. Raise max_message_bytes on all members."
            )
        with peer.lock:
            for frame in pack(self.name, tag, data, note):
                self._hand_over(peer, tag, frame)
        self._mailbox.count_sent(dst, data.nbytes)

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            peers = list(self._peers.values())
            self._peers.clear()
        self._mailbox.close()
        for peer in peers:
            peer.close()
        self._new.put(None)
        self._waker.wake()
        self._reader.join()
        self._waker.close()
        self._context.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClusterError(f"{self.name} has closed its connections.")

    def _hand_over(self, peer: "_Peer", tag: Tag, frame: bytearray) -> None:
        """Queue `frame` when there is room; ZeroMQ keeps a reference to it until it is sent."""
        until = monotonic() + self.send_timeout_s
        while True:
            self._mailbox.check(peer.name, tag.epoch)
            if peer.socket.closed:
                raise PeerLostError(
                    f"{peer.name} was disconnected while {self.name} sent message {tag}.", peer.name
                )
            try:
                peer.socket.send(frame, zmq.NOBLOCK, copy=False)
                return
            except zmq.Again:
                if monotonic() >= until:
                    raise PeerLostError(
                        f"{peer.name} at {peer.address} took nothing for {self.send_timeout_s:.3g} s: it is "
                        "not there, frozen, cut off, or holds another key.",
                        peer.name,
                    ) from None
            peer.socket.poll(_LOOK_MS, zmq.POLLOUT)

    def _read(self) -> None:
        """Run the reader thread: deliver messages, track connections, answer authentication requests."""
        poller = zmq.Poller()
        for source in (self._inbox, self._context.gate, self._waker.fileno()):
            poller.register(source, zmq.POLLIN)
        monitors: dict[Socket, _Peer] = {}
        is_open = True
        while is_open or monitors:
            for source, _ in poller.poll():
                if source is self._inbox:
                    self._take_in()
                elif source is self._context.gate:
                    self._context.admit()
                elif source in monitors:
                    self._note(poller, monitors, source)
                else:
                    self._waker.drain()
                    is_open = self._watch(poller, monitors) and is_open
        self._inbox.close()

    def _take_in(self) -> None:
        """Deliver up to _QUEUED queued frames, then return so that the other sources are polled."""
        for _ in range(_QUEUED):
            try:
                frame = self._inbox.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                self._join(*unpack(memoryview(frame.buffer).cast("B")))
            except BadFrame as error:
                self._refuse(error)

    def _join(self, src: str, piece: PayloadPiece) -> None:
        """Deliver a message with its last piece. Pieces of one sender arrive in order or are lost."""
        if piece.n_bytes > self._max_message_bytes:
            limit = f"the limit is {self._max_message_bytes:,}"
            raise BadFrame(f"a message that promises {piece.n_bytes:,} bytes; {limit}", src)
        pieces = [] if piece.offset == 0 else self._pieces.pop(src, [])
        at = pieces[-1].offset + len(pieces[-1].payload) if pieces else 0
        if at != piece.offset or (
            pieces and (pieces[0].tag, pieces[0].n_bytes) != (piece.tag, piece.n_bytes)
        ):
            return  # the connection broke, or the send was abandoned: the receiver of the rest times out
        pieces.append(piece)
        if at + len(piece.payload) < piece.n_bytes:
            self._pieces[src] = pieces
            return
        payload = tuple(p.payload for p in pieces) if piece.n_bytes else ()
        self._mailbox.deliver(src, piece.tag, DataMessage(payload, piece.n_bytes, pieces[0].note))

    def _refuse(self, error: BadFrame) -> None:
        if error.src is None:
            self.n_refused += 1
            return
        self._mailbox.lose(error.src, PeerProtocolError(f"{error.src} sent {self.name} {error}.", error.src))

    def _watch(self, poller: zmq.Poller, monitors: "dict[Socket, _Peer]") -> bool:
        """Start to poll the monitors of new connections; return False at the end."""
        while True:
            try:
                peer = self._new.get_nowait()
            except Empty:
                return True
            if peer is None:
                return False
            poller.register(peer.monitor, zmq.POLLIN)
            monitors[peer.monitor] = peer

    def _note(self, poller: zmq.Poller, monitors: "dict[Socket, _Peer]", monitor: Socket) -> None:
        peer = monitors[monitor]
        what = event(monitor)
        if what == zmq.EVENT_MONITOR_STOPPED:
            poller.unregister(monitor)
            del monitors[monitor]
            monitor.close()
            return
        with self._lock:
            if self._peers.get(peer.name) is not peer:  # replaced by a newer connection
                return
            peer.is_lost = what != CONNECTED
            if what == CONNECTED:
                self._mailbox.regain(peer.name)
                peer.was_agreed = True
            else:
                self._mailbox.lose(peer.name, _gone(peer))


class _Peer:
    """One outgoing connection: its socket, used only under `lock`, its monitor, only by the reader."""

    def __init__(self, name: str, address: str, context: SecureContext) -> None:
        self.name = name
        self.address = address
        self.lock = Lock()
        self.was_agreed = False
        self.is_lost = False
        self.socket, self.monitor = context.connect(zmq.PUSH, address, _QUEUED)

    def close(self) -> None:
        with self.lock:
            self.socket.disable_monitor()
            self.socket.close()


def _gone(peer: _Peer) -> PeerLostError:
    why = "it has left or died" if peer.was_agreed else "it holds another cluster key, or is not a member"
    return PeerLostError(f"{peer.name} at {peer.address} has ended its connection: {why}.", peer.name)
