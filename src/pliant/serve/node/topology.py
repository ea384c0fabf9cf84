"""Announce a node, and find its upstreams, by multicast DNS while it runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress

from pliant.serve.node.serving_node import Node
from pliant.serve.upstream.discover import Announcer, Discovery, announcing, discovering

MOST_FOUND = 64
"""Upstreams that announcements may bring: each is pinged, and looked at for every request."""
LOOPBACK = "127.0.0.1"


async def announce(node: Node, url: str, tokens: tuple[str, ...], stack: AsyncExitStack) -> None:
    """Until `stack` is closed, others find `node` at `url`. Raises NodeError and MulticastError.

    `tokens` are its peers'.
    """
    await stack.enter_async_context(_off_the_loop(announcing(_announcer(node, url, tokens))))


async def discover(
    node: Node, url: str, tokens: tuple[str, ...], is_loopback: bool, stack: AsyncExitStack
) -> None:
    """Until `stack` is closed, others that announce themselves become upstreams of `node`.

    Where `is_loopback`, those of this machine. Raises MulticastError.
    """
    assert node.upstreams is not None
    loop, found = asyncio.get_running_loop(), node.upstreams.found
    me = _announcer(node, url, tokens)
    discovery = Discovery(me, found.join, found.leave, is_loopback, MOST_FOUND)

    def on_loop(act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(act)

    hosts = (LOOPBACK,) if is_loopback else ()
    await stack.enter_async_context(_off_the_loop(discovering(discovery, on_loop, hosts)))


def _announcer(node: Node, url: str, tokens: tuple[str, ...]) -> Announcer:
    return Announcer(url, node.name, node.served.name, node.identity, tokens, node.run)


@asynccontextmanager
async def _off_the_loop(context: AbstractContextManager[None]) -> AsyncIterator[None]:
    """`context`, entered and left on threads: that takes a while, and zeroconf would use this event loop."""
    await asyncio.to_thread(context.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)
