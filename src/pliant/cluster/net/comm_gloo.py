"""The gloo engine: data connections through torch.distributed, in a child process.

Gloo aborts its process when a received message is longer than the posted buffer, and accepts a shorter one
without an error. Each member's rank therefore runs in its own child process (`gloo_child`), which agrees on
every length first. Payloads reach the child through shared memory, commands through a pipe. There is no
authentication or encryption: use this engine only in a trusted network.
"""

import importlib.util
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from threading import Event, Lock, Semaphore, Thread
from time import monotonic

import numpy as np

from pliant.cluster.net.comm import NOTE_LIMIT_BYTES, Tag, check_name, check_note, payload_bytes
from pliant.cluster.net.mailbox import DataMessage, Mailbox
from pliant.cluster.net.mailbox_comm import MailboxComm
from pliant.cluster.net.shared_blocks import SharedRegion
from pliant.errors import ClusterError, PeerLostError, PeerProtocolError
from pliant.settings import child_environment
from pliant.system import shared_memory

_HEAD = struct.Struct("<QqqqH")
_HEAD_BYTES = 1088  # duplicates gloo_child.HEAD_BYTES: gloo_child cannot be imported without torch
_QUEUED = 8
_END_S = 5.0
_LOOK_S = 0.05  # interval at which a waiting `send` checks for a closed group or a timeout

assert _HEAD.size + NOTE_LIMIT_BYTES <= _HEAD_BYTES


