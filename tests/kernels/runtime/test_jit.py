"""Compiling, caching and loading: damage, races and missing folders must never reach a caller."""

import ctypes
import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.errors import KernelError
from pliant.kernels.emit.builder import Module
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, host_isa, is_runnable
from pliant.kernels.runtime import compile_child, jit
from pliant.kernels.runtime.jit import Library
from tests.compiling import in_a_child


def _constant_ir(number: int, name: str = "constant") -> str:
    module = Module(host_isa())
    with module.function(name, [], "i64") as f:
        f.ret(f.const(number))
    return module.text()


def _call(address: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(address)())


@pytest.fixture(autouse=True)
def children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here kernels are compiled as users compile them."""
    monkeypatch.setattr(jit, "compile_modules", in_a_child)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many modules each compilation had, for as long as the test runs."""
    batches: list[int] = []
    original = jit.compile_modules

    def counted(texts: list[str], isa: Isa) -> list[bytes]:
        batches.append(len(texts))
        return original(texts, isa)

    monkeypatch.setattr(jit, "compile_modules", counted)
    return batches


def test_a_second_library_finds_the_first_ones_object(tmp_path: Path, compiled: list[int]) -> None:
    """A process should pay for a kernel once in the life of a machine."""
    for _ in range(2):
        assert _call(Library(host_isa(), tmp_path).load_function("constant", lambda: _constant_ir(41))) == 41
    assert compiled == [1]


def test_one_child_compiles_all_that_is_missing(tmp_path: Path, compiled: list[int]) -> None:
    """Starting a child costs as much as compiling a kernel."""
    library = Library(host_isa(), tmp_path)
    library.load_function("a", lambda: _constant_ir(ord("a"), "a"))
    found = library.load_functions({n: (lambda n=n: _constant_ir(ord(n), n)) for n in "abc"})  # type: ignore[misc]
    assert [_call(found[n]) for n in "abc"] == [ord(n) for n in "abc"]
    assert compiled == [1, 2]


def test_other_ir_is_another_object(tmp_path: Path) -> None:
    """A changed generator must not meet an old kernel."""
    assert _call(Library(host_isa(), tmp_path).load_function("constant", lambda: _constant_ir(1))) == 1
    assert _call(Library(host_isa(), tmp_path).load_function("constant", lambda: _constant_ir(2))) == 2


def test_equal_names_of_different_kernels_never_meet(tmp_path: Path) -> None:
    """A name says too little: one generator's variants, and two generators, may share it in one process."""
    library = Library(host_isa(), tmp_path)
    load = library.load_function
    assert [_call(load("constant", lambda n=n: _constant_ir(n))) for n in (1, 2, 1)] == [1, 2, 1]  # type: ignore[misc]


