"""ForkSafeLock: one at a time in a process, free in a forked child whoever holds it here."""

import os
import threading

import pytest

from pliant.kernels.runtime.fork_safe_lock import ForkSafeLock


def test_a_turn_waits_for_the_one_before() -> None:
    """The lock is the same whenever it is asked for."""
    mutex = ForkSafeLock()
    with mutex.lock:
        assert mutex.lock.locked()
        assert not mutex.lock.acquire(blocking=False)
    assert not mutex.lock.locked()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_need_not_wait_for_its_parent() -> None:
    """The thread that holds it does not exist there: waiting would be for ever."""
    mutex = ForkSafeLock()
    read, write = os.pipe()
    with mutex.lock:
        child = os.fork()
        if child == 0:
            is_free = mutex.lock.acquire(blocking=False)
            os.write(write, bytes([is_free, mutex.lock.locked()]))
            os._exit(0)
        os.waitpid(child, 0)
        assert mutex.lock.locked()
    os.close(write)
    assert os.read(read, 2) == b"\x01\x01"
    os.close(read)


def test_threads_share_one_lock() -> None:
    """Whichever asks first."""
    mutex = ForkSafeLock()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(mutex.lock)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(lock) for lock in found}) == 1
