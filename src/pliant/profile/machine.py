"""The CPU model and clock rate that the system reports."""

import platform
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")


@dataclass(frozen=True, slots=True)
class Frequency:
    """The CPU's clock rate, or None and the reason why nobody tells it."""

    frequency_Hz: float | None
    reason: str | None


def cpu_model(cpuinfo: Path = _CPUINFO) -> str:
    """The CPU's name as its maker writes it; the architecture where the system tells no more."""
    return _cpuinfo(cpuinfo, "model name") or platform.processor() or platform.machine() or "unknown CPU"


def cpu_frequency(cpufreq: Path = _CPUFREQ, cpuinfo: Path = _CPUINFO) -> Frequency:
    """The clock rate now, from cpufreq or /proc/cpuinfo (STI 5.2 measures T_comp at a frequency)."""
    try:
        return Frequency(float(cpufreq.read_text()) * 1e3, None)
    except (OSError, ValueError):
        pass
    try:
        return Frequency(float(_cpuinfo(cpuinfo, "cpu MHz")) * 1e6, None)
    except ValueError:
        return Frequency(None, "neither cpufreq nor /proc/cpuinfo tells it; the CPU goes by its name")


def _cpuinfo(path: Path, field: str) -> str:
    """The value of the first line named `field`, empty when there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((row.partition(":")[2].strip() for row in lines if row.startswith(field)), "")
