"""Devices on paper, tiny stores, patience with upstreams, and nodes that end at once."""

import asyncio
from types import SimpleNamespace

import pytest

from tests.run.conftest import slow_profile as slow_profile
from tests.run.conftest import tiny_store as tiny_store
from tests.serve.nodes import PATIENCE_S


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may keep an upstream from answering for seconds: that is no failure of it.

    Tests of upstreams that do not answer set what they need.
    """
    monkeypatch.setattr("pliant.route.choice.request_progress.SHORTEST_S", PATIENCE_S)


@pytest.fixture
def lingering() -> None:
    """Nodes of this test end as they do for users: it asks them, or others, while they end or afterwards."""


async def _short_sleep(seconds: float) -> None:
    await asyncio.sleep(min(seconds, 0.02))


@pytest.fixture(autouse=True)
def no_lingering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that ends waits for handshakes in progress, which take no time over loopback.

    uvicorn looks whether it should end ten times a second, and as often whether its connections are closed.
    """
    if "lingering" in request.fixturenames:
        return
    monkeypatch.setattr("pliant.serve.http.connections.server.LINGER_S", 0.01)
    of_uvicorn = SimpleNamespace(**{**vars(asyncio), "sleep": _short_sleep})
    monkeypatch.setattr("uvicorn.server.asyncio", of_uvicorn)
