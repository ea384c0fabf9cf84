"""A loaded model: its node, its HTTP paths, and the requests that use it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, final

from starlette.types import ASGIApp

from pliant.serve.node.serving_node import ServingNode
from pliant.serve.repository.model_entry import ModelEntry, ModelKey

Withdraw = Callable[[], Coroutine[Any, Any, None]]
"""Ends the announcement of a node, so that other nodes stop sending requests."""


@final
@dataclass(frozen=True, slots=True)
class ConnectedModel:
    """The node of a model and its HTTP application; `withdraw` is called before it is closed."""

    node: ServingNode
    app: ASGIApp
    withdraw: Withdraw


@final
class LiveModel:
    """A model that answers by `app` until it is closed. Call on one event loop.

    `stack` closes its endpoints. `stamp` is the state of its files when it was opened. Evicting it frees
    `floor_bytes` of the shared memory budget.
    """

    def __init__(
        self,
        entry: ModelEntry,
        connected: ConnectedModel,
        stack: AsyncExitStack,
        stamp: Hashable,
        floor_bytes: int,
        now_s: float,
    ) -> None:
        self.entry, self.node, self.app = entry, connected.node, connected.app
        self.withdraw = connected.withdraw
        self.floor_bytes, self.last_used_s = floor_bytes, now_s
        self._stamp, self._stack, self._n_held = stamp, stack, 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def key(self) -> ModelKey:
        return self.entry.key

    def is_of(self, entry: ModelEntry) -> bool:
        """Whether the model is the one that `entry` would open now, with the same endpoints.

        Other upstreams count as the same: they can be changed while it is loaded. Reads file states.
        """
        return _kept(self.entry) == _kept(entry) and self._stamp == entry.stamp()

    def hold(self, now_s: float) -> None:
        """A request begins: the model is not closed before `release`."""
        self._n_held += 1
        self.last_used_s = now_s
        self._is_idle.clear()

    def release(self, now_s: float) -> None:
        """A request ends."""
        self._n_held -= 1
        self.last_used_s = now_s
        if self._n_held == 0:
            self._is_idle.set()

    async def close(self) -> None:
        """Close the model after all requests that use it."""
        await self.withdraw()
        await self._is_idle.wait()
        await self._stack.aclose()


@final
class ModelLease:
    """The context of a request that holds its model, which `hold` returns."""

    __slots__ = ("_clock", "_hold", "_live")

    def __init__(self, hold: Callable[[], Awaitable[LiveModel]], clock: Callable[[], float]) -> None:
        self._hold, self._clock = hold, clock

    async def __aenter__(self) -> LiveModel:
        self._live = await self._hold()
        return self._live

    async def __aexit__(self, *error: object) -> None:
        self._live.release(self._clock())


def _kept(entry: ModelEntry) -> Hashable:
    """What a loaded model cannot change."""
    return entry.settings, replace(entry.endpoints, upstreams=None), entry.source
