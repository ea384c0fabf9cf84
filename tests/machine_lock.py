"""Which tests may run beside each other: one marked `alone` has the machine, the others share it.

Only the processes of one checkout meet here; knows nothing of what a test does.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Files that exist in any case: they are only locked, so nothing is left behind.
QUEUE_LOCK, MACHINE_LOCK = Path(__file__), Path(__file__).with_name("conftest.py")


@contextmanager
def hold_machine(
    is_alone: bool, queue_lock: Path = QUEUE_LOCK, machine_lock: Path = MACHINE_LOCK
) -> Iterator[None]:
    """Holds this process until no running test forbids the next one; both files must exist.

    A test that waits for the whole machine keeps the queue locked: tests that share cannot starve it.
    """
    with queue_lock.open() as queue, machine_lock.open() as machine:
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        if not is_alone:
            fcntl.flock(queue, fcntl.LOCK_UN)
        yield  # closing the files gives both back
