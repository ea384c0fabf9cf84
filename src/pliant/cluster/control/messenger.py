"""Send and receive control messages between members, and report silent members.

Control messages have their own connections, so large tensors do not delay heartbeats. Every Messenger sends
a heartbeat each `beat_s` to all its peers, on a dedicated thread. A peer that is not heard for `silence_s`,
because it died, froze, hangs or was cut off, is reported as silent, and reported again when it returns.
ZeroMQ's own heartbeats are not used: they do not detect a hanging interpreter, and abort a flooded process.
"""

import math
import secrets
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from time import monotonic

from pliant.cluster.control import control_frame
from pliant.cluster.control.message_codec import decode, encode
from pliant.cluster.control.messages import AdmissionRefusal, AnyMessage, Bye, Heartbeat, UnreadableMessage
from pliant.cluster.net.comm import check_name
from pliant.cluster.net.key import Key
from pliant.cluster.net.zmq_sockets import CONNECTED, SecureContext, Socket, Waker, event, needs_ipv6, zmq
from pliant.cluster.watch.peer_roster import MAX_PEERS, PeerRoster
from pliant.errors import ClusterError, PeerLostError
from pliant.ir.envelope import LIMIT_BYTES, Envelope, EnvelopeError

_QUEUED = 1000
_LISTENS_BYTES = 2 * LIMIT_BYTES
"""A longer message ends its connection unread; between the two limits, it is refused by sender's name."""
_AT_ONCE = 100


