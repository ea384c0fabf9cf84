"""What Linux counts of threads that wait, and tells of pressure."""

import os
import subprocess
import sys
from pathlib import Path

from pliant import system
from pliant.system import open_memory_pressure, wait_for_pressure


def test_waiting_for_a_core_is_counted() -> None:
    """Two that want the one core that they may use: each waits for about as long as the other runs."""
    spin = (
        "import os, time; from pliant import system; "
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "other = os.fork(); end = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass\n"
        "other and (os.wait(), print(max(system.waited_s().values(), default=0.0)))"
    )
    told = subprocess.run([sys.executable, "-c", spin], capture_output=True, text=True, check=True)
    if Path("/proc/self/schedstat").exists():
        assert float(told.stdout) > 0.05
    else:
        assert float(told.stdout) == 0.0


def test_pressure_is_a_share_or_unknown() -> None:
    """Machines without pressure stall information have none."""
    found = system.cpu_pressure()
    assert found is None or 0.0 <= found <= 1.0


def test_a_refused_trigger_is_not_watched() -> None:
    """The kernel refuses malformed triggers; that must not raise in the middle of opening a model."""
    assert open_memory_pressure(trigger=b"nonsense") is None


def test_the_trigger_is_one_that_unprivileged_processes_may_set(tmp_path: Path) -> None:
    """Linux takes windows of 2 s, 4 s and so on from them, up to 10 s, and a threshold within the window."""
    psi = tmp_path / "memory"
    psi.touch()
    fd = open_memory_pressure(psi)
    assert fd is not None
    os.close(fd)
    kind, threshold_us, window_us = psi.read_bytes().rstrip(b"\0").split()
    assert kind == b"some"
    assert int(window_us) in range(2_000_000, 10_000_001, 2_000_000)
    assert 0 < int(threshold_us) <= int(window_us)


def test_waiting_for_pressure_ends_when_it_is_woken() -> None:
    """A watch must end when its session closes, whether or not memory was ever short."""
    silent, wake = os.pipe(), os.pipe()
    try:
        os.write(wake[1], b"x")
        assert not wait_for_pressure(silent[0], wake[0])
    finally:
        for fd in (*silent, *wake):
            os.close(fd)
