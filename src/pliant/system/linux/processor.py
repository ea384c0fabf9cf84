"""The CPU: its features, name, clock rate and cores, and which of them this process may use."""

import ctypes
import os
import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pliant.system.linux.kernel_files import field_of, kernel_number, kernel_text

_CPUINFO = Path("/proc/cpuinfo")
_BOARD = Path("/proc/device-tree/model")
_CPUS = Path("/sys/devices/system/cpu")
_CPUFREQ = _CPUS / "cpu0" / "cpufreq"
_SIBLINGS = ("core_cpus_list", "thread_siblings_list")  # the second is the name before Linux 5.3
_AT_HWCAP, _AT_HWCAP2 = 16, 26  # <linux/auxvec.h>
_HWCAP = {1: "asimd", 10: "asimdhp", 20: "asimddp"}  # by bit: arch/arm64/include/uapi/asm/hwcap.h
_HWCAP2 = {13: "i8mm", 14: "bf16"}
_SYS_ARCH_PRCTL, _REQUEST_COMPONENT, _TILE_DATA = 158, 0x1023, 18  # arch/x86/include/uapi/asm/prctl.h
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class CpuFrequency:
    """The CPU's clock rate, or None and the reason why it is unknown."""

    frequency_Hz: float | None
    reason: str | None


def machine() -> str:
    """This machine's architecture as LLVM's triples spell it: "x86_64", "aarch64", or the system's word."""
    found = platform.machine().lower()
    return _MACHINES.get(found, found)


def cpu_flags(cpuinfo: Path = _CPUINFO) -> frozenset[str] | None:
    """This CPU's features in Linux's spelling, or None where the system tells nothing.

    On Arm they are asked of the auxiliary vector, which an emulator answers for the CPU that it emulates;
    /proc/cpuinfo may be another machine's there.
    """
    return _flags_of_arm() if machine() == "aarch64" else _flags_of_x86(cpuinfo)


def request_tiles() -> int:
    """Ask for AMX's tile registers: 0, or the error number of a refusal.

    A process asks once: the answer holds for its threads, those before included, and for children by fork.
    Linux before 5.16 (EINVAL) and seccomp filters (EPERM) refuse, and so does Linux where a thread has an
    alternate signal stack that is too small for the registers (ENOSPC).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.syscall(_SYS_ARCH_PRCTL, _REQUEST_COMPONENT, _TILE_DATA)
    return ctypes.get_errno() if refused else 0


def allowed_cpus() -> Collection[int]:
    """The numbers of the logical CPUs that this process may run on."""
    return os.sched_getaffinity(0)


def physical_cores(cpus: Collection[int], sysfs: Path = _CPUS) -> int:
    """The number of physical cores of the logical `cpus`; hardware threads of one core count once.

    A CPU without topology information counts as a core of its own.
    """
    return len({_siblings(sysfs / f"cpu{cpu}" / "topology") or str(cpu) for cpu in cpus})


def cpu_model(cpuinfo: Path = _CPUINFO, board: Path = _BOARD) -> str:
    """Return the CPU's name as its maker writes it, or the architecture if the system reports no name.

    Arm has no such name: returns the board's, and the numbers of each kind of core (Linux, MIDR_EL1).
    """
    text = kernel_text(cpuinfo) or ""
    if machine() == "aarch64":
        name = " ".join(filter(None, ((kernel_text(board) or "").rstrip("\0"), _cores(text))))
    else:
        name = field_of(text, "model name")
    return name or platform.processor() or platform.machine() or "unknown CPU"


def cpu_frequency(cpufreq: Path = _CPUFREQ, cpuinfo: Path = _CPUINFO) -> CpuFrequency:
    """Return the clock rate of T_comp (STI 5.2): `frequency_limit`, or that of /proc/cpuinfo."""
    limit_Hz = frequency_limit(cpufreq)
    if limit_Hz is not None:
        return CpuFrequency(limit_Hz, None)
    try:
        return CpuFrequency(float(field_of(kernel_text(cpuinfo) or "", "cpu MHz")) * 1e6, None)
    except ValueError:
        return CpuFrequency(None, "neither cpufreq nor /proc/cpuinfo tells it; the CPU goes by its name")


def frequency_limit(cpufreq: Path = _CPUFREQ) -> float | None:
    """Return the clock rate that cpufreq allows a busy core, or is fixed to; None without cpufreq.

    The current rate depends on the preceding load; the limit is stable until it is changed.
    """
    set_by_user = kernel_text(cpufreq / "scaling_governor") == "userspace"
    kHz = kernel_number(cpufreq / ("scaling_setspeed" if set_by_user else "scaling_max_freq"))
    return None if kHz is None else kHz * 1e3


def _cores(cpuinfo: str) -> str:
    """Implementer and part of every kind of core, such as "0x41-0xd03 0x41-0xd08"; empty if unknown."""
    values = [
        [row.partition(":")[2].strip() for row in cpuinfo.splitlines() if row.startswith(field)]
        for field in ("CPU implementer", "CPU part")
    ]
    return " ".join(sorted({f"{maker}-{part}" for maker, part in zip(*values, strict=False)}))


def _siblings(topology: Path) -> str | None:
    """The hardware threads of a CPU's core as the system lists them, such as "0,4"."""
    texts = (kernel_text(topology / name) for name in _SIBLINGS)
    return next((text for text in texts if text is not None), None)


def _flags_of_x86(cpuinfo: Path) -> frozenset[str] | None:
    text = kernel_text(cpuinfo)
    if text is None:
        return None
    flags = set(field_of(text, "flags").split())
    if "abm" in flags:  # Linux's word for lzcnt
        flags.add("lzcnt")
    return frozenset(flags)


def _flags_of_arm() -> frozenset[str] | None:
    try:
        ask = ctypes.CDLL(None).getauxval
    except AttributeError:
        return None
    ask.restype, ask.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    found = ((ask(vector), names) for vector, names in ((_AT_HWCAP, _HWCAP), (_AT_HWCAP2, _HWCAP2)))
    return frozenset(name for word, names in found for bit, name in names.items() if word >> bit & 1)
