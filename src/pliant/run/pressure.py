"""Callbacks on memory pressure."""

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import final

from pliant.system import open_memory_pressure, wait_for_pressure


@final
class PressureWatch:
    """Calls `on_pressure` on a thread of its own each time memory is short; a context manager.

    `is_watching` is False where the system reports no pressure (or none to this user); `on_pressure` is then
    never called. A forked child has to open a watch of its own.
    """

    def __init__(
        self, on_pressure: Callable[[], None], descriptor: Callable[[], int | None] = open_memory_pressure
    ) -> None:
        self._on_pressure = on_pressure
        self._fd = descriptor()
        self._wake, self._stop = os.pipe()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="pliant-pressure", daemon=True)
        if self.is_watching:
            self._thread.start()

    @property
    def is_watching(self) -> bool:
        return self._fd is not None

    def __enter__(self) -> "PressureWatch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching; safe to call twice."""
        if self._stop < 0:
            return
        if self._fd is not None:
            if self._process == os.getpid():
                # Closing the pipe would not wake the thread while a forked child holds a copy of it.
                os.write(self._stop, b"\0")
                self._thread.join()
            os.close(self._fd)
        os.close(self._stop)
        os.close(self._wake)
        self._stop = -1

    def _serve(self) -> None:
        assert self._fd is not None
        while wait_for_pressure(self._fd, self._wake):
            self._on_pressure()


@final
class PressureFlag:
    """Records whether memory was short since the last `take`; works in a forked child too."""

    def __init__(self, watch: Callable[[Callable[[], None]], PressureWatch] = PressureWatch) -> None:
        self._open_watch = watch
        self._start()

    def take(self) -> bool:
        """Return the flag and reset it."""
        if self._process != os.getpid():
            self.close()
            self._start()
        if not self._was_short.is_set():
            return False
        self._was_short.clear()
        return True

    def close(self) -> None:
        """Stop watching; safe to call twice."""
        self._watch.close()

    def _start(self) -> None:
        self._was_short, self._process = threading.Event(), os.getpid()
        self._watch = self._open_watch(self._was_short.set)
        weakref.finalize(self, self._watch.close).atexit = False  # garbage collection ends the watch
