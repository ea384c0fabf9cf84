"""Reload actions of a node on SIGHUP."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import final

_LOG = logging.getLogger("pliant.serve")
Reload = Callable[[], Awaitable[None]]


@final
class Reloads:
    """Runs the added actions in order after a signal; signals during a run cause one more. Call on one event
    loop.
    """

    def __init__(self) -> None:
        self._actions: list[Reload] = []
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_due = False

    def add(self, action: Reload) -> None:
        """Add `action`, which must not raise: it logs errors and keeps the previous state."""
        self._actions.append(action)

    async def run(self) -> None:
        """Run all actions, as on SIGHUP."""
        async with self._turn:
            self._is_due = False
            for action in self._actions:
                await action()

    @contextmanager
    def on_hangup(self) -> Iterator[None]:
        """Run the actions on SIGHUP until the context ends; without effect outside the main thread."""
        loop = asyncio.get_running_loop()
        is_main = False
        with suppress(ValueError, RuntimeError):
            loop.add_signal_handler(signal.SIGHUP, self._start)
            is_main = True
        try:
            yield
        finally:
            if is_main:
                loop.remove_signal_handler(signal.SIGHUP)
            for task in self._tasks:
                task.cancel()

    def _start(self) -> None:
        if self._is_due:  # a run that has not begun will read the same files
            return
        self._is_due = True
        _LOG.warning("SIGHUP: the files are read again, which may take seconds")
        task = asyncio.get_running_loop().create_task(self.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
