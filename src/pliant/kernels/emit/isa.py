"""The instruction sets kernels are generated for, as rows of a table."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, get_args

from pliant import system
from pliant.errors import KernelError
from pliant.settings import allows_amx

IsaName = Literal["avx512", "avx2", "x86-64", "neon"]

_LOG = logging.getLogger("pliant.kernels")
_X86_64, _AARCH64 = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


@dataclass(frozen=True, slots=True)
class Isa:
    """One row: `lanes` float32 values per vector, `registers` vector registers, LLVM's `cpu` and `features`.

    `triple` is LLVM's name of the machines that run it.

    `has_dot`: one instruction multiplies bytes and adds four products (VNNI, or Arm's dot product).
    `has_byte_permute`: one instruction looks up 64 bytes in a register of 64 (AVX-512 VBMI).

    `has_bf16`: pairs of bfloat16 are multiplied and added to float32 (AVX512-BF16, Arm's BF16).

    `has_matmul`: 2 x 8 bytes times 8 x 2 are one instruction (Arm's I8MM); with `has_bf16`, 2 x 4 bfloat16
    times 4 x 2 are another.

    `has_tiles`: blocks of 16 x 64 bytes are multiplied in tile registers, as int8 or as bfloat16 (AMX). The
    system grants those registers on request.

    `is_portable`: the row's code is lowered for a lesser CPU: vectors keep their width and are split by LLVM,
    and generators emit generic IR instead of the row's special instructions.
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
    triple: str = _X86_64
    has_matmul: bool = False
    has_byte_permute: bool = False
    has_bf16: bool = False
    has_tiles: bool = False

    @property
    def architecture(self) -> str:
        """The architecture of its code: "x86_64" or "aarch64"."""
        return self.triple.partition("-")[0]

    @property
    def target(self) -> str:
        """Its name in TARGETS; LLVM's name and features for a row that is not among them."""
        return next((name for name, row in TARGETS.items() if row == self), f"{self.name}{self.features}")


_V3 = frozenset(["avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "lzcnt"])
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_NEEDS: dict[IsaName, frozenset[str]] = {
    "avx512": _V4,
    "avx2": _V3,
    "x86-64": frozenset(),
    "neon": frozenset(["asimd"]),
}
_BF16: dict[IsaName, str] = {"avx512": "avx512_bf16", "neon": "bf16"}
_DOT: dict[IsaName, str] = {"avx512": "avx512_vnni", "avx2": "avx_vnni", "neon": "asimddp"}

AVX512 = Isa("avx512", 16, 32, True, True, False, "x86-64-v4")
AVX512_VNNI = replace(AVX512, has_dot=True, features="+avx512vnni")
AVX512_VBMI = replace(AVX512_VNNI, has_byte_permute=True, features="+avx512vnni,+avx512vbmi")
"""Since Ice Lake and Zen 4; Cascade Lake has VNNI without it."""
AVX512_BF16 = replace(AVX512_VBMI, has_bf16=True, features="+avx512vnni,+avx512vbmi,+avx512bf16")
"""Since Zen 4 and Sapphire Rapids; Ice Lake has VBMI without it."""
_TILES = frozenset(["amx_tile", "amx_int8", "amx_bf16"])
_TILE_FEATURES = "+amx-tile,+amx-int8,+amx-bf16"
AVX512_AMX = replace(AVX512_BF16, has_tiles=True, features=f"{AVX512_BF16.features},{_TILE_FEATURES}")
"""Since Sapphire Rapids."""
AVX2 = Isa("avx2", 8, 16, True, True, False, "x86-64-v3")
AVX2_VNNI = replace(AVX2, has_dot=True, features="+avxvnni")
X86_64 = Isa("x86-64", 4, 16, False, False, False, "x86-64")
NEON = Isa("neon", 4, 32, True, True, False, "generic", "+neon", triple=_AARCH64)
NEON_DOT = replace(NEON, has_dot=True, features=f"{NEON.features},+dotprod")
NEON_I8MM = replace(NEON_DOT, has_matmul=True, features=f"{NEON_DOT.features},+i8mm")
NEON_BF16 = replace(NEON_I8MM, has_bf16=True, features=f"{NEON_I8MM.features},+bf16")
"""Armv8.6 has both: Neoverse N2 and V1, Graviton 3, Apple M2."""

TargetName = Literal[
    "avx512-amx",
    "avx512-bf16",
    "avx512-vbmi",
    "avx512-vnni",
    "avx512",
    "avx2-vnni",
    "avx2",
    "x86-64",
    "aarch64-bf16",
    "aarch64-i8mm",
    "aarch64-dot",
    "aarch64",
]
ISAS: tuple[Isa, ...] = (
    *(AVX512_AMX, AVX512_BF16, AVX512_VBMI, AVX512_VNNI, AVX512, AVX2_VNNI, AVX2, X86_64),
    *(NEON_BF16, NEON_I8MM, NEON_DOT, NEON),
)
"""Every row, best first among those of one architecture."""
TARGETS: Mapping[str, Isa] = dict(zip(get_args(TargetName), ISAS, strict=True))
"""Every row by the name that users see."""


def host_isa() -> Isa:
    """The best row this CPU runs. Raises KernelError on a CPU that is neither x86-64 nor 64-bit Arm."""
    found = next((isa for isa in ISAS if is_runnable(isa)), None)
    if found is None:
        raise KernelError(
            f"no kernels exist for {system.machine()}: this version generates code for x86-64 and "
            "64-bit Arm. Run pliant on such a machine."
        )
    return found


def vector_isa() -> Isa:
    """The best row this CPU runs without tiles: products of float32 have float32's error, and need no memory
    for a second part of their rows.
    """
    isa = host_isa()
    return AVX512_BF16 if isa.has_tiles else isa


def is_runnable(isa: Isa) -> bool:
    """Whether this CPU can execute code generated for `isa`; a portable row fits the CPU it was made on."""
    if isa.is_portable:
        return True
    has_it = isa.architecture == system.machine() and needed_flags(isa) <= host_flags()
    return has_it and (not isa.has_tiles or can_use_tiles())


def needed_flags(isa: Isa) -> frozenset[str]:
    """The features that a CPU needs to execute code of `isa`, in Linux's spelling."""
    more = {_DOT[isa.name]} if isa.has_dot else set()
    more |= {"i8mm"} if isa.has_matmul else set()
    more |= {"avx512vbmi"} if isa.has_byte_permute else set()
    more |= {_BF16[isa.name]} if isa.has_bf16 else set()
    more |= _TILES if isa.has_tiles else set()
    return _NEEDS[isa.name] | more


def to_portable(isa: Isa) -> Isa:
    """`isa` with its vectors and generators, lowered to what this CPU can execute; `isa` itself if it can."""
    if is_runnable(isa):
        return isa
    host = host_isa()
    return replace(
        isa,
        has_fma=host.has_fma,
        has_f16c=host.has_f16c,
        cpu=host.cpu,
        features=host.features,
        is_portable=True,
        triple=host.triple,
    )


@cache
def can_use_tiles() -> bool:
    """Whether this process uses AMX's registers (`allows_amx`) and the system grants them.

    The system is asked once; a refusal is logged.
    """
    if not allows_amx():
        return False
    error = system.request_tiles()
    if error:
        _LOG.warning("The system refuses AMX (%s); kernels of AVX-512 run instead.", os.strerror(error))
    return not error


@cache
def host_flags() -> frozenset[str]:
    """This CPU's feature flags, in Linux's spelling. The CPU does not change while a process runs."""
    flags = system.cpu_flags()
    return llvm_flags() if flags is None else flags


def llvm_flags() -> frozenset[str]:
    """As `host_flags`, by LLVM's detection, for x86-64 systems without the kernel's list."""
    import llvmlite.binding as llvm  # 45 MB resident, so only as a fallback

    spelled = {"bmi": "bmi1", "avx512vnni": "avx512_vnni", "avxvnni": "avx_vnni", "avx512bf16": "avx512_bf16"}
    spelled |= {f"amx-{x}": f"amx_{x}" for x in ("tile", "int8", "bf16")}
    present = [name for name, is_present in llvm.get_host_cpu_features().items() if is_present]
    return frozenset(spelled.get(name, name) for name in present)
