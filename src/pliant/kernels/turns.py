"""A lock for what threads use in turns, which a forked child finds free. Knows nothing of what it guards."""

import os
import threading
from typing import final


@final
class Turns:
    """`with turns.lock:` for one turn.

    A child of fork has one thread, and may have been forked while another held the lock in the parent:
    it gets a new one. What a turn that never ended there left behind must not matter to the next.
    """

    def __init__(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()

    @property
    def lock(self) -> threading.Lock:
        """This process's lock, itself: `with` on it is safe from interrupts, as a method of ours is not."""
        if self._process != os.getpid():
            self._lock, self._process = threading.Lock(), os.getpid()
        return self._lock
