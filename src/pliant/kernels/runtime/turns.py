"""A lock that a forked child finds free."""

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
        self._locks = {os.getpid(): threading.Lock()}

    @property
    def lock(self) -> threading.Lock:
        """This process's lock, itself: `with` on it is safe from interrupts, as a method of ours is not."""
        process = os.getpid()
        # setdefault is one step: of two threads that come first in a child, both get the same lock.
        return self._locks.get(process) or self._locks.setdefault(process, threading.Lock())
