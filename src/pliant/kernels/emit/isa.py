"""The instruction sets kernels are generated for, as rows of a table."""

import platform
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from pliant.errors import KernelError

IsaName = Literal["avx512", "avx2", "x86-64", "neon"]

CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Isa:
    """One row: `lanes` float32 values a vector, `registers` vector registers, LLVM's `cpu` and `features`.

    `triple` is LLVM's name of a machine of another architecture than this one, "" for this one's.

    `has_dot` says that bytes are multiplied and four products added at once: VNNI, or Arm's dot product.
    `has_byte_permute` says that one instruction looks 64 bytes up in a register of 64: AVX-512's VBMI.

    `is_portable` marks a row whose code is lowered for a lesser CPU: vectors keep their width and are
    split by LLVM, and generators put generic IR where they would name an instruction of the row.
    """

    name: IsaName
    lanes: int
    registers: int
    has_fma: bool
    has_f16c: bool
    has_dot: bool
    cpu: str
    features: str = ""
    is_portable: bool = False
    triple: str = ""
    has_byte_permute: bool = False


_V3 = frozenset(["avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "lzcnt"])
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_NEEDS: dict[IsaName, frozenset[str]] = {"avx512": _V4, "avx2": _V3, "x86-64": frozenset()}
_AARCH64 = "aarch64-unknown-linux-gnu"

AVX512 = Isa("avx512", 16, 32, True, True, False, "x86-64-v4")
AVX512_VNNI = replace(AVX512, has_dot=True, features="+avx512vnni")
AVX512_VBMI = replace(AVX512_VNNI, has_byte_permute=True, features="+avx512vnni,+avx512vbmi")
"""Since Ice Lake and Zen 4; Cascade Lake has VNNI without it."""
AVX2 = Isa("avx2", 8, 16, True, True, False, "x86-64-v3")
AVX2_VNNI = replace(AVX2, has_dot=True, features="+avxvnni")
X86_64 = Isa("x86-64", 4, 16, False, False, False, "x86-64")
NEON = Isa("neon", 4, 32, True, True, False, "generic", "+neon", triple=_AARCH64)
NEON_DOT = replace(NEON, has_dot=True, features=f"{NEON.features},+dotprod")
"""Both ahead of time only, so far: their objects are made anywhere and run on 64-bit Arm."""

ISAS: tuple[Isa, ...] = (AVX512_VBMI, AVX512_VNNI, AVX512, AVX2_VNNI, AVX2, X86_64)
"""Every native row, best first."""


def host_isa() -> Isa:
    """The best row this CPU runs. Raises KernelError on a CPU that is no x86-64."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise KernelError(
            f"no kernels exist for {platform.machine()}: this version generates x86-64 code only. "
            "Run pliant on an x86-64 machine."
        )
    return next(isa for isa in ISAS if runnable(isa))


def runnable(isa: Isa) -> bool:
    """Whether this CPU can execute code generated for `isa`; a portable row fits the CPU it was made on."""
    if isa.is_portable:
        return True
    if isa.triple:
        return False
    return needed_flags(isa) <= host_flags()


def needed_flags(isa: Isa) -> frozenset[str]:
    """The features that a CPU of x86-64 has if it executes code of `isa`, in Linux's spelling."""
    dot = {"avx512_vnni" if isa.name == "avx512" else "avx_vnni"} if isa.has_dot else set()
    permute = {"avx512vbmi"} if isa.has_byte_permute else set()
    return _NEEDS[isa.name] | dot | permute


def portable(isa: Isa) -> Isa:
    """`isa` with its vectors and generators, lowered to what this CPU can execute; `isa` itself if it can."""
    if runnable(isa):
        return isa
    host = host_isa()
    return replace(
        isa,
        has_fma=host.has_fma,
        has_f16c=host.has_f16c,
        cpu=host.cpu,
        features=host.features,
        is_portable=True,
    )


@cache
def host_flags() -> frozenset[str]:
    """This CPU's feature flags, in Linux's spelling. The CPU does not change while a process runs."""
    try:
        text = CPUINFO.read_text()
    except OSError:
        return flags_by_llvm()
    lines = [line for line in text.splitlines() if line.startswith("flags")]
    flags = set(lines[0].partition(":")[2].split()) if lines else set()
    if "abm" in flags:  # Linux's word for lzcnt
        flags.add("lzcnt")
    return frozenset(flags)


def flags_by_llvm() -> frozenset[str]:
    """As `host_flags`, as LLVM finds them."""
    import llvmlite.binding as llvm  # 45 MB resident: only where the kernel's list is missing

    spelled = {"bmi": "bmi1", "avx512vnni": "avx512_vnni", "avxvnni": "avx_vnni"}
    present = [name for name, is_present in llvm.get_host_cpu_features().items() if is_present]
    return frozenset(spelled.get(name, name) for name in present)
