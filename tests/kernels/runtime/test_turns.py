"""Turns: one at a time in a process, free in a forked child whoever holds it here."""

import os
import threading

import pytest

from pliant.kernels.runtime.turns import Turns


def test_a_turn_waits_for_the_one_before() -> None:
    """The lock is the same whenever it is asked for."""
    turns = Turns()
    with turns.lock:
        assert turns.lock.locked()
        assert not turns.lock.acquire(blocking=False)
    assert not turns.lock.locked()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_need_not_wait_for_its_parent() -> None:
    """The thread that holds it does not exist there: waiting would be for ever."""
    turns = Turns()
    read, write = os.pipe()
    with turns.lock:
        child = os.fork()
        if child == 0:
            is_free = turns.lock.acquire(blocking=False)
            os.write(write, bytes([is_free, turns.lock.locked()]))
            os._exit(0)
        os.waitpid(child, 0)
        assert turns.lock.locked()
    os.close(write)
    assert os.read(read, 2) == b"\x01\x01"
    os.close(read)


def test_threads_share_one_lock() -> None:
    """Whichever asks first."""
    turns = Turns()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(turns.lock)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(lock) for lock in found}) == 1
