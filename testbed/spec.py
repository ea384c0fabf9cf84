"""The specification of a testbed device."""

import re
from dataclasses import dataclass

_RATE = re.compile(r"([0-9]*\.?[0-9]+)\s*(k|M|G)bit(/s)?")
_NAME = re.compile(r"[a-z][a-z0-9]{0,14}")
_SCALE = {"k": 1e3, "M": 1e6, "G": 1e9}


def rate(text: str) -> float:
    """`"200Mbit"` -> 25e6 bytes a second. Raises ValueError unless it is k, M or Gbit."""
    match = _RATE.fullmatch(text.strip())
    if match is None or not float(match[1]) > 0:
        raise ValueError(f"cannot read {text!r} as a bandwidth; give one such as 200Mbit or 1Gbit.")
    return float(match[1]) * _SCALE[match[2]] / 8


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device: its speed, its memory, and its link to the switch.

    `slower` is how many times longer its compute takes than this machine's (the dilation, which the caller
    passes to the worker). `bandwidth_Bps` applies to each direction separately, as on Ethernet. `delay_s`
    delays every frame in and out, so that the round trip between two devices takes twice the sum of their
    delays; a device made without it (None) cannot get one later. None is no limit.
    """

    name: str
    slower: float = 1.0
    memory_bytes: int | None = None
    bandwidth_Bps: float | None = None
    delay_s: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} is no device name; give up to 15 of a-z and 0-9, a letter first."
            )
        if not 1 <= self.slower < float("inf"):
            raise ValueError(f"{self.name} can only be slowed, not sped up: {self.slower}; give 1 or more.")
        check_memory(self.name, self.memory_bytes)
        check_bandwidth(self.name, self.bandwidth_Bps)
        check_delay(self.name, self.delay_s)


def check_memory(name: str, memory_bytes: int | None) -> None:
    """Raise ValueError for a limit that is too small for any process."""
    if memory_bytes is not None and memory_bytes < 1 << 20:
        raise ValueError(f"no process starts on {name} in {memory_bytes} bytes; give 1 MiB or more.")


def check_bandwidth(name: str, bandwidth_Bps: float | None) -> None:
    """Raise ValueError outside the range of a token bucket."""
    if bandwidth_Bps is not None and not 1e3 <= bandwidth_Bps <= 1.25e10:
        raise ValueError(f"{name} cannot be shaped to {bandwidth_Bps} B/s; give 8 kbit/s to 100 Gbit/s.")


def check_delay(name: str, delay_s: float | None) -> None:
    """Raise ValueError for a delay that is negative or longer than frames are kept."""
    if delay_s is not None and not 0 <= delay_s <= 1:
        raise ValueError(f"frames of {name} cannot be held for {delay_s} s; give 0 to 1.")
