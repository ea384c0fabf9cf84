"""Memory pressure: reported by the kernel, or honestly not watched."""

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pliant.run.pressure import PressureFlag, PressureWatch
from pliant.system import open_memory_pressure
from pliant.system.linux.pressure import MEMORY_PSI

HANGS_AFTER_S = 30


def test_a_kernel_without_psi_is_not_watched(tmp_path: Path) -> None:
    """No file, no claim: the session then keeps its buffer."""
    with PressureWatch(lambda: None, partial(open_memory_pressure, tmp_path / "memory")) as watch:
        assert not watch.is_watching


@pytest.mark.skipif(not os.access(MEMORY_PSI, os.W_OK), reason="this kernel offers no writable PSI file")
def test_watching_ends_when_closed() -> None:
    """A watch that outlives its session would call into freed memory."""
    before = threading.enumerate()
    watch = PressureWatch(lambda: None)
    started = set(threading.enumerate()) - set(before)
    assert len(started) == watch.is_watching
    watch.close()
    watch.close()
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_watching_ends_though_a_forked_child_lives(tmp_path: Path) -> None:
    """A child holds copies of all pipes: their other end is not seen to close before it exits."""
    os.mkfifo(tmp_path / "memory")  # takes a trigger and never reports anything
    before = threading.enumerate()
    watch = PressureWatch(lambda: None, partial(open_memory_pressure, tmp_path / "memory"))
    (thread,) = set(threading.enumerate()) - set(before)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        watch.close()  # of the copies alone: the parent's thread goes on
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    closing = threading.Thread(target=watch.close)
    try:
        assert thread.is_alive()
        closing.start()
        closing.join(HANGS_AFTER_S)
        assert not closing.is_alive()
        assert not thread.is_alive()
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        os.close(write)
        os.close(read)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_pressure_is_told_once_and_a_forked_child_is_told_of_its_own(tmp_path: Path) -> None:
    """A session gives memory back once each time; a child's copy of the watch has no thread to report."""
    reports: list[Callable[[], None]] = []

    def watch(report: Callable[[], None]) -> PressureWatch:
        reports.append(report)
        return PressureWatch(report, partial(open_memory_pressure, tmp_path / "memory"))

    flag = PressureFlag(watch)
    assert not flag.take()
    reports[0]()
    assert flag.take()
    assert not flag.take()
    reports[0]()
    child = os.fork()
    if child == 0:
        is_alone = not flag.take() and len(reports) == 2
        reports[-1]()
        os._exit(0 if is_alone and flag.take() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert flag.take()
    flag.close()
    flag.close()


def test_a_flag_that_is_lost_ends_its_watch(tmp_path: Path) -> None:
    """It holds three files and a thread, and nobody closes the session of a notebook's last cell."""
    os.mkfifo(tmp_path / "memory")  # takes a trigger and never reports anything
    before = threading.enumerate(), len(os.listdir("/proc/self/fd"))
    flag = PressureFlag(
        lambda on_pressure: PressureWatch(on_pressure, partial(open_memory_pressure, tmp_path / "memory"))
    )
    assert len(threading.enumerate()) == len(before[0]) + 1
    del flag
    assert (threading.enumerate(), len(os.listdir("/proc/self/fd"))) == before
