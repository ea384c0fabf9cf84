"""Read this machine's energy use in joules: RAPL's counters, or a hwmon energy counter.

RAPL counts a package's energy in `/sys/class/powercap` (often readable only by root), hwmon in
`/sys/class/hwmon/*/energy*_input`; both in microjoules. Counters wrap around at their range.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pliant.system.linux.kernel_files import kernel_number, kernel_text

_SYSFS = Path("/sys/class")


@dataclass(frozen=True, slots=True)
class EnergyMeter:
    """One counter of microjoules, in a file; it wraps around at `range_uj`, None if unknown."""

    name: str
    path: Path
    range_uj: int | None = None

    def read_uj(self) -> int:
        """Return the current counter. Raises OSError if it is not readable."""
        return int(self.path.read_text())

    def joules(self, before_uj: int, after_uj: int) -> float:
        """Return the energy between two readings less than one wrap-around apart."""
        spent_uj = after_uj - before_uj
        if spent_uj < 0 and self.range_uj is not None:
            spent_uj += self.range_uj
        return max(spent_uj, 0) / 1e6


def find_meters(sysfs: Path = _SYSFS) -> tuple[EnergyMeter, ...]:
    """Return RAPL's packages if readable, else hwmon's counters, which may count the same energy.

    Nothing is counted twice: `psys`, which contains the packages, and cores beside their sockets (amd_energy)
    are skipped. Most virtual machines have no meters.
    """
    return _readable(_rapl(sysfs)) or _readable(_hwmon(sysfs))


def _rapl(sysfs: Path) -> Iterator[EnergyMeter]:
    for path in sorted(sysfs.glob("powercap/intel-rapl:?/energy_uj")):
        name = kernel_text(path.with_name("name")) or path.parent.name
        if name != "psys":
            yield EnergyMeter(name, path, kernel_number(path.with_name("max_energy_range_uj")))


def _hwmon(sysfs: Path) -> Iterator[EnergyMeter]:
    for path in sorted(sysfs.glob("hwmon/*/energy*_input")):
        label = kernel_text(path.with_name(path.name.replace("_input", "_label")))
        if label is None or not label.startswith("Ecore"):
            yield EnergyMeter(label or kernel_text(path.with_name("name")) or path.parent.name, path)


def _readable(meters: Iterator[EnergyMeter]) -> tuple[EnergyMeter, ...]:
    return tuple(m for m in meters if kernel_number(m.path) is not None)
