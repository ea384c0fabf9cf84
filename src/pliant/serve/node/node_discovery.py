"""Announce a node and discover its upstreams by multicast DNS while it runs."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress

from pliant.errors import MulticastError, NodeError
from pliant.serve.access.credentials import Credentials
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.upstream.mdns_discovery import Announcer, Discovery, announcing, discovering

_LOG = logging.getLogger("pliant.serve")
MOST_FOUND = 64
"""Maximum number of discovered upstreams, since each is pinged and evaluated for every request."""
LOOPBACK = "127.0.0.1"


async def announce(node: ServingNode, url: str, credentials: Credentials, stack: AsyncExitStack) -> None:
    """Announce `node` at `url` until `stack` is closed, with a proof by the current peer tokens.

    Raises NodeError and MulticastError.
    """

    @contextmanager
    def announced() -> Iterator[None]:
        with announcing(_announcer(node, url, credentials.tokens.peers)):
            yield

    await _renew(announced, credentials, stack)


async def discover(
    node: ServingNode, url: str, credentials: Credentials, is_loopback: bool, stack: AsyncExitStack
) -> None:
    """Add announced nodes as upstreams of `node` until `stack` is closed.

    With `is_loopback`, only those of this machine. After the peer tokens change, upstreams found with the
    previous ones stay only while they answer. Raises MulticastError.
    """
    assert node.upstreams is not None
    loop, heard = asyncio.get_running_loop(), node.upstreams.discovered
    hosts = (LOOPBACK,) if is_loopback else ()

    def on_loop(act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(act)

    @contextmanager
    def browsing() -> Iterator[None]:
        me = _announcer(node, url, credentials.tokens.peers)
        discovery = Discovery(me, heard.join, heard.leave, is_loopback, MOST_FOUND)
        with discovering(discovery, on_loop, hosts):
            yield
        on_loop(discovery.end)

    await _renew(browsing, credentials, stack)


async def _renew(
    enter: Callable[[], AbstractContextManager[None]], credentials: Credentials, stack: AsyncExitStack
) -> None:
    """Keep `enter()` open until `stack` is closed; reopen it whenever the peer tokens change."""
    changed, entered, is_over = asyncio.Event(), AsyncExitStack(), False
    await entered.enter_async_context(_on_thread(enter()))
    tokens = credentials.tokens.peers

    async def follow() -> None:
        nonlocal tokens
        while await changed.wait() and not is_over:
            changed.clear()
            if tokens == credentials.tokens.peers:
                continue
            tokens = credentials.tokens.peers
            await entered.aclose()
            try:
                await entered.enter_async_context(_on_thread(enter()))
            except (NodeError, MulticastError) as error:
                _LOG.error("the announcement or discovery of this node has stopped: %s", error)

    async def end() -> None:
        nonlocal is_over
        is_over = True  # calls in progress are not cancelled: their threads would continue
        changed.set()
        await following
        await entered.aclose()

    following = asyncio.get_running_loop().create_task(follow())
    credentials.on_change.append(changed.set)
    stack.push_async_callback(end)
    stack.callback(credentials.on_change.remove, changed.set)


def _announcer(node: ServingNode, url: str, tokens: tuple[str, ...]) -> Announcer:
    return Announcer(url, node.name, node.served.name, node.identity, tokens, node.run)


@asynccontextmanager
async def _on_thread(context: AbstractContextManager[None]) -> AsyncIterator[None]:
    """Enter and exit `context` on threads, since it is slow and zeroconf would use this event loop."""
    await asyncio.to_thread(context.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)
