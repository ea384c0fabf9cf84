"""Loading objects without LLVM: what is not understood must be refused, not executed."""

import ctypes

import numpy as np
import pytest

from pliant import system
from pliant.errors import KernelError
from pliant.kernels.emit.isa import NEON, X86_64, host_isa
from pliant.kernels.runtime.jit import compile_modules
from pliant.kernels.runtime.loader import load


def _object(text: str) -> bytes:
    (data,) = compile_modules([text], host_isa())
    return data


def test_constants_in_read_only_memory_are_found() -> None:
    """Tables and vector constants lie beside the code and are reached by relocations."""
    text = """
@table = private unnamed_addr constant [4 x i64] [i64 3, i64 5, i64 8, i64 13], align 64
define i64 @pick(i64 %i) {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}
define double @third(double %x) {
  %y = fmul double %x, 0x3FD5555555555555
  ret double %y
}
"""
    symbols = load(_object(text))
    pick = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(symbols["pick"])
    third = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(symbols["third"])
    assert [pick(i) for i in range(4)] == [3, 5, 8, 13]
    assert third(3.0) == 1.0


def test_jump_tables_reach_their_cases() -> None:
    """LLVM lowers a dense switch to a table of distances, with relocations of its own."""
    lines = ["define i64 @f(i64 %x, ptr %p) {", "  switch i64 %x, label %no ["]
    lines += [f"    i64 {i}, label %c{i}" for i in range(16)]  # Arm compares and jumps for fewer than 13
    lines += ["  ]", "no:", "  ret i64 -1"]
    for i, operation in enumerate(["add", "xor", "mul", "shl", "sub", "or", "and", "udiv"] * 2):
        # Volatile reads keep the cases apart: LLVM cannot merge them into a table of results.
        lines += [f"c{i}:", f"  %v{i} = load volatile i64, ptr %p", f"  %r{i} = {operation} i64 %v{i}, 3"]
        lines += [f"  ret i64 %r{i}"]
    data = _object("\n".join([*lines, "}"]))
    assert b".rodata" in data
    f = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(load(data)["f"])
    ten = ctypes.c_int64(10)
    results = [f(i, ctypes.addressof(ten)) for i in range(17)]
    assert results == [13, 10 ^ 3, 30, 80, 7, 10 | 3, 10 & 3, 3] * 2 + [-1]


def test_memset_and_memcpy_come_from_libc() -> None:
    """LLVM writes calls to them where a kernel clears or copies."""
    text = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @spread(ptr %from, ptr %to, i64 %n) {
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %n, i1 false)
  call void @llvm.memset.p0.i64(ptr %from, i8 7, i64 %n, i1 false)
  ret void
}
"""
    source, target = np.arange(1000, dtype=np.uint8), np.zeros(1000, np.uint8)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    function(load(_object(text))["spread"])(source.ctypes.data, target.ctypes.data, 1000)
    assert (target == np.arange(1000, dtype=np.uint8)).all()
    assert (source == 7).all()


def test_writable_data_is_refused() -> None:
    """A kernel with state of its own would be no function of its arguments, nor safe on two threads."""
    text = "@count = global i64 0\ndefine ptr @f() {\n  ret ptr @count\n}"
    with pytest.raises(KernelError, match="writable"):
        load(_object(text + "\n@init = global i64 5"))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(100), b"MZ" + bytes(100)])
def test_what_is_no_object_of_this_machine_is_refused(data: bytes) -> None:
    """Another machine's cache, or a text file in its place."""
    with pytest.raises(KernelError, match="ELF"):
        load(data)


def test_another_machines_object_is_refused() -> None:
    """A cache that two machines share over a network."""
    other = {"x86_64": NEON, "aarch64": X86_64}[system.machine()]
    (data,) = compile_modules(["define void @f() {\n  ret void\n}"], other)
    with pytest.raises(KernelError, match=other.architecture):
        load(data)


def test_the_same_object_is_mapped_once() -> None:
    """Code is never unmapped: each opening of a model would leave another copy of its kernels behind."""
    text = "define i64 @twice(i64 %x) {\n  %y = shl i64 %x, 1\n  ret i64 %y\n}"
    first = load(_object(text))
    assert load(bytes(_object(text))) == first
    assert load(_object(text.replace("1", "2")))["twice"] != first["twice"]


def test_code_cannot_be_written_to() -> None:
    """Memory is either writable or executable, never both."""
    symbols = load(_object("define void @f() {\n  ret void\n}"))
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(x, 16) for x in line.split()[0].split("-"))
            if low <= symbols["f"] < high:
                assert line.split()[1] == "r-xp"
                return
    pytest.fail("the function is in no mapping")
