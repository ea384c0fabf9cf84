"""A lock that a forked child finds free."""

import os
import threading
from typing import final
from weakref import WeakSet

_EVERY: "WeakSet[Turns]" = WeakSet()  # hooks of fork belong to the process, and are never taken back


@final
class Turns:
    """`with turns.lock:` for one turn.

    A child of fork has one thread, and may have been forked while another held the lock in the parent:
    it gets a new one. What a turn that never ended there left behind must not matter to the next.
    `with` on a lock itself is safe from interrupts, as a method of ours is not. `process` is the number of
    this process, for whoever keeps something of it: to ask the system takes longer.
    """

    def __init__(self) -> None:
        self.lock, self.process = threading.Lock(), os.getpid()
        _EVERY.add(self)


def _renew() -> None:
    for turns in list(_EVERY):
        turns.lock, turns.process = threading.Lock(), os.getpid()


os.register_at_fork(after_in_child=_renew)
