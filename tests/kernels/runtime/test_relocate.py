"""Linking objects of both machines, on any machine, against what GNU ld makes of them."""

import shutil
import struct
import subprocess
from functools import partial
from pathlib import Path

import pytest

from pliant.errors import KernelError
from pliant.kernels.attention.attention import attention_ir
from pliant.kernels.coded.gemm import gemm_ir
from pliant.kernels.emit.isa import AVX2, AVX512_VNNI, NEON, NEON_DOT, X86_64, Isa
from pliant.kernels.runtime.jit import compile_modules
from pliant.kernels.runtime.loader import Linker
from pliant.kernels.runtime.relocate import AARCH64, STUB_BYTES
from pliant.kernels.runtime.walker import walker_ir

BASE = 0x7E5A_3000_0000
_LD = {"x86_64": "x86_64-linux-gnu-ld", "aarch64": "aarch64-linux-gnu-ld"}
_EMULATION = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux"}

_BESIDE_CODE = """
@table = private unnamed_addr constant [4 x i64] [i64 3, i64 5, i64 8, i64 13], align 64
declare void @elsewhere(i64)
define i64 @pick(i64 %i) nounwind {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}
define void @tail(i64 %i) nounwind {
  tail call void @elsewhere(i64 %i)
  ret void
}
define <4 x float> @constant() nounwind {
  ret <4 x float> <float 0x3FD5555560000000, float 2.0, float 3.0, float 4.0>
}
define i16 @half() nounwind {
  %v = load i16, ptr getelementptr (i8, ptr @table, i64 8)
  ret i16 %v
}
"""
TEXTS = {
    "beside": lambda isa: _BESIDE_CODE,
    "walker": walker_ir,
    "gemm": gemm_ir,
    "attention": partial(attention_ir, head_dim=32),
}


def _object(text: str, isa: Isa) -> bytes:
    (data,) = compile_modules([text], isa)
    return data


@pytest.mark.parametrize(
    "isa", [NEON, NEON_DOT, X86_64, AVX2, AVX512_VNNI], ids=lambda isa: isa.cpu + isa.features
)
@pytest.mark.parametrize("name", TEXTS)
def test_code_is_what_the_linker_makes_of_it(name: str, isa: Isa, tmp_path: Path) -> None:
    """Sections at the same addresses, functions elsewhere at the same stubs: every byte is the same."""
    tool = shutil.which(_LD[isa.architecture])
    if tool is None:
        pytest.skip(f"no {_LD[isa.architecture]} here")
    data = _object(TEXTS[name](isa), isa)
    linker = Linker.of(data)
    code = linker.link(BASE, dict.fromkeys(linker.stubs, 0))
    assert code[: linker.object.n_bytes] == _linked(data, linker, tool, tmp_path)


def _linked(data: bytes, linker: Linker, tool: str, folder: Path) -> bytes:
    """GNU ld's image of the object's loaded sections, at the same addresses."""
    (folder / "x.o").write_bytes(data)
    lines = [f"{name} = {BASE + at:#x};" for name, at in linker.stubs.items()]
    lines.append("SECTIONS {")
    names = _names(data, linker)
    for at, name in zip(linker.object.offsets.values(), names, strict=True):
        lines.append(f'  "{name}" {BASE + at:#x} : {{ KEEP(*("{name}")) }}')
    lines.append("  /DISCARD/ : { *(.note*) *(.comment) *(.eh_frame) }\n}")
    (folder / "x.ld").write_text("\n".join(lines))
    objcopy = tool.removesuffix("ld") + "objcopy"
    # Else equal constants become one.
    unmerged = (f"--set-section-flags={name}=alloc,readonly,data" for name in names if ".cst" in name)
    subprocess.run([objcopy, *unmerged, "x.o"], cwd=folder, check=True)
    command = [tool, "-m", _EMULATION[linker.machine.name], "--no-relax", "-T", "x.ld", "-e", "0"]
    subprocess.run([*command, "-o", "x", "x.o"], cwd=folder, check=True)
    subprocess.run([objcopy, "-O", "binary", "x", "x.bin"], cwd=folder, check=True)
    return (folder / "x.bin").read_bytes().ljust(linker.object.n_bytes, b"\0")


def _names(data: bytes, linker: Linker) -> list[str]:
    """The names of the loaded sections, which the loader itself has no need of."""
    table, size = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 58)[0]
    names = linker.object.sections[struct.unpack_from("<H", data, 62)[0]]
    found = []
    for index in linker.object.offsets:
        start = names.offset + struct.unpack_from("<I", data, table + index * size)[0]
        found.append(data[start : data.index(b"\0", start)].decode())
    return found


def test_a_stub_of_arm_jumps_to_its_address() -> None:
    """`ldr x16, 8; br x16`, and the address: calls reach 128 MB, libc may be further away."""
    stub = AARCH64.stub_to(0x1122334455667788)
    assert len(stub) == STUB_BYTES
    assert struct.unpack("<IIQ", stub) == (0x58000050, 0xD61F0200, 0x1122334455667788)


@pytest.mark.parametrize("kind", [275, 282, 283, 261])
def test_what_is_out_of_reach_is_refused(kind: int) -> None:
    """A branch that wrapped around would run whatever lies there."""
    with pytest.raises(KernelError, match="away"):
        AARCH64.patch(bytearray(4), 0, kind, BASE, BASE + (1 << 35))


def test_an_unknown_relocation_is_refused() -> None:
    """Code with a hole in it must not run."""
    with pytest.raises(KernelError, match="999"):
        AARCH64.patch(bytearray(4), 0, 999, BASE, BASE)
