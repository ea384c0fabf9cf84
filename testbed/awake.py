"""Keep cores from halting, so that short work after a sleep is not slowed down.

The host gives a halted virtual core to other guests, which evict its caches. The computation of an emulated
device after each of its rests would take up to three times as long, multiplied by `dilation`.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[2]):
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def awake() -> Iterator[None]:
    """Spin on each core that this thread may use while the block runs, at the lowest priority.

    The spinning processes end if this process dies.
    """
    spinners = [
        subprocess.Popen([sys.executable, "-c", _SPIN, str(cpu), str(os.getpid())])
        for cpu in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
        for spinner in spinners:
            spinner.wait()
