"""Open-loop clients for benches of nodes: requests are sent at given times, independent of answers.

One process with one event loop and raw sockets, parsing only an answer's length, as in service_load.py. A
client opens another connection if all of its connections wait for answers. Clients share cores with the
servers, and have priority, so that their own delays do not count as response times.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from service_load import answer_length, post

_PRIORITY = -10
_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """A request sent `at_s` seconds after the start, with a deadline of `deadline_s`."""

    at_s: float
    deadline_s: float
    body: bytes


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """The status of an answer, and its response time."""

    asked: TimedRequest
    status: int
    seconds: float

    @property
    def is_in_time(self) -> bool:
        """Whether it was answered by its deadline."""
        return self.status == 200 and self.seconds <= self.asked.deadline_s


@dataclass(slots=True)
class OpenLoad:
    """The results of the requests; `most_late_s` is the largest delay in sending a request."""

    ended: list[TimedAnswer] = field(default_factory=list)
    took_s: float = 0.0
    most_late_s: float = 0.0


def open_load(url: str, offered: Sequence[TimedRequest], model: str) -> OpenLoad:
    """Send each request when it is due; returns when all are answered. Needs root, for the priority."""
    with _first():
        return asyncio.run(_open_load(url, offered, model))


@contextmanager
def _first() -> Iterator[None]:
    """Give this thread priority on its core."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


async def _open_load(url: str, offered: Sequence[TimedRequest], model: str) -> OpenLoad:
    at, loop, found = urlsplit(url), asyncio.get_running_loop(), OpenLoad()
    free: list[_Connection] = []
    requests = [post(at.netloc, model, one.body) for one in offered]

    async def ask(one: TimedRequest, request: bytes) -> None:
        found.most_late_s = max(found.most_late_s, time.perf_counter() - start_s - one.at_s)
        sent_s = time.perf_counter()
        if free:
            connection = free.pop()
        else:
            make = partial(_Connection, free.append)
            _, connection = await loop.create_connection(make, at.hostname or "", at.port or 80)
        status = await connection.ask(request)
        found.ended.append(TimedAnswer(one, status, time.perf_counter() - sent_s))

    start_s = time.perf_counter()
    tasks = []
    for one, request in zip(offered, requests, strict=True):
        await asyncio.sleep(max(0.0, start_s + one.at_s - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(one, request)))
    await asyncio.gather(*tasks)
    found.took_s = time.perf_counter() - start_s
    for connection in free:
        connection.close()
    return found


class _Connection(asyncio.Protocol):
    """One request after the other; `done` is called when the connection is free again."""

    def __init__(self, done: Callable[["_Connection"], None]) -> None:
        self._done, self._came = done, b""
        self._answer: asyncio.Future[int] | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def ask(self, request: bytes) -> int:
        """The status of the answer; 0 if the connection was lost."""
        self._came, self._answer = b"", asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._came += data
        head, end, body = self._came.partition(_END)
        if end and len(body) >= answer_length(head):
            assert self._answer is not None
            self._answer.set_result(int(head[9:12]))
            self._done(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(0)