def test_a_cached_generated_kernel_is_found_without_its_ir(
    tmp_path: Path, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing IR takes longer than all else of loading a kernel; the generators' version stands for it."""

    def load() -> str:
        texts.append("")
        return _constant_ir(5)

    texts: list[str] = []
    wanted = {"constant": load}
    for _ in range(2):
        symbols = Library(host_isa(), tmp_path).load_generated(wanted)
        assert _call(symbols["constant"]["constant"]) == 5
    assert (len(texts), compiled) == (1, [1])
    # Most edits of a generator leave most kernels as they were.
    monkeypatch.setattr(jit, "generator_version", lambda: "another")
    Library(host_isa(), tmp_path).load_generated(wanted)
    assert (len(texts), compiled) == (2, [1])


def test_a_generated_kernel_is_known_by_its_text_where_no_version_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While generators are edited, or without their source, an equal name says nothing."""
    monkeypatch.setattr(jit, "generator_version", lambda: None)
    for number in (1, 2, 1):
        symbols = Library(host_isa(), tmp_path).load_generated({"constant": lambda n=number: _constant_ir(n)})  # type: ignore[misc]
        assert _call(symbols["constant"]["constant"]) == number


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "garbage"])
def test_a_damaged_object_is_compiled_anew(tmp_path: Path, compiled: list[int], damage: str) -> None:
    """Executing a damaged file would be a crash, or worse, a wrong answer."""
    Library(host_isa(), tmp_path).load_function("constant", lambda: _constant_ir(7))
    (file,) = (tmp_path / "kernels").iterdir()
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 16
    file.write_bytes(
        {"truncated": whole[:-5], "flipped": bytes(flipped), "empty": b"", "garbage": b"\0" * 5000}[damage]
    )
    assert _call(Library(host_isa(), tmp_path).load_function("constant", lambda: _constant_ir(7))) == 7
    assert compiled == [1, 1]
    assert file.read_bytes() == whole


@pytest.mark.parametrize("damaged", [".o", ".note"])
def test_a_damaged_generated_kernel_is_made_anew(tmp_path: Path, compiled: list[int], damaged: str) -> None:
    """Both files are checked: a note that led to another kernel would be a wrong answer."""
    for _ in range(2):
        symbols = Library(host_isa(), tmp_path).load_generated({"constant": lambda: _constant_ir(7)})
        assert _call(symbols["constant"]["constant"]) == 7
        (file,) = (tmp_path / "kernels").glob("*" + damaged)
        file.write_bytes(file.read_bytes()[:-9])
    assert len(compiled) == (2 if damaged == ".o" else 1)


def test_rows_of_one_cpu_do_not_share_generated_kernels(tmp_path: Path) -> None:
    """A portable row has the CPU of the row it stands in for, and other code."""
    rows = (host_isa(), replace(host_isa(), is_portable=True))
    for number, row in enumerate(rows):
        symbols = Library(row, tmp_path).load_generated({"constant": lambda n=number: _constant_ir(n)})  # type: ignore[misc]
        assert _call(symbols["constant"]["constant"]) == number


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    """A read-only home, or a file where the folder should be, is no reason to fail."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert _call(Library(host_isa(), blocked).load_function("constant", lambda: _constant_ir(9))) == 9


def test_a_full_disk_leaves_no_half_written_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects appear by renaming: whole, or not at all."""

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert _call(Library(host_isa(), tmp_path).load_function("constant", lambda: _constant_ir(3))) == 3
    assert list((tmp_path / "kernels").iterdir()) == []


def test_without_a_child_process_it_compiles_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes forbid subprocesses; frozen programs have no interpreter to start."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert _call(Library(host_isa(), tmp_path).load_function("constant", lambda: _constant_ir(8))) == 8


def _load_in_a_process(cache: Path, number: int) -> int:
    return _call(Library(host_isa(), cache).load_function("constant", lambda: _constant_ir(number)))


def test_processes_may_race_for_one_cache(tmp_path: Path) -> None:
    """Two sessions that start together share a cache, and neither may read half a file."""
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        jobs = [(tmp_path, n % 2) for n in range(6)]
        assert processes.starmap(_load_in_a_process, jobs) == [n % 2 for n in range(6)]
    assert len(list((tmp_path / "kernels").iterdir())) == 2


def test_loading_from_the_cache_does_not_load_llvm(tmp_path: Path) -> None:
    """LLVM's library is 45 MB resident: more than the model. Only the child may import it."""
    Library(host_isa(), tmp_path).load_function("constant", lambda: _constant_ir(6))
    program = (
        "import sys; from pathlib import Path\n"
        "from pliant.kernels.emit.isa import host_isa; from pliant.kernels.runtime.jit import Library\n"
        f"text = {_constant_ir(6)!r}\n"
        "assert Library(host_isa(), Path(sys.argv[1])).load_function('constant', lambda: text)\n"
        "assert not any(name.startswith('llvmlite.binding') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)


def test_ir_that_llvm_refuses_says_why(tmp_path: Path) -> None:
    """A generator's mistake must show LLVM's words, not a stack trace of a child."""
    bad = "define i64 @bad() {\n  ret i32 0\n}\n"
    with pytest.raises(KernelError, match="value doesn't match function"):
        Library(host_isa(), tmp_path).load_function("bad", lambda: bad)


def test_a_module_without_the_function_is_an_error(tmp_path: Path) -> None:
    """Address zero would be called."""
    with pytest.raises(KernelError, match="defines only other"):
        Library(host_isa(), tmp_path).load_function("constant", lambda: _constant_ir(1, "other"))


def test_a_call_into_libc_is_resolved_and_an_unknown_one_is_an_error(tmp_path: Path) -> None:
    """LLVM calls memset and memcpy on its own; the loader must find them, 2 GB away or more."""

    def calling(name: str) -> str:
        body = f"%y = call i64 @{name}(i64 %x)\n ret i64 %y"
        return f"declare i64 @{name}(i64)\ndefine i64 @f(i64 %x) {{\n {body}\n}}\n"

    address = Library(host_isa(), tmp_path).load_function("f", lambda: calling("labs"))
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(-5) == 5
    with pytest.raises(KernelError, match="pliant_has_no_such_function"):
        Library(host_isa(), tmp_path).load_function("f", lambda: calling("pliant_has_no_such_function"))


@pytest.mark.parametrize("row", [AVX512, AVX2, X86_64], ids=lambda row: row.name)
def test_objects_for_every_row_can_be_made_on_any_cpu(row: Isa) -> None:
    """The compiler is a cross compiler: what this CPU cannot run is at least generated."""
    module = Module(row)
    with module.kernel("k") as f:
        x = f.load(f.params[0], f.vec)
        f.store(f.fma(x, x, x), f.params[0])
    (data,) = jit.compile_modules([module.text()], row)
    assert data[:4] == b"\x7fELF"
    uses_zmm = b"\x62\xf2\x7d\x48\xa8" in data or b"\x62\xf2\x7d\x48\xb8" in data  # vfmadd213ps/231ps zmm
    assert uses_zmm == (row.name == "avx512")


def test_a_row_that_this_cpu_lacks_cannot_be_loaded(tmp_path: Path) -> None:
    """An illegal instruction kills the process without a word."""
    if is_runnable(AVX512):
        pytest.skip("this CPU runs every row")
    with pytest.raises(KernelError, match="avx512"):
        Library(AVX512, tmp_path)


def test_the_child_reads_its_request_and_answers_in_order() -> None:
    """The protocol between parent and child: length, bytes, in the order asked."""
    objects = compile_child.compile_objects(
        [_constant_ir(1), _constant_ir(2)], host_isa().cpu, "", host_isa().triple
    )
    assert objects == jit.compile_modules([_constant_ir(1), _constant_ir(2)], host_isa())
