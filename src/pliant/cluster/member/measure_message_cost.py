"""Measure the compute thread's cost per message: sending, waking up and receiving.

This device sends to itself, as a member does in a run: checked, encrypted, with a note. The cost of the
network and of the reader's thread is part of a link.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from threading import Thread

import numpy as np

from pliant.cluster.control.messages import Note, decode_note, encode_note
from pliant.cluster.net.comm import Tag
from pliant.cluster.net.comm_zmq import ZmqComm
from pliant.cluster.net.key import new_key
from pliant.ir.capability import MessageOverhead
from pliant.profile.timing_rounds import Clock

_HERE, _PATIENCE_S = "here", 5.0
_SMALL_BYTES, _LARGE_BYTES = 16 << 10, 1 << 20
_REPEATS = 15
_NAP_S = 2e-3


@dataclass(frozen=True, slots=True)
class MessageCosts:
    """Costs of sent and of received messages."""

    send: MessageOverhead
    take: MessageOverhead


def measure_message_cost(
    n_bytes: int,
    *,
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> MessageCosts:
    """Fit a line through the median costs of a small message and of one of `n_bytes`.

    Each message follows a pause as long as a small stage. After a longer pause, the core wakes slowly and
    the message costs twice as much, which does not happen in a run. Takes about 0.1 s.
    """
    sizes = _SMALL_BYTES, min(max(n_bytes, 4 * _SMALL_BYTES), _LARGE_BYTES)
    sends: dict[int, list[float]] = {size: [] for size in sizes}
    takes: dict[int, list[float]] = {size: [] for size in sizes}
    with ZmqComm(_HERE, new_key()) as comm:
        comm.connect(_HERE, comm.address)
        for turn in range(_REPEATS + 1):
            for size in sizes:
                send_s, take_s = _once(comm, turn, size, clock, sleep)
                if turn:  # the first turn opens the connection
                    sends[size].append(send_s)
                    takes[size].append(take_s)
    return MessageCosts(_line(sends), _line(takes))


def _once(
    comm: ZmqComm, turn: int, n_bytes: int, clock: Clock, sleep: Callable[[float], None]
) -> tuple[float, float]:
    """Return the seconds of one message: to send it, and from its arrival until the waiting thread has it."""
    values, into = np.zeros(n_bytes // 4, np.float32), np.empty(n_bytes // 4, np.float32)
    tag = Tag(0, turn, n_bytes)
    sent_s: list[float] = []

    def send() -> None:
        sleep(_NAP_S)
        start_s = clock()
        note = encode_note(Note(start_s, n_bytes, {"rest": 1.0}, {_HERE: (n_bytes, 1.0)}, {_HERE: 1}))
        comm.send(_HERE, tag, values, note)
        sent_s.append(clock() - start_s)

    sender = Thread(target=send, name="pliant-hand-over")
    sender.start()
    arrival = comm.receive(_HERE, tag, into, _PATIENCE_S)
    arrived_s = clock() - arrival.waited_s
    np.isfinite(into.sum())
    decode_note(arrival.note, _HERE)
    taken_s = clock() - arrived_s
    sender.join()
    return sent_s[0], taken_s


def _line(samples: dict[int, list[float]]) -> MessageOverhead:
    (small, small_s), (large, large_s) = sorted((n, median(seconds)) for n, seconds in samples.items())
    byte_s = max(0.0, (large_s - small_s) / (large - small))
    return MessageOverhead(max(0.0, small_s - byte_s * small), byte_s)
