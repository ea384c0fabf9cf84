"""An event loop on a thread of its own, which other threads call."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, final

from pliant.errors import InputError

T = TypeVar("T")


@final
class LoopThread:
    """The loop runs from the start until `close`; thread-safe. It does not run in a forked child."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._is_closed = False
        self._lock = threading.Lock()  # its `with` is not interrupted half-way, that of a Condition may be
        self._calls, self._under_way = threading.Condition(self._lock), set[object]()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the event loop and return its result; an interrupted caller cancels it.

        Raises InputError after `close`, and in a forked child.
        """
        call, future = object(), None
        try:
            with self._lock:
                if self._is_closed or self._process != os.getpid():
                    work.close()
                    why = "is closed" if self._is_closed else "belongs to the process that opened it"
                    raise InputError(f"this session {why}; open the model again.")
                self._under_way.add(call)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            return future.result()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        except BaseException:
            if future is not None:
                future.cancel()
            raise
        finally:
            with self._lock:
                self._under_way.discard(call)
                self._calls.notify_all()

    def close(self, at_end: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Wait for the calls under way, run `at_end` on the loop, and stop it.

        Returns False, without effect, if it was closed before and in a forked child.
        """
        with self._lock:
            if self._is_closed or self._process != os.getpid():
                return False
            self._is_closed = True
            self._calls.wait_for(lambda: not self._under_way)
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(at_end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        return True

    def _serve(self) -> None:
        """Run the event loop until it is stopped; abandoned answers end with it."""
        with self._runner:
            self._loop.run_forever()
