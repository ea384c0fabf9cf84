"""Memory pressure: reported by the kernel, or honestly not watched."""

import os
import threading
from pathlib import Path

import pytest

from pliant.run.pressure import PSI, PressureWatch

HANGS_AFTER_S = 30


def test_a_kernel_without_psi_is_not_watched(tmp_path: Path) -> None:
    """No file, no claim: the session then keeps its buffer."""
    with PressureWatch(lambda: None, psi=tmp_path / "memory") as watch:
        assert not watch.is_watching


def test_a_refused_trigger_is_not_watched() -> None:
    """The kernel refuses malformed triggers; that must not raise in the middle of opening a model."""
    with PressureWatch(lambda: None, trigger=b"nonsense") as watch:
        assert not watch.is_watching


@pytest.mark.skipif(not os.access(PSI, os.W_OK), reason="this kernel offers no writable PSI file")
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
    watch = PressureWatch(lambda: None, psi=tmp_path / "memory")
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
