"""A lock that is released in a forked child."""

import os
import threading
from typing import final
from weakref import WeakSet

_EVERY: "WeakSet[ForkSafeLock]" = WeakSet()  # fork hooks are per process and cannot be removed


@final
class ForkSafeLock:
    """Serialises work: `with mutex.lock:`.

    A forked child has one thread, and may have been forked while another thread held the lock in the parent,
    so it gets a new lock. Unfinished work of the parent must not affect later work. `with` on a lock itself
    is safe from interrupts, unlike a Python method. `process` is the id of this process, for state that is
    per process; it is faster than asking the system.
    """

    def __init__(self) -> None:
        self.lock, self.process = threading.Lock(), os.getpid()
        _EVERY.add(self)


def _renew() -> None:
    for mutex in list(_EVERY):
        mutex.lock, mutex.process = threading.Lock(), os.getpid()


os.register_at_fork(after_in_child=_renew)
