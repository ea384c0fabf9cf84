"""The heap, resident pages, and memory for special uses."""

import mmap
import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from pliant.system import map_shared, private_memory, resident_bytes, shared_memory

PAGE = mmap.PAGESIZE


def test_pages_that_were_written_are_resident_and_others_are_not() -> None:
    """A session's memory is told by them; parts of a page count as parts."""
    memory = np.frombuffer(private_memory(8 * PAGE), np.uint8)
    at = memory.ctypes.data
    if resident_bytes(at, 8 * PAGE) == 8 * PAGE:
        pytest.skip("this system does not report what is resident")
    memory[2 * PAGE] = memory[3 * PAGE] = memory[7 * PAGE] = 1
    assert resident_bytes(at, 8 * PAGE) == 3 * PAGE
    assert resident_bytes(at, 2 * PAGE) == resident_bytes(at, 0) == 0
    assert resident_bytes(at + 2 * PAGE + 100, 2 * PAGE) == 2 * PAGE - 100
    assert resident_bytes(at + 2 * PAGE + 100, 50) == 50
    assert resident_bytes(at + PAGE + 5, PAGE + 7) == 12


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_finds_zeros_in_private_memory() -> None:
    """Parent and child must not share pages that a read in progress writes."""
    memory = private_memory(PAGE)
    memory[0] = 7
    child = os.fork()
    if child == 0:
        os._exit(memory[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert memory[0] == 7


def test_shared_memory_is_one_for_all_that_map_it() -> None:
    """It begins as zeros, and lives as long as a map of it."""
    fd = shared_memory(2 * PAGE)
    one, other = map_shared(fd, 2 * PAGE), map_shared(fd, 2 * PAGE)
    os.close(fd)
    assert one[PAGE] == 0
    one[PAGE] = 9
    assert other[PAGE] == 9


_ALLOCATE_ON_THREADS = """
import ctypes, sys, threading
from pliant import system
if "one" in sys.argv:
    system.use_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
barrier = threading.Barrier(4)
def allocate():
    barrier.wait()
    for _ in range(100):
        libc.malloc(5000)
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.malloc_stats()
"""


def test_threads_allocate_from_one_heap() -> None:
    """What one thread freed would be of no use to another; glibc counts its heaps as arenas."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("other C libraries have heaps of their own kind")
    found = []
    for word in ("several", "one"):
        command = [sys.executable, "-c", _ALLOCATE_ON_THREADS, word]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(sum(line.startswith("Arena") for line in run.stderr.splitlines()))
    assert found[0] > 1
    assert found[1] == 1
