"""What pliant asks of the operating system, Linux: its CPU, how busy it is, and memory for machine code.

Another system is another file with these functions. Nothing here knows of kernels or models.
"""

import ctypes
import mmap
import platform
from contextlib import suppress
from pathlib import Path

from pliant.errors import KernelError

CPUINFO = Path("/proc/cpuinfo")
_CPU_PRESSURE = Path("/proc/pressure/cpu")
_AT_HWCAP, _AT_HWCAP2 = 16, 26  # <linux/auxvec.h>
_HWCAP = {1: "asimd", 10: "asimdhp", 20: "asimddp"}  # by bit: arch/arm64/include/uapi/asm/hwcap.h
_HWCAP2 = {13: "i8mm", 14: "bf16"}
_ARENA_MAX = -8  # <malloc.h>: M_ARENA_MAX
_SYS_ARCH_PRCTL, _REQUEST_COMPONENT, _TILE_DATA = 158, 0x1023, 18  # arch/x86/include/uapi/asm/prctl.h
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def machine() -> str:
    """This machine's architecture as LLVM's triples spell it: "x86_64", "aarch64", or the system's word."""
    found = platform.machine().lower()
    return _MACHINES.get(found, found)


def cpu_flags() -> frozenset[str] | None:
    """This CPU's features in Linux's spelling, or None where the system tells nothing.

    On Arm they are asked of the auxiliary vector, which an emulator answers for the CPU that it emulates;
    /proc/cpuinfo may be another machine's there.
    """
    return _flags_of_arm() if machine() == "aarch64" else _flags_of_x86()


def request_tiles() -> int:
    """Ask for AMX's tile registers: 0, or the error number of a refusal.

    A process asks once: the answer holds for its threads, those before included, and for children by fork.
    Linux before 5.16 (EINVAL) and seccomp filters (EPERM) refuse, and so does Linux where a thread has an
    alternate signal stack that is too small for the registers (ENOSPC).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.syscall(_SYS_ARCH_PRCTL, _REQUEST_COMPONENT, _TILE_DATA)
    return ctypes.get_errno() if refused else 0


def use_one_heap() -> None:
    """Have all threads allocate from one heap. Call before a process starts its first thread.

    glibc gives threads heaps of their own, up to eight for each core, and what one of them freed is of no use
    to the others. Where models are opened on one thread and closed on another, a process grows by tens of MB
    that nothing uses. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)


def waited_s() -> dict[int, float]:
    """Seconds for which each thread of this process has been ready and waited for a core, by its id.

    Empty where the kernel counts none.
    """
    waited: dict[int, float] = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread may end meanwhile
            waited[int(path.parent.name)] = 1e-9 * int(path.read_text().split()[1])
    return waited


def cpu_pressure() -> float | None:
    """The share of the last ten seconds in which something on this machine waited for a core.

    None where the kernel offers no pressure stall information.
    """
    try:
        some = _CPU_PRESSURE.read_text().split()
        return float(dict(word.split("=") for word in some[1:5])["avg10"]) / 100.0
    except (OSError, ValueError, KeyError):
        return None


def reserve_code(n_bytes: int) -> int:
    """The address of `n_bytes` of private memory that can be written, for machine code.

    Raises KernelError where there is none.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = libc.mmap(None, n_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if base is None or base == ctypes.c_void_p(-1).value:
        raise KernelError(f"no memory for {n_bytes} bytes of code (errno {ctypes.get_errno()}).")
    return int(base)


def install_code(base: int, code: bytes) -> None:
    """Write `code` to the memory that `reserve_code` gave, and make it executable and no longer writable.

    Raises KernelError where the system forbids that.
    """
    ctypes.memmove(base, code, len(code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if libc.mprotect(base, len(code), mmap.PROT_READ | mmap.PROT_EXEC):
        raise KernelError(
            f"this system forbids executable memory (errno {ctypes.get_errno()}); "
            "its security policy (SELinux execmem, or similar) must allow it for pliant to run."
        )
    if machine() == "aarch64":
        _clear_instruction_cache(base, len(code))


def _clear_instruction_cache(base: int, n_bytes: int) -> None:
    """Have Arm's instruction fetch see what was stored, which x86 does by itself.

    libgcc has the loop of `dc cvau` and `ic ivau`. Without it Linux's own cleaning stands, which it does when
    a page becomes executable for the first time (arch/arm64/mm/flush.c); this memory never was before.
    """
    try:
        clear = getattr(ctypes.CDLL("libgcc_s.so.1"), "__clear_cache")
    except (OSError, AttributeError):
        return
    clear.restype, clear.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p)
    clear(base, base + n_bytes)


def _flags_of_x86() -> frozenset[str] | None:
    try:
        text = CPUINFO.read_text()
    except OSError:
        return None
    lines = [line for line in text.splitlines() if line.startswith("flags")]
    flags = set(lines[0].partition(":")[2].split()) if lines else set()
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
