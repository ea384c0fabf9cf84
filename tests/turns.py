"""Which tests may run beside each other: one marked `alone` has the machine, the others share it.

Only the processes of one checkout meet here; knows nothing of what a test does.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DOOR, ROOM = Path(__file__), Path(__file__).with_name("conftest.py")  # only locked: nothing is left behind


@contextmanager
def turn(is_alone: bool, at_door: Path = DOOR, in_room: Path = ROOM) -> Iterator[None]:
    """Holds this process until no running test forbids the next one; both files must exist.

    Whoever waits to be alone holds the door, so that tests which share cannot keep it out for ever.
    """
    with at_door.open() as door, in_room.open() as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        if not is_alone:
            fcntl.flock(door, fcntl.LOCK_UN)
        yield  # closing the files gives both back
