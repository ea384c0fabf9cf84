"""Turns of tests: those that need the machine have it, and get it."""

import threading
from pathlib import Path

from tests.machine_lock import hold_machine


def test_who_is_alone_shares_with_nobody_and_is_not_kept_out(tmp_path: Path) -> None:
    """Two workers that never rest would otherwise starve the third."""
    door, room = tmp_path / "door", tmp_path / "room"
    door.touch()
    room.touch()
    inside = most = 0
    lock, found = threading.Lock(), threading.Event()

    def shares() -> None:
        nonlocal inside, most
        while not found.is_set():
            with hold_machine(False, door, room):
                with lock:
                    inside += 1
                    most = max(most, inside)
                found.wait(0.001)
                with lock:
                    inside -= 1

    workers = [threading.Thread(target=shares) for _ in range(2)]
    for worker in workers:
        worker.start()
    beside = []
    try:
        while most < 2:
            found.wait(0.001)
        for _ in range(5):
            with hold_machine(True, door, room):
                found.wait(0.005)
                beside.append(inside)
    finally:
        found.set()
        for worker in workers:
            worker.join()
    assert beside == [0] * 5
