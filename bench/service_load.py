"""Clients for benches of nodes: each sends its next request when the answer has arrived (closed loop).

One process with one event loop and raw sockets, parsing only an answer's length, so that the clients take
little time of the machine that they share with the nodes.
"""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from urllib.parse import urlsplit

import numpy as np

from pliant.route.node_identity import NODE_HEADER

MODEL = "imdb-lstm"
_END = b"\r\n\r\n"


def infer_body(tensor: dict[str, object]) -> bytes:
    """An inference request in JSON with one input."""
    return json.dumps({"inputs": [tensor]}).encode()


def infer_inputs(feeds: Mapping[str, np.ndarray]) -> bytes:
    """An inference request in JSON, of int64 arrays."""
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": "INT64", "data": array.ravel().tolist()}
        for name, array in feeds.items()
    ]
    return json.dumps({"inputs": inputs}).encode()


@dataclass(slots=True)
class LoadResults:
    """The answers of `took_s` seconds: statuses, and the seconds of each answer by node."""

    statuses: Counter[str] = field(default_factory=Counter)
    by_node: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    took_s: float = 0.0

    @property
    def rate(self) -> float:
        """Answers with status 200 per second."""
        return self.statuses["200"] / self.took_s

    @property
    def seconds(self) -> list[float]:
        """The seconds of all answers, of any node."""
        return [s for each in self.by_node.values() for s in each]

    @property
    def p99_s(self) -> float:
        """The 99th percentile of the seconds."""
        return float(np.quantile(self.seconds, 0.99))


def load(
    url: str, bodies: bytes | Sequence[bytes], n_clients: int, for_s: float, model: str = MODEL
) -> LoadResults:
    """`n_clients` at once for `for_s` seconds; waits for requests in flight at the end.

    Each client sends all bodies in turn, starting at a different one.
    """
    every = [bodies] if isinstance(bodies, bytes) else bodies
    return asyncio.run(_load(url, every, n_clients, for_s, model))


def post(at: str, model: str, body: bytes) -> bytes:
    """An HTTP inference request to `at`, a host and port."""
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: {at}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _load(url: str, bodies: Sequence[bytes], n_clients: int, for_s: float, model: str) -> LoadResults:
    at, loop, found = urlsplit(url), asyncio.get_running_loop(), LoadResults()
    requests = [post(at.netloc, model, body) for body in bodies]
    start_s = time.perf_counter()
    clients = [
        _Client(islice(cycle(requests), i, None), start_s + for_s, found, loop.create_future())
        for i in range(n_clients)
    ]
    for client in clients:
        await loop.create_connection(lambda c=client: c, at.hostname or "", at.port or 80)  # type: ignore[misc]
    await asyncio.gather(*(client.ended for client in clients))
    found.took_s = time.perf_counter() - start_s
    return found


class _Client(asyncio.Protocol):
    def __init__(
        self, requests: Iterator[bytes], ends_s: float, found: LoadResults, ended: "asyncio.Future[None]"
    ) -> None:
        self._requests, self._ends_s, self._found, self.ended = requests, ends_s, found, ended
        self._came = b""
        self._sent_s = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._came, self._sent_s = b"", time.perf_counter()
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._came += data
        head, end, body = self._came.partition(_END)
        if not end or len(body) < answer_length(head):
            return
        now_s = time.perf_counter()
        self._found.statuses[head[9:12].decode()] += 1
        self._found.by_node[_field(head, NODE_HEADER)].append(now_s - self._sent_s)
        if now_s < self._ends_s:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if time.perf_counter() < self._ends_s:
            self._found.statuses["connection lost"] += 1
        if not self.ended.done():
            self.ended.set_result(None)


def answer_length(head: bytes) -> int:
    """The length of a body, from its head."""
    return int(_field(head, "content-length") or 0)


def _field(head: bytes, name: str) -> str:
    """The value of a header; "" where there is none."""
    start = f"{name.lower()}:".encode()
    for line in head.lower().split(b"\r\n"):
        if line.startswith(start):
            return line.removeprefix(start).strip().decode()
    return ""