class GlooComm(MailboxComm):
    """A `Comm` on torch.distributed; `form` creates the group, and a new one after any failure.

    Each group starts a process on every member, which imports torch before it joins: one to several seconds
    and about 200 MB. The previous group is kept until the next one but one is formed, for a run that is
    still in progress. Raises ClusterError if torch is not installed. `max_message_bytes` bounds a payload;
    shared memory in each direction is twice that. `interface` names the network interface; by default, Gloo
    uses the one that the host name resolves to.
    """

    def __init__(
        self,
        name: str,
        *,
        max_message_bytes: int = 64 << 20,
        send_timeout_s: float = 10.0,
        interface: str | None = None,
    ) -> None:
        check_name(name)
        if importlib.util.find_spec("torch") is None:
            raise ClusterError("this engine needs torch: pip install 'pliant[train]', or use ZeroMQ.")
        super().__init__(name, Mailbox(name))
        self._max_message_bytes = max_message_bytes
        self.send_timeout_s = send_timeout_s
        self._interface = interface
        self._lock = Lock()
        self._group: _Group | None = None
        self._before: _Group | None = None
        self._lost: set[str] = set()
        self._is_closed = False

    @property
    def group_process(self) -> int | None:
        """The process id of this member's rank in the group; None before a group was formed."""
        with self._lock:
            return None if self._group is None else self._group.process_id

    def reaches(self, members: Sequence[str]) -> bool:
        """Return whether the latest group contains all of `members` and has lost none of its own."""
        with self._lock:
            return self._group is not None and not self._lost and set(members) <= self._group.ranks.keys()

    def form(
        self,
        members: Sequence[str],
        rendezvous: str,
        timeout_s: float = 60.0,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Form the group of `members`, the same sequence on all of them, and use it for later sends.

        `rendezvous` is torch's init method, new for each group: `tcp://HOST:PORT` on the first of
        `members`, or `file://PATH` that all can read. Returns when all have joined; raises ClusterError if
        they do not within `timeout_s`, or if `is_wanted` returns False meanwhile: then the previous group
        stays in use.
        """
        if self.name not in members or len(set(members)) != len(members):
            raise ClusterError(
                f"{self.name} cannot form a group of {', '.join(members)}: it takes each once."
            )
        with self._lock:
            if self._is_closed:
                raise ClusterError(f"{self.name} has closed its connections.")
            group = _Group(
                self.name,
                tuple(members),
                rendezvous,
                self._mailbox,
                self._max_message_bytes,
                self._interface,
                self._lose,
            )
        group.wait_ready(timeout_s, is_wanted)
        with self._lock:
            old, self._before, self._group = self._before, self._group, group
            self._lost.clear()
            for peer in members:
                self._mailbox.regain(peer)
            is_closed = self._is_closed
        for one in (old, self._before, group) if is_closed else (old,):
            if one is not None:
                one.close()
        for peer, error in group.begin():
            self._lose(group, peer, error)

    def _lose(self, group: "_Group", peer: str, error: ClusterError) -> None:
        """Record that `group` lost `peer`; ignored if a newer group contains `peer`."""
        with self._lock:
            if group is self._group:
                self._lost.add(peer)
            elif self._group is not None and peer in self._group.ranks:
                return
        self._mailbox.lose(peer, error)

    def send(self, dst: str, tag: Tag, payload: np.ndarray, note: bytes = b"") -> None:
        check_note(note)
        self._mailbox.check(dst, tag.epoch)
        groups = [one for one in (self._group, self._before) if one is not None]
        group = next((one for one in groups if dst in one.ranks), None)
        if group is None or dst == self.name:
            names = ", ".join(groups[0].ranks) if groups else "nobody yet: form a group first"
            raise ClusterError(f"there is no member {dst} in the group of {self.name}; there are {names}.")
        data = payload_bytes(payload)
        if data.nbytes > self._max_message_bytes:
            raise ClusterError(
                f"message {tag} to {dst} has {data.nbytes:,} bytes, the limit is "
                f"{self._max_message_bytes:,}. Raise max_message_bytes on all members."
            )
        group.send(dst, tag, data, note, self.send_timeout_s)
        self._mailbox.count_sent(dst, data.nbytes)

    def close(self) -> None:
        self._mailbox.close()
        with self._lock:
            self._is_closed = True
            groups = self._group, self._before
            self._group = self._before = None
        for group in groups:
            if group is not None:
                group.close()


class _Group:
    """One child process: its pipe, its shared memory, and the thread that reads from the pipe."""

    def __init__(
        self,
        name: str,
        members: tuple[str, ...],
        rendezvous: str,
        mailbox: Mailbox,
        max_message_bytes: int,
        interface: str | None,
        on_lost: "Callable[[_Group, str, ClusterError], None]",
    ) -> None:
        self.ranks = {member: rank for rank, member in enumerate(members)}
        self._name = name
        self._members = members
        self._mailbox = mailbox
        self._on_lost = on_lost
        self._early: list[tuple[str, ClusterError]] | None = []  # losses before this group is in use
        self._is_left = False
        self._is_formed = False
        self._answered = Event()
        self._rooms = {member: Semaphore(_QUEUED) for member in members}
        self._lock = Lock()  # one writer of the pipe at a time
        self._early_lock = Lock()
        self._pipe, theirs = Pipe()
        region_bytes = 2 * max_message_bytes
        out_fd, in_fd = shared_memory(region_bytes), shared_memory(region_bytes)
        options = {
            "rank": self.ranks[name],
            "n_ranks": len(members),
            "rendezvous": rendezvous,
            "pipe": theirs.fileno(),
            "out": out_fd,
            "in": in_fd,
            "region_bytes": region_bytes,
            "max_message_bytes": max_message_bytes,
        }
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the group
        self._out, self._in = SharedRegion(out_fd, region_bytes), SharedRegion(in_fd, region_bytes)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pliant.cluster.net.gloo_child", json.dumps(options)],
            pass_fds=(theirs.fileno(), out_fd, in_fd),
            env=None if interface is None else child_environment(GLOO_SOCKET_IFNAME=interface),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._words,
            start_new_session=True,  # Ctrl-C is for the parent, which ends the child
        )
        self.process_id = self._process.pid
        theirs.close()
        os.close(out_fd)
        os.close(in_fd)
        self._listener = Thread(target=self._listen, name=f"pliant-gloo-{name}", daemon=True)
        self._listener.start()

    def wait_ready(self, timeout_s: float, is_wanted: Callable[[], bool]) -> None:
        """Return when the group has formed. Raises ClusterError, and closes the group, if it does not."""
        until_s = monotonic() + timeout_s
        while not self._answered.wait(_LOOK_S) and monotonic() < until_s and is_wanted():
            pass
        if self._is_formed:
            return
        if self._answered.is_set():
            why = self._why()
        elif monotonic() >= until_s:
            why = f"not all came within {timeout_s:.3g} s"
        else:
            why = "it is not wanted any more"
        self.close()
        raise ClusterError(f"{self._name} could not form a group of {', '.join(self._members)}: {why}.")

    def begin(self) -> list[tuple[str, ClusterError]]:
        """Report losses from now on as they occur; return those that occurred before."""
        with self._early_lock:
            early, self._early = self._early or [], None
        return early

    def send(self, dst: str, tag: Tag, data: np.ndarray, note: bytes, timeout_s: float) -> None:
        until_s = monotonic() + timeout_s
        while not self._rooms[dst].acquire(timeout=_LOOK_S):
            self._check_sending(dst, tag, until_s, timeout_s)
        while (offset := self._out.allocate(data.nbytes, monotonic() + _LOOK_S)) is None:
            self._check_sending(dst, tag, until_s, timeout_s)
        if data.nbytes:
            self._out.view(offset, data.nbytes)[:] = data.data
        head = _HEAD.pack(data.nbytes, tag.epoch, tag.segment, tag.step, len(note)) + note
        self._tell("send", self.ranks[dst], head.ljust(_HEAD_BYTES, b"\0"), offset, data.nbytes)

    def close(self) -> None:
        """End the child; queued messages are sent if that takes at most one second."""
        self._is_left = True
        if self._is_formed:
            self._tell("end")
        else:
            self._process.kill()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        self._pipe.close()
        self._words.close()

    def _check_sending(self, dst: str, tag: Tag, until_s: float, timeout_s: float) -> None:
        self._mailbox.check(dst, tag.epoch)
        if monotonic() >= until_s:
            raise PeerLostError(f"{dst} took nothing for {timeout_s:.3g} s: it is frozen or cut off.", dst)

    def _tell(self, *what: object) -> None:
        with self._lock, suppress(OSError):  # the child has ended: `_listen` reports it
            self._pipe.send(what)

    def _listen(self) -> None:
        """Run the listener thread: handle messages from the child, and report its exit."""
        while True:
            try:
                what, rank, *more = self._pipe.recv()
            except (EOFError, OSError):
                break
            peer = self._members[rank]
            if what == "ready":
                self._is_formed = True
                self._answered.set()
            elif what == "got":
                self._deliver(peer, *more)
            elif what == "sent":
                self._out.free(*more)
                self._rooms[peer].release()
            elif not self._is_left:
                self._lose(peer, _fault(what, peer, self._name, *more))
        code = self._process.wait()
        self._answered.set()
        for peer in self._members if not self._is_left else ():
            why = f"the process of torch.distributed that {self._name} ran ended ({code})"
            self._lose(peer, PeerLostError(f"{peer} cannot be reached: {why}. Form a new group.", peer))

    def _deliver(self, peer: str, head: bytes, offset: int, n_bytes: int) -> None:
        payload = bytes(self._in.view(offset, n_bytes))
        self._tell("free", offset)
        _, epoch, segment, step, n_note = _HEAD.unpack_from(head)
        try:
            tag = Tag(epoch, segment, step)
            note = head[_HEAD.size : _HEAD.size + n_note]
            check_note(note)
        except ValueError as error:
            self._lose(peer, _fault("lied", peer, self._name, str(error)))
            return
        self._mailbox.deliver(peer, tag, DataMessage((payload,) if payload else (), n_bytes, note))

    def _lose(self, peer: str, error: ClusterError) -> None:
        with self._early_lock:
            if self._early is not None:
                self._early.append((peer, error))
                return
        self._on_lost(self, peer, error)

    def _why(self) -> str:
        """Describe why the child ended, with the last line of its stderr."""
        self._words.seek(0)
        lines = self._words.read().decode("utf-8", "replace").strip().splitlines()
        return f"its process ended ({self._process.returncode}): {lines[-1] if lines else 'no word'}"


def _fault(what: str, peer: str, name: str, text: str) -> ClusterError:
    if what == "lied":
        return PeerProtocolError(f"{peer} sent {name} {text}.", peer)
    return PeerLostError(f"{peer} has left, died or was cut off from {name}: {text.splitlines()[0]}", peer)
