"""[serve.flood] Floods of half-sent requests: the response time of the health check, and the memory.

Half-sent heads, more than a node has connection slots, and bodies of 16 MiB without their last byte. They
stay open, and new ones keep arriving from a separate thread, while health is requested over new connections.
All connections come over loopback from one address, which is the worst case: the node cannot distinguish the
flood from the health client.
"""

import http.client
import re
import resource
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from crime_node import MODEL, node, started
from pliant.serve.http.limits import Limits
from report import Report

N_HEADS, N_BODIES = 1030, 60
MOST_S = 0.1
MOST_BYTES = Limits().buffer_bytes + (64 << 20)
"""The allowed memory growth: the buffers of bodies, plus half as much for data in transit."""
_HEAD = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: x\r\n".encode()
_PAUSE_S = 0.002
Send = Callable[[socket.socket], None]


def flood(report: Report, is_quick: bool) -> None:
    """The claim, and a row for each flood."""
    _raise_descriptors()
    for_s = 3.0 if is_quick else 20.0
    rows = [_row(name, n, send, for_s) for name, n, send in _floods()]
    report.table("health over new connections, while a flood stands and goes on", rows)
    slowest_s = max(float(str(row["slowest, ms"])) for row in rows) / 1e3
    grown = max(float(str(row["memory, MB more"])) for row in rows) * 1e6
    report.claim(
        "serve.flood",
        f"{slowest_s * 1e3:.0f} ms, {grown / 1e6:.0f} MB",
        f"health within {MOST_S * 1e3:.0f} ms under both floods, {MOST_BYTES / 1e6:.0f} MB more at most",
        slowest_s <= MOST_S and grown <= MOST_BYTES and all(row["not 200"] == 0 for row in rows),
        "the slowest answer and the highest peak",
    )


def _floods() -> Iterator[tuple[str, int, Send]]:
    n_bytes = Limits().body_bytes
    body = _HEAD + f"content-length: {n_bytes}\r\n\r\n".encode() + bytes(n_bytes - 1)
    yield "half-sent heads", N_HEADS, lambda sock: sock.sendall(_HEAD)
    yield "bodies without their last byte", N_BODIES, lambda sock: sock.sendall(body)


def _row(name: str, n: int, send: Send, for_s: float) -> dict[str, object]:
    with started(node()) as (urls, pid):
        at = urlsplit(urls[0])
        assert at.hostname is not None
        assert at.port is not None
        idle = [_health(at.hostname, at.port)[1] for _ in range(50)]
        before = _peak_bytes(pid)
        found: list[tuple[int, float]] = []
        with _flooded((at.hostname, at.port), n, send):
            ends_s = time.perf_counter() + for_s
            while time.perf_counter() < ends_s:
                found.append(_health(at.hostname, at.port))
                time.sleep(_PAUSE_S)
        peak = _peak_bytes(pid)
    seconds = [s for _, s in found]
    return {
        "flood": name,
        "connections": n,
        "asked": len(found),
        "not 200": sum(status != 200 for status, _ in found),
        "idle median, ms": median(idle) * 1e3,
        "median, ms": median(seconds) * 1e3,
        "slowest, ms": max(seconds) * 1e3,
        "memory, MB more": (peak - before) / 1e6,
    }


@contextmanager
def _flooded(address: tuple[str, int], n: int, send: Send) -> Iterator[None]:
    """`n` open connections; during the block, the oldest is replaced by a new one repeatedly."""
    standing: deque[socket.socket] = deque()
    ended, is_standing = threading.Event(), threading.Event()

    def work() -> None:
        while not ended.is_set():
            with suppress(OSError):  # closed by the node to make room
                sock = socket.create_connection(address, timeout=10.0)
                standing.append(sock)
                send(sock)
            if len(standing) >= n:
                is_standing.set()
                standing.popleft().close()
                ended.wait(_PAUSE_S)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert is_standing.wait(120.0)
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for sock in standing:
            sock.close()


def _health(host: str, port: int) -> tuple[int, float]:
    """The status of the health check, 0 without an answer, and its seconds."""
    start_s, status = time.perf_counter(), 0
    connection = http.client.HTTPConnection(host, port, timeout=10.0)
    with suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/v2/health/live")
        response = connection.getresponse()
        response.read()
        status = response.status
    connection.close()
    return status, time.perf_counter() - start_s


def _peak_bytes(pid: int) -> int:
    """The peak memory of the process so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _raise_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * N_HEADS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2 * N_HEADS, hard), hard))
