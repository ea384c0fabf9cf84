"""The other end of bench/comm.py: a process that answers on every engine until its standard input is
closed.
"""

import json
import socket
import sys
from collections.abc import Mapping
from threading import Thread
from typing import Any

import numpy as np

from pliant.cluster.net.comm import Comm, Tag
from pliant.cluster.net.comm_gloo import GlooComm
from pliant.cluster.net.comm_zmq import ZmqComm
from pliant.cluster.net.key import Key

PATIENT_S = 600.0


def main() -> None:
    options = json.loads(sys.argv[1])
    zeromq = ZmqComm("there", Key(options["public"].encode(), options["secret"].encode()))
    zeromq.connect("here", options["zeromq"])
    gloo = GlooComm("there")
    raw = socket.create_connection(("127.0.0.1", options["raw"]))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(zeromq.address, flush=True)
    gloo.form(("here", "there"), options["rendezvous"])
    jobs = [(zeromq, options), (gloo, options)]
    threads = [Thread(target=answer, args=job, daemon=True) for job in jobs]
    threads.append(Thread(target=answer_raw, args=(raw, options), daemon=True))
    for thread in threads:
        thread.start()
    sys.stdin.read()
    for comm in (zeromq, gloo):
        comm.close()


def answer(comm: Comm, options: Mapping[str, Any]) -> None:
    """Per round and size: receive the messages, send one byte, then echo the given number."""
    for round_, i, n_bytes, n_messages, n_echoes in plan(options):
        buffer, step = np.zeros(n_bytes, np.uint8), 0
        for _ in range(n_messages):
            comm.receive("here", Tag(round_, i, step), buffer, PATIENT_S)
            step += 1
        comm.send("here", Tag(round_, i, step), buffer[:1])
        for _ in range(n_echoes):
            step += 1
            comm.receive("here", Tag(round_, i, step), buffer, PATIENT_S)
            comm.send("here", Tag(round_, i, step), buffer)


def answer_raw(connection: socket.socket, options: Mapping[str, Any]) -> None:
    """As `answer`, over a bare socket; both sides know the lengths."""
    for _, _, n_bytes, n_messages, n_echoes in plan(options):
        buffer = bytearray(n_bytes)
        for _ in range(n_messages):
            take(connection, buffer)
        connection.sendall(buffer[:1])
        for _ in range(n_echoes):
            take(connection, buffer)
            connection.sendall(buffer)


def plan(options: Mapping[str, Any]) -> list[tuple[int, int, int, int, int]]:
    """(round, number of the size, its bytes, messages, echoes), in the order that both ends follow."""
    most = options["n_bytes"]
    return [
        (
            round_, i, n_bytes,
            max(4, min(options["n_messages"], most // n_bytes)),
            max(4, min(options["n_echoes"], most // n_bytes)),
        )
        for round_ in range(options["rounds"])
        for i, n_bytes in enumerate(options["sizes"])
    ]  # fmt: skip


def take(connection: socket.socket, buffer: bytearray) -> None:
    """Fill `buffer` from the connection."""
    view = memoryview(buffer)
    while view:
        n = connection.recv_into(view)
        if not n:
            raise ConnectionError("the other end is gone")
        view = view[n:]


if __name__ == "__main__":
    main()
