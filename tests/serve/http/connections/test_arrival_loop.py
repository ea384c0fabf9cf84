"""Deadlines count from when a request came, however late a busy loop reads it."""

import asyncio
import socket
from contextlib import closing
from typing import Any

import httpx

from pliant.route.router import Router
from pliant.route.router_settings import RouterSettings
from pliant.serve.access.access import AccessControl
from pliant.serve.http.body_reader import ARRIVED_S
from pliant.serve.http.connections.arrival_loop import ArrivalLoop, arrival_s
from pliant.serve.http.http_app import make_app
from pliant.serve.http.limits import Limits
from pliant.serve.node.serving_node import ServingNode
from tests.serve.models import Upper
from tests.serve.nodes import asking


def test_bytes_that_a_busy_loop_finds_at_once_came_since_its_last_look() -> None:
    """It reads them in its next turn, behind everything else that it has to do in this one."""

    async def read() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        found: list[float] = []
        with here, there:
            loop.add_reader(here, lambda: found.append(arrival_s(loop)))
            await asyncio.sleep(0)
            there.send(b"x")
            sent_s = loop.time()
            while not found:
                await asyncio.sleep(0)
            loop.remove_reader(here)
            return sent_s, found[0]

    with asyncio.Runner(loop_factory=ArrivalLoop) as runner:
        sent_s, came_s = runner.run(read())
        assert came_s <= sent_s


def test_a_loop_that_does_not_know_says_now() -> None:
    async def ask() -> bool:
        loop = asyncio.get_running_loop()
        return loop.time() <= arrival_s(loop) <= loop.time()

    assert asyncio.run(ask())


def test_a_request_that_was_read_after_its_deadline_is_refused() -> None:
    """It was answered late: the deadline began when the loop came to read it."""

    async def statuses() -> list[int]:
        with closing(ServingNode(Upper(), Router("here", RouterSettings(1000)), 8, Limits())) as node:
            app, waits_s = make_app(node, AccessControl(), "0"), [0.0, 200.0]

            async def waiting(scope: Any, *rest: Any) -> None:
                await app(
                    {**scope, ARRIVED_S: asyncio.get_running_loop().time() - waits_s[len(found)]}, *rest
                )

            found = list[int]()
            transport = httpx.ASGITransport(waiting)
            async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
                while len(found) < len(waits_s):
                    body = asking("text", parameters={"deadline_s": 100.0})
                    found.append((await client.post("/v2/models/upper/infer", content=body)).status_code)
            return found

    assert asyncio.run(statuses()) == [200, 503]
