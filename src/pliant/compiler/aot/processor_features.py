"""Print the features that an instruction set needs as C source, for the check in c/processor.h."""

from importlib.resources import files
from typing import NamedTuple

from pliant.compiler.aot.c_source import format_array, quote
from pliant.kernels.emit.isa import Isa, needed_flags

PROCESSOR = "processor.h"


class FeatureBit(NamedTuple):
    """A bit of a word (0 to 3: eax to edx) of cpuid's answer, or on Arm of the auxiliary value `leaf`."""

    leaf: int
    subleaf: int
    word: int
    bit: int


_EAX, _EBX, _ECX, _EDX = range(4)
_AT_HWCAP, _AT_HWCAP2 = 16, 26  # <linux/auxvec.h>
_AVX_STATES, _AVX512_STATES = 0x6, 0xE6  # of XCR0: xmm and ymm; k, and both parts of zmm

FEATURE_BITS = {
    "osxsave": FeatureBit(1, 0, _ECX, 27),
    "fma": FeatureBit(1, 0, _ECX, 12),
    "movbe": FeatureBit(1, 0, _ECX, 22),
    "f16c": FeatureBit(1, 0, _ECX, 29),
    "lzcnt": FeatureBit(0x80000001, 0, _ECX, 5),
    "bmi1": FeatureBit(7, 0, _EBX, 3),
    "avx2": FeatureBit(7, 0, _EBX, 5),
    "bmi2": FeatureBit(7, 0, _EBX, 8),
    "avx512f": FeatureBit(7, 0, _EBX, 16),
    "avx512dq": FeatureBit(7, 0, _EBX, 17),
    "avx512cd": FeatureBit(7, 0, _EBX, 28),
    "avx512bw": FeatureBit(7, 0, _EBX, 30),
    "avx512vl": FeatureBit(7, 0, _EBX, 31),
    "avx512vbmi": FeatureBit(7, 0, _ECX, 1),
    "avx512_vnni": FeatureBit(7, 0, _ECX, 11),
    "amx_bf16": FeatureBit(7, 0, _EDX, 22),
    "amx_tile": FeatureBit(7, 0, _EDX, 24),
    "amx_int8": FeatureBit(7, 0, _EDX, 25),
    "avx_vnni": FeatureBit(7, 1, _EAX, 4),
    "avx512_bf16": FeatureBit(7, 1, _EAX, 5),
    "asimd": FeatureBit(_AT_HWCAP, 0, 0, 1),
    "asimddp": FeatureBit(_AT_HWCAP, 0, 0, 20),
    "i8mm": FeatureBit(_AT_HWCAP2, 0, 0, 13),
    "bf16": FeatureBit(_AT_HWCAP2, 0, 0, 14),
}
"""By Linux's names. Intel's manual, volume 2A, CPUID; Linux, arch/arm64/include/uapi/asm/hwcap.h."""


def processor_header() -> str:
    """The text of the file PROCESSOR, which checks the tables of `feature_source`."""
    return (files("pliant.compiler.aot") / "c" / PROCESSOR).read_text(encoding="utf-8")


def feature_source(isa: Isa) -> str:
    """The tables FEATURES, N_FEATURES, STATES and USES_TILES of `isa`."""
    needed = sorted(needed_flags(isa))
    states = 0
    if "avx2" in needed:
        needed = ["osxsave", *needed]
        states = _AVX512_STATES if "avx512f" in needed else _AVX_STATES
    rows = [f"{{{quote(name)}, {', '.join(f'{n}u' for n in FEATURE_BITS[name])}}}" for name in needed]
    return "\n".join(
        [
            format_array("struct feature FEATURES", rows, "{0, 0, 0, 0, 0}"),
            f"enum {{ N_FEATURES = {len(needed)}, STATES = {states}, USES_TILES = {int(isa.has_tiles)} }};",
        ]
    )
