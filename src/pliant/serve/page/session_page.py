"""The page of a session outside a node: a node at a loopback address runs beside it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pliant.errors import NodeError
from pliant.run.session.session import Session
from pliant.serve.node.start_node import NodeOptions, serve
from pliant.serve.page.answer_feed import AnswerFeed
from pliant.serve.repository.front_node import FrontNode

_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class SessionPage:
    """The page at `url`; the session's answers are recorded in `feed`."""

    url: str
    feed: AnswerFeed


@contextmanager
def session_page(session: Session[Any], options: NodeOptions) -> Iterator[SessionPage]:
    """Serve a page of `session` on a separate thread until the context ends, which closes the session.

    Its node also answers HTTP requests. Raises NodeError if it cannot be served.
    """
    started = threading.Event()
    found: list[Any] = []
    failed: list[BaseException] = []

    def on_start(url: str, front: FrontNode, stop: Any) -> None:
        assert front.node is not None
        found.extend((SessionPage(url, front.node.feed), stop, asyncio.get_running_loop()))
        started.set()

    def work() -> None:
        try:
            asyncio.run(serve(options, session, on_start))
        except (NodeError, OSError) as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work, name="pliant-page", daemon=True)
    thread.start()
    started.wait(_PATIENCE_S)
    if failed or not found:
        why = failed[0] if failed else f"it did not start within {_PATIENCE_S:g} s"
        raise NodeError(f"the page is not served: {why}. Leave --page out.")
    page, stop, loop = found
    try:
        yield page
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop)
        thread.join(_PATIENCE_S)
