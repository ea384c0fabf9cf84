"""Keep cores from halting, so that short work after a sleep takes what it takes among other work.

A virtual core that halts is given to others, which empty its caches. What an emulated device computes after
each of its rests would take up to three times as long for that, and `dilation` times as much of it.
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
    """Each core that this thread may use spins while the block runs, below the priority of all other work.

    The spinning processes end by themselves where this one dies.
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
