"""The event loop of a session: calls that are interrupted leave it usable."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from pliant.errors import InputError
from pliant.serve.node.loop_thread import LoopThread


async def nothing() -> int:
    return 7


async def close() -> None:
    return None


def test_a_call_that_is_interrupted_as_it_begins_does_not_block_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C at that moment: the call counted as under way for ever, and `close` waited for its end."""
    loop = LoopThread("test-loop")

    def interrupted(work: Coroutine[Any, Any, Any], on: asyncio.AbstractEventLoop) -> None:
        work.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run(nothing())
    assert loop.run(nothing()) == 7
    closing = threading.Thread(target=loop.close, args=(close,), daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    with pytest.raises(InputError, match="is closed"):
        loop.run(nothing())