class Messenger:
    """Sends and receives control messages by peer's name; a context manager.

    `on_message(peer, message)`, `on_peer(peer)` (a peer appeared or returned) and `on_silence(peer)` are
    called in order of the events on a separate thread, so they may block. A callback that raises ends this
    messenger: it then reports its peers as silent, and they see it so. A name belongs to one process at a
    time: another process that uses it is accepted once the first is silent or has left. An address passed to
    `connect` also belongs to one process at a time: when another process answers there, the previous one is
    reported as silent at once, since its Bye may be lost with its connection. A malformed message is
    delivered as `UnreadableMessage`, so that the callback can refuse the peer by name. A connecting member
    sends the newest version that it supports; both use the older of their newest.
    """

    def __init__(
        self,
        name: str,
        key: Key,
        listen: str | None = None,
        *,
        on_message: Callable[[str, AnyMessage], None],
        on_silence: Callable[[str], None] | None = None,
        on_peer: Callable[[str], None] | None = None,
        beat_s: float = 0.1,
        silence_s: float = 1.0,
    ) -> None:
        check_name(name)
        self.name = name
        self._on_message = on_message
        self._on_silence = on_silence or _ignore
        self._on_peer = on_peer or _ignore
        self._beat_s = beat_s
        self._silence_s = silence_s
        self._incarnation = secrets.randbits(64)
        self._context = SecureContext(key, _LISTENS_BYTES, stale_s=silence_s)
        self._inbox: Socket | None = None
        self.address: str | None = None
        if listen is not None:
            self._inbox, self.address = self._context.listen_or_close(zmq.ROUTER, listen, _QUEUED)
            self._inbox.router_mandatory = True
        self._lock = Lock()  # guards the next four
        self._roster: PeerRoster[_Route] = PeerRoster(silence_s)
        self._links: dict[str, _Link] = {}
        self._refused: deque[str] = deque(maxlen=16)
        self._is_closed = False
        self._outbox: SimpleQueue[tuple[str, bytes] | _Link | None] = SimpleQueue()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._waker = Waker()
        self._io = Thread(target=self._run_io, name=f"pliant-messenger-{name}", daemon=True)
        self._caller = Thread(target=self._run_callbacks, name=f"pliant-control-{name}", daemon=True)
        self._io.start()
        self._caller.start()

    def connect(self, address: str) -> None:
        """Connect to `address`; retry until a peer answers, and again whenever the connection is lost."""
        is_ipv6 = needs_ipv6(address)  # heartbeats need the lock meanwhile
        with self._lock:
            self._check_open()
            if address in self._links:
                return
            opened = self._context.connect(zmq.DEALER, address, _QUEUED, is_ipv6=is_ipv6)
            self._links[address] = link = _Link(address, *opened)
            self._outbox.put(link)
        self._waker.wake()

    def send(self, peer: str, message: AnyMessage) -> None:
        """Queue `message` for `peer` without blocking. It arrives complete and in order, or `peer` is lost.

        Raises PeerLostError if `peer` is not connected.
        """
        with self._lock:
            self._check_open()
            route = self._roster.routes().get(peer)
            if route is None:
                raise PeerLostError(
                    f"{self.name} does not hear {peer}: it has left, or was never here.", peer
                )
            self._outbox.put((peer, self._encode(message, route.version)))
        self._waker.wake()

    @property
    def peers(self) -> tuple[str, ...]:
        """The connected peers, in order of arrival."""
        with self._lock:
            return tuple(self._roster.routes())

    def heard_s_ago(self, peer: str) -> float:
        """Seconds since the last message from `peer`; infinite if there was none."""
        with self._lock:
            heard_s = self._roster.heard_s(peer)
        return math.inf if heard_s is None else monotonic() - heard_s

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the connected addresses do not answer, and recent refusals, as messages for a person."""
        with self._lock:
            return (*(p for link in self._links.values() if (p := link.problem)), *self._refused)

    def close(self) -> None:
        """Send Bye, close all connections and both threads. Idempotent; may be called from a callback."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if is_first:
            self._outbox.put(None)
            self._waker.wake()
            self._calls.put(None)
        for thread in (self._io, self._caller):
            if thread is not current_thread():
                thread.join()

    def __enter__(self) -> "Messenger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClusterError(f"{self.name} has closed its connections.")

    def _run_callbacks(self) -> None:
        """Run the thread of callbacks."""
        try:
            while (call := self._calls.get()) is not None:
                call()
        except BaseException:  # nothing is received any more, so that no peer is here
            for peer in self.peers:
                with suppress(Exception):
                    self._on_silence(peer)
            raise
        finally:
            with self._lock:
                self._is_closed = True
            self._outbox.put(None)
            self._waker.wake()

    def _run_io(self) -> None:
        """Run the socket thread, the only one that uses the sockets."""
        poller = zmq.Poller()
        for source in (self._inbox, self._context.gate, self._waker.fileno()):
            if source is not None:
                poller.register(source, zmq.POLLIN)
        awake_s = beat_s = monotonic()
        while self._flush_outbox(poller):
            ready = poller.poll(max(0, math.ceil((beat_s - monotonic()) * 1e3)))
            for source, _ in ready:
                self._handle_ready(source)
            now_s = monotonic()
            if (
                now_s - awake_s > self._silence_s / 2
            ):  # this process was suspended: heartbeats may be waiting unread
                with self._lock:
                    self._roster.reset_timers(now_s)
            awake_s = now_s
            if now_s >= beat_s:
                self._broadcast(Heartbeat())
                beat_s = now_s + self._beat_s
            with self._lock:
                silent = self._roster.mark_silent(now_s)
            for peer in silent:
                self._calls.put(partial(self._on_silence, peer))
        self._broadcast(Bye())
        self._close_sockets()

    def _flush_outbox(self, poller: zmq.Poller) -> bool:
        """Send the queued messages and register new connections; return False at the end."""
        while True:
            try:
                item = self._outbox.get_nowait()
            except Empty:
                return True
            if item is None:
                return False
            if isinstance(item, _Link):
                poller.register(item.socket, zmq.POLLIN)
                poller.register(item.monitor, zmq.POLLIN)
                continue
            peer, data = item
            with self._lock:
                route = self._roster.routes().get(peer)
            if route is not None and not self._write(route.way, data):
                self._mark_lost(peer)

    def _encode(self, message: AnyMessage, version: int) -> bytes:
        return encode(message, self.name, self._incarnation, version)

    def _write(self, way: "_Link | bytes", data: bytes) -> bool:
        try:
            if isinstance(way, _Link):
                way.socket.send(data, zmq.NOBLOCK)
            elif self._inbox is not None:
                self._inbox.send_multipart([way, data], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        return True

    def _broadcast(self, message: "Heartbeat | Bye") -> None:
        """Send `message` to all peers, and a first heartbeat on links without an answer."""
        with self._lock:
            routes = list(self._roster.routes().values())
            unheard = set(self._links.values()) - {route.way for route in routes}
        for route in routes:
            self._write(route.way, self._encode(message, route.version))
        for link in unheard:
            self._write(link, control_frame.pack_first_heartbeat(self.name, self._incarnation))

    def _handle_ready(self, source: "Socket | int") -> None:
        if source == self._waker.fileno():
            self._waker.drain()
        elif source is self._context.gate:
            self._context.admit()
        elif source is self._inbox:
            self._read_all(self._inbox, None)
        else:
            with self._lock:
                link = next(x for x in self._links.values() if source in (x.socket, x.monitor))
            if source is link.socket:
                self._read_all(link.socket, link)
            else:
                link.note(event(link.monitor))

    def _read_all(self, socket: Socket, link: "_Link | None") -> None:
        for _ in range(_AT_ONCE):
            try:
                parts = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            way = link or parts[0]
            try:
                envelope = decode(parts[-1])
            except EnvelopeError as error:
                self._handle_invalid(error, way)
            else:
                self._handle(envelope, way)

    def _handle_invalid(self, error: EnvelopeError, way: "_Link | bytes") -> None:
        with self._lock:
            names = (name for name, route in self._roster.routes().items() if route.way == way)
            peer = next(names, None)
        why = str(error) if error.is_other_version else f"{peer or 'a stranger'} sent {self.name} {error}"
        if peer is None:
            self._refuse(why, way)
        else:
            self._calls.put(partial(self._on_message, peer, UnreadableMessage(why, error.is_other_version)))

    def _handle(self, envelope: Envelope[AnyMessage], way: "_Link | bytes") -> None:
        peer, message = envelope.sender, envelope.body
        if isinstance(way, _Link) and envelope.incarnation in way.replaced:
            return None  # sent before its successor answered, and read after
        if isinstance(message, AdmissionRefusal):
            return self._note_refusal(peer, message.reason, way)
        if isinstance(message, Bye):
            return self._mark_lost(peer, envelope.incarnation)
        if peer == self.name:
            return self._refuse_name(f"{peer!r} is the name of this member itself", way)
        with self._lock:
            route = _Route(way, envelope.version)
            has_room = self._roster.has_room(peer)
            gone = self._replace(envelope.incarnation, way) if isinstance(way, _Link) else ()
            is_new = self._roster.record(peer, envelope.incarnation, route, monotonic()) if has_room else None
        for name in gone:
            self._calls.put(partial(self._on_silence, name))
        if not has_room:
            return self._refuse(f"{self.name} hears {MAX_PEERS} members, which is the limit", way)
        if is_new is None:
            return self._refuse_name(f"there is another {peer!r} already", way)
        if isinstance(way, _Link):
            way.problem = None
        if is_new:
            self._calls.put(partial(self._on_peer, peer))
        if not isinstance(message, Heartbeat):
            self._calls.put(partial(self._on_message, peer, message))
        return None

    def _replace(self, incarnation: int, link: "_Link") -> Collection[str]:
        """Remove and return the peers that answered at the address of `link` before this process did."""
        gone = self._roster.replace(incarnation, lambda route: route.way is link)
        link.replaced.extend(gone.values())
        return gone

    def _mark_lost(self, peer: str, incarnation: int | None = None) -> None:
        with self._lock:
            was_here = self._roster.leave(peer, incarnation)
        if was_here:
            self._calls.put(partial(self._on_silence, peer))

    def _note_refusal(self, peer: str, reason: str, way: "_Link | bytes") -> None:
        if isinstance(way, _Link):
            way.note_refusal(peer, reason)
        else:  # a member that connected here already works for another member of this name
            self._record_refusal(f"{peer} does not admit {self.name}: {reason}")

    def _refuse_name(self, why: str, way: "_Link | bytes") -> None:
        """Send a refusal for a name clash, on links too: a refusal is never answered."""
        why = f"{why}: names are unique, give one of the two another --name"
        self._record_refusal(why)
        self._write(way, self._refusal(why))

    def _refuse(self, why: str, way: "_Link | bytes") -> None:
        self._record_refusal(why)
        if not isinstance(way, _Link):  # no answer on a link: refusals would go back and forth
            self._write(way, self._refusal(why))

    def _refusal(self, why: str) -> bytes:
        """Encode a refusal in the form that every version can read."""
        return self._encode(AdmissionRefusal(why), control_frame.OLDEST)

    def _record_refusal(self, why: str) -> None:
        with self._lock:
            if why not in self._refused:
                self._refused.append(why)

    def _close_sockets(self) -> None:
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.close()
        if self._inbox is not None:
            self._inbox.close()
        self._waker.close()
        self._context.close()


@dataclass(frozen=True, slots=True)
class _Route:
    """The route to a peer, by a link or through the inbox, and the protocol version used for it."""

    way: "_Link | bytes"
    version: int


class _Link:
    """One address passed to `connect`: its socket, its monitor, and the state of the connection."""

    def __init__(self, address: str, socket: Socket, monitor: Socket) -> None:
        self.socket = socket
        self.monitor = monitor
        self.problem: str | None = f"no response from {address}"
        self._address = address
        self._was_agreed = False
        self.replaced: deque[int] = deque(maxlen=16)
        """Incarnations of processes that answered here before the current one."""

    def note(self, what: int) -> None:
        if what == CONNECTED:
            self.problem = f"no message from {self._address} yet"
        elif self._was_agreed:
            self.problem = f"the connection to {self._address} was lost"
        else:
            why = "it uses another cluster key, or is not a member"
            self.problem = f"{self._address} closes the connection at once: {why}"
        self._was_agreed = what == CONNECTED

    def note_refusal(self, peer: str, why: str) -> None:
        self.problem = f"{peer} at {self._address} does not admit this device: {why}"

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()


def _ignore(peer: str) -> None:
    return None
