"""The CPU model and clock rate that the system reports."""

import platform
from dataclasses import dataclass
from pathlib import Path

from pliant import system

_BOARD = Path("/proc/device-tree/model")
_CPUINFO = Path("/proc/cpuinfo")
_CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")


@dataclass(frozen=True, slots=True)
class CpuFrequency:
    """The CPU's clock rate, or None and the reason why it is unknown."""

    frequency_Hz: float | None
    reason: str | None


def cpu_model(cpuinfo: Path = _CPUINFO, board: Path = _BOARD) -> str:
    """Return the CPU's name as its maker writes it, or the architecture if the system reports no name.

    Arm has no such name: returns the board's, and the numbers of each kind of core (Linux, MIDR_EL1).
    """
    if system.machine() == "aarch64":
        name = " ".join(filter(None, (_text(board).rstrip("\0"), _cores(cpuinfo))))
    else:
        name = _cpuinfo(cpuinfo, "model name")
    return name or platform.processor() or platform.machine() or "unknown CPU"


def cpu_frequency(cpufreq: Path = _CPUFREQ, cpuinfo: Path = _CPUINFO) -> CpuFrequency:
    """Return the clock rate of T_comp (STI 5.2): `frequency_limit`, or that of /proc/cpuinfo."""
    limit_Hz = frequency_limit(cpufreq)
    if limit_Hz is not None:
        return CpuFrequency(limit_Hz, None)
    try:
        return CpuFrequency(float(_cpuinfo(cpuinfo, "cpu MHz")) * 1e6, None)
    except ValueError:
        return CpuFrequency(None, "neither cpufreq nor /proc/cpuinfo tells it; the CPU goes by its name")


def frequency_limit(cpufreq: Path = _CPUFREQ) -> float | None:
    """Return the clock rate that cpufreq allows a busy core, or is fixed to; None without cpufreq.

    The current rate depends on the preceding load; the limit is stable until it is changed.
    """
    set_by_user = _text(cpufreq / "scaling_governor") == "userspace"
    text = _text(cpufreq / ("scaling_setspeed" if set_by_user else "scaling_max_freq"))
    return float(text) * 1e3 if text.isdigit() else None


def _cores(cpuinfo: Path) -> str:
    """Implementer and part of every kind of core, such as "0x41-0xd03 0x41-0xd08"; empty if unknown."""
    lines = _text(cpuinfo).splitlines()
    values = [
        [row.partition(":")[2].strip() for row in lines if row.startswith(field)]
        for field in ("CPU implementer", "CPU part")
    ]
    return " ".join(sorted({f"{maker}-{part}" for maker, part in zip(*values, strict=False)}))


def _cpuinfo(path: Path, field: str) -> str:
    """Return the value of the first line named `field`, empty if there is none."""
    lines = _text(path).splitlines()
    return next((row.partition(":")[2].strip() for row in lines if row.startswith(field)), "")


def _text(path: Path) -> str:
    """Return the file's content, empty if there is no file."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
