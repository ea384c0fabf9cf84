"""Memory pressure: reported by the kernel, or honestly not watched."""

import os
from pathlib import Path

import pytest

from pliant.run.pressure import PSI, PressureWatch


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
    watch = PressureWatch(lambda: None)
    watch.close()
    watch.close()
    assert not watch._thread.is_alive()
