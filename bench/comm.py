"""Tensor transfers between two ends on this machine: all three engines and a bare TCP socket, interleaved.

ZeroMQ's connections are authenticated and encrypted, Gloo's and the bare socket's are not; these three
connect two processes over loopback. The engine of tests and simulated clusters copies between two threads.
Both ends share this machine's cores, so throughput is limited by their work, not by a network.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np

from comm_peer import PATIENT_S, answer, plan, take
from paired import paired
from pliant.cluster.net.comm import Comm, Tag
from pliant.cluster.net.comm_gloo import GlooComm
from pliant.cluster.net.comm_memory import MemoryNetwork
from pliant.cluster.net.comm_zmq import ZmqComm
from pliant.cluster.net.key import new_key
from report import Report, options

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24)
BARE = "bare socket"
# Table 3's exchanges over the paper's network, of 940 Mbit/s: the engine must not be the bottleneck there.
NETWORK_BPS = 940e6 / 8
AT_BYTES = 1 << 17

Times = dict[tuple[str, int], list[tuple[float, float]]]


def main() -> None:
    arguments = options(__doc__.splitlines()[0])
    amount = {
        "sizes": SIZES,
        "rounds": 3 if arguments.quick else 15,
        "n_messages": 200,
        "n_bytes": (16 if arguments.quick else 64) << 20,
        "n_echoes": 10 if arguments.quick else 50,
    }
    work = f"two ends on one machine, {amount['rounds']} rounds in turns"
    report = Report("comm", work, arguments)
    report.note(
        "A stream is many messages of one size and one byte back at its end; a round trip is one message "
        "there and the same back. The bare socket sends data of a length that both ends know, without tags, "
        "notes or queues, so it is the upper limit of a protocol over TCP here."
    )
    times = _measure(amount)
    engines = tuple(dict.fromkeys(engine for engine, _ in times))
    for title, what in (
        ("bandwidth of a stream, MB/s", _rate),
        ("messages a second in a stream", _messages),
        ("round trip, microseconds", _trip),
    ):
        report.table(f"{title} (median of rounds)", [_row(times, n, engines, what) for n in SIZES])
    for which, name in enumerate(("a stream", "a round trip")):
        title = f"time of {name} relative to the bare socket: median of pairs and its 95 % interval"
        report.table(title, [_against(times, n, engines, which) for n in SIZES])
    rate = median(_rate(AT_BYTES, t) for t in times["zeromq", AT_BYTES]) * 1e6
    report.claim(
        "comm.wire",
        rate / NETWORK_BPS,
        "ZeroMQ, encrypted, moves messages of 128 KiB faster than 940 Mbit/s bring them",
        rate > NETWORK_BPS,
        "as a multiple of 117.5 MB/s, both ends on one machine",
    )
    report.finish()


def _measure(amount: Mapping[str, Any]) -> Times:
    key, network = new_key(), MemoryNetwork()
    listener = socket.create_server(("127.0.0.1", 0))
    with (
        tempfile.TemporaryDirectory() as folder,
        ZmqComm("here", key) as zeromq,
        GlooComm("here") as gloo,
        network.join("here") as memory,
        network.join("there") as other,
    ):
        more = {
            "public": key.public.decode(),
            "secret": key.secret.decode(),
            "zeromq": zeromq.address,
            "raw": listener.getsockname()[1],
            "rendezvous": f"file://{folder}/meet",
        }
        peer = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("comm_peer.py")), json.dumps({**amount, **more})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with peer, listener:
            try:
                raw, _ = listener.accept()
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                assert peer.stdout is not None
                zeromq.connect("there", peer.stdout.readline().strip())
                gloo.form(("here", "there"), more["rendezvous"])
                Thread(target=answer, args=(other, amount), daemon=True).start()
                with raw:
                    return _rounds(amount, {"memory": memory, "zeromq": zeromq, "gloo": gloo}, raw)
            finally:
                peer.kill()


def _rounds(amount: Mapping[str, Any], comms: Mapping[str, Comm], raw: socket.socket) -> Times:
    times: Times = {}
    for round_, i, n_bytes, n_messages, n_echoes in plan(amount):
        names = [*comms, BARE]
        for name in names if round_ % 2 == 0 else names[::-1]:
            if name == BARE:
                took = _talk_raw(raw, n_bytes, n_messages, n_echoes)
            else:
                took = _talk(comms[name], round_, i, n_bytes, n_messages, n_echoes)
            times.setdefault((name, n_bytes), []).append(took)
    return times


def _talk(
    comm: Comm, round_: int, i: int, n_bytes: int, n_messages: int, n_echoes: int
) -> tuple[float, float]:
    """Seconds a message in a stream, and of a round trip."""
    buffer, step = np.ones(n_bytes, np.uint8), 0
    start = time.perf_counter()
    for _ in range(n_messages):
        comm.send("there", Tag(round_, i, step), buffer)
        step += 1
    comm.receive("there", Tag(round_, i, step), buffer[:1], PATIENT_S)
    streamed = time.perf_counter()
    for _ in range(n_echoes):
        step += 1
        comm.send("there", Tag(round_, i, step), buffer)
        comm.receive("there", Tag(round_, i, step), buffer, PATIENT_S)
    return (streamed - start) / n_messages, (time.perf_counter() - streamed) / n_echoes


def _talk_raw(raw: socket.socket, n_bytes: int, n_messages: int, n_echoes: int) -> tuple[float, float]:
    buffer = bytearray(n_bytes)
    start = time.perf_counter()
    for _ in range(n_messages):
        raw.sendall(buffer)
    take(raw, bytearray(1))
    streamed = time.perf_counter()
    for _ in range(n_echoes):
        raw.sendall(buffer)
        take(raw, buffer)
    return (streamed - start) / n_messages, (time.perf_counter() - streamed) / n_echoes


def _rate(n_bytes: int, seconds: tuple[float, float]) -> float:
    return n_bytes / seconds[0] / 1e6


def _messages(n_bytes: int, seconds: tuple[float, float]) -> float:
    return 1 / seconds[0]


def _trip(n_bytes: int, seconds: tuple[float, float]) -> float:
    return seconds[1] * 1e6


def _row(
    times: Times, n_bytes: int, engines: tuple[str, ...], what: Callable[[int, tuple[float, float]], float]
) -> dict[str, object]:
    return {"bytes": n_bytes, **{e: median(what(n_bytes, t) for t in times[e, n_bytes]) for e in engines}}


def _against(times: Times, n_bytes: int, engines: tuple[str, ...], which: int) -> dict[str, object]:
    took = {e: [t[which] for t in times[e, n_bytes]] for e in engines}
    return {"bytes": n_bytes, **{e: str(paired(took[e], took[BARE])) for e in engines if e != BARE}}


if __name__ == "__main__":
    main()
