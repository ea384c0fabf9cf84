"""Bodies that come slowly, on an event loop whose time passes at once."""

import asyncio
import selectors
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.serve.access.access import AccessControl
from pliant.serve.http.http_app import make_app
from pliant.serve.http.limits import Limits
from pliant.serve.node.serving_node import ServingNode
from tests.serve.models import Upper
from tests.serve.nodes import asking

LIMITS = Limits(body_Bps=1000, body_s=30.0, stall_s=5.0)
INFER = "/v2/models/upper/infer"


class _Clock(selectors.DefaultSelector):
    """Waits for no timer: time is set forward to it. While threads work time stands still."""

    now_s = 0.0
    n_working = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout and self.n_working:
            timeout = None
        elif timeout is not None:
            self.now_s += max(0.0, timeout)
            timeout = 0.0
        return super().select(timeout)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        super().__init__(clock)

    def time(self) -> float:
        return self._clock.now_s


def in_no_time(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end."""
    clock, submit = _Clock(), ThreadPoolExecutor.submit
    with asyncio.Runner(loop_factory=lambda: _Loop(clock)) as runner, pytest.MonkeyPatch.context() as patch:
        loop = runner.get_loop()

        def ended() -> None:
            clock.n_working -= 1

        def counted(pool: ThreadPoolExecutor, *work: Any, **named: Any) -> "Future[Any]":
            clock.n_working += 1
            future = submit(pool, *work, **named)
            future.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(ended))
            return future

        patch.setattr(ThreadPoolExecutor, "submit", counted)
        runner.run(work)


@dataclass(frozen=True, slots=True)
class Slow:
    """A whole request, spaces behind it included, in parts of `part_bytes` every `gap_s` seconds."""

    n_bytes: int
    part_bytes: int
    gap_s: float

    async def parts(self) -> AsyncIterator[bytes]:
        content = asking("slow").ljust(self.n_bytes)
        for at in range(0, self.n_bytes, self.part_bytes):
            yield content[at : at + self.part_bytes]
            await asyncio.sleep(self.gap_s)


async def answered(slow: Slow) -> tuple[httpx.Response, float, list[int]]:
    """The answer, when it came, and the statuses of requests that another client made meanwhile."""
    served, admission = Upper(), 8
    with closing(ServingNode(served, Router("here", RouterSettings(1000)), admission, LIMITS)) as node:
        transport = httpx.ASGITransport(make_app(node, AccessControl(), "0"))
        async with httpx.AsyncClient(transport=transport, base_url="http://node", timeout=None) as client:
            task = asyncio.create_task(client.post(INFER, content=slow.parts()))
            statuses = []
            while not task.done():
                statuses.append((await client.post(INFER, content=asking("quick"))).status_code)
                await asyncio.wait([task], timeout=10.0)
            return task.result(), asyncio.get_running_loop().time(), statuses


@pytest.mark.parametrize(("part_bytes", "gap_s"), [(1100, 1.0), (5000, 4.5), (110, 0.1)])
def test_a_body_that_comes_slowly_but_steadily_is_answered(part_bytes: int, gap_s: float) -> None:
    """A client on a slow link is no attacker: above `body_Bps` it may take many times `body_s`."""

    async def work() -> None:
        response, seconds, _ = await answered(Slow(200 * 1100, part_bytes, gap_s))
        assert response.status_code == 200
        assert response.json()["outputs"][0]["data"] == ["SLOW"]
        assert seconds > 6 * LIMITS.body_s

    in_no_time(work())


@pytest.mark.parametrize(("part_bytes", "gap_s"), [(750, 1.0), (3000, 4.0)])
def test_a_body_below_the_least_rate_is_ended_while_others_are_answered(
    part_bytes: int, gap_s: float
) -> None:
    """A byte now and then would hold a place for ever: at 3/4 of `body_Bps`, it lasts 4 times `body_s`."""

    async def work() -> None:
        response, seconds, statuses = await answered(Slow(1 << 20, part_bytes, gap_s))
        assert response.status_code == 408
        assert response.headers["connection"] == "close"
        assert f"{LIMITS.body_Bps} bytes/s" in response.json()["error"]
        assert seconds == pytest.approx(4 * LIMITS.body_s, abs=gap_s)
        assert set(statuses) == {200}
        assert len(statuses) >= seconds // 10

    in_no_time(work())


def test_a_body_that_stands_still_is_ended_however_fast_it_came_before() -> None:
    """What it sent at first is no credit for holding its bytes and its place."""

    async def work() -> None:
        response, seconds, statuses = await answered(Slow(1 << 20, 1 << 19, LIMITS.stall_s + 1.0))
        assert response.status_code == 408
        assert seconds == pytest.approx(LIMITS.stall_s, abs=0.1)
        assert statuses == [200]

    in_no_time(work())
