"""The clock rate from a chain of operations."""

from itertools import count
from pathlib import Path

import pytest

from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.profile.clock_rate import calibrated_frequency


def test_the_rate_is_one_that_a_cpu_can_have() -> None:
    """A compiler that folded the chain would give a hundred times that, a loop that dominates a third."""
    assert 0.3e9 < calibrated_frequency(Library(host_isa())) < 8e9


def test_what_a_call_costs_does_not_count(tmp_path: Path) -> None:
    """Two lengths are subtracted: of a clock whose every run takes as long, nothing remains."""
    ticks = count()
    assert calibrated_frequency(Library(host_isa()), lambda: float(next(ticks))) > 1e12


@pytest.mark.parametrize("rate_Hz", [1e9, 3e9])
def test_cycles_over_seconds(rate_Hz: float) -> None:
    """A chain of 16 cycles a turn, 25,000 turns or three times that."""
    lengths = [0.0, *[400_000 / rate_Hz + 1e-3] * 8, *[1_200_000 / rate_Hz + 1e-3] * 7]
    readings = iter([t for i, n in enumerate(lengths[1:]) for t in (10.0 * i, 10.0 * i + n)])
    assert calibrated_frequency(Library(host_isa()), lambda: next(readings)) == pytest.approx(
        rate_Hz, rel=1e-6
    )
