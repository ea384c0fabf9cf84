"""Devices in numbers."""

import pytest

from testbed import DeviceSpec, rate


def test_a_rate_is_told_as_tc_writes_it() -> None:
    """Papers and `tc` say bits, all else here counts bytes a second."""
    assert rate("200Mbit") == 25e6
    assert rate("1 Gbit/s") == 125e6
    assert rate("512kbit") == 64e3


@pytest.mark.parametrize("text", ["200", "200MB", "0Mbit", "-1Mbit", "fast", ""])
def test_what_is_no_rate_is_refused(text: str) -> None:
    """A bare number could be bits or bytes."""
    with pytest.raises(ValueError, match="200Mbit"):
        rate(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Kitchen Table"},
        {"name": "x" * 16},
        {"slower": 0.5},
        {"slower": float("nan")},
        {"memory_bytes": 4096},
        {"bandwidth_Bps": 0.0},
        {"bandwidth_Bps": float("nan")},
        {"delay_s": -0.001},
        {"delay_s": 60.0},
    ],
)
def test_a_device_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    """Before anything is made of it."""
    with pytest.raises(ValueError, match="give"):
        DeviceSpec(**{"name": "kitchen", **changes})  # type: ignore[arg-type]
