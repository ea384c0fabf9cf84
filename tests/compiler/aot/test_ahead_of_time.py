"""Ahead-of-time output: built, run without Python, compared with the session; for this CPU and for Arm."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pliant.compiler.aot.ahead_of_time import write_c
from pliant.compiler.aot.c_library import link
from pliant.compiler.aot.compiled_files import OBJECTS
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.errors import InputError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import NEON, Isa, host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.graph.array_stage import open_image
from tests.compiler.aot.foreign_rows import foreign_rows, isa_id

FEEDS = {"x": np.linspace(-2, 2, 5 * 7, dtype=np.float32).reshape(5, 7)}
MALLOC_COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static long n;
void *malloc(size_t size) {
    static void *(*real)(size_t);
    if (!real) real = dlsym(RTLD_NEXT, "malloc");
    n++;
    return real(size);
}
long allocations(void) { return n; }
"""
COUNTED = """
#include <stdio.h>
#include <stdlib.h>
#include "small.h"
extern long allocations(void);
int main(int n, char **words) {
    static float x[35], y[35], z[7];
    const void *inputs[] = {x};
    void *outputs[] = {y, z};
    struct small *model = small_open(words[1], 2);
    long before = allocations();
    for (int i = 0; i < 100; i++) small_run(model, inputs, outputs);
    long after = allocations();
    small_close(model);
    printf("%ld %ld\\n", before, after - before);
    return 0;
}
"""


def a_graph() -> Graph:
    """Arithmetic with a constant, a transpose, and an output that is an alias: every kind of place."""
    f = "float32"
    types = {
        "x": TensorType(f, (5, 7)),
        "w": TensorType(f, (7,)),
        "a": TensorType(f, (5, 7)),
        "b": TensorType(f, (7, 5)),
        "y": TensorType(f, (7, 5)),
        "z": TensorType(f, (1, 7)),
        "s": TensorType("int64", (2,)),
    }
    nodes = (
        Node("Add", ("x", "w"), ("a",)),
        Node("Transpose", ("a",), ("b",), {"perm": (1, 0)}),
        Node("Tanh", ("b",), ("y",)),
        Node("Reshape", ("w", "s"), ("z",)),
    )
    constants = {"w": np.arange(7, dtype=np.float32), "s": np.array([1, 7])}
    return Graph(nodes, ("x",), ("y", "z"), types, constants)


def a_look_up() -> Graph:
    """Two of five numbers, by their indices."""
    types = {
        "x": TensorType("float32", (5,)),
        "i": TensorType("int64", (2,)),
        "y": TensorType("float32", (2,)),
    }
    return Graph((Node("Gather", ("x", "i"), ("y",), {"axis": 0}, "look up"),), ("x", "i"), ("y",), types)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder of its own; libraries are loaded from it, so it outlives each test."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def expected() -> np.ndarray:
    """What a session on the same graph answers: all outputs' values, one after another."""
    isa = host_isa()
    library = Library(isa)
    with ThreadPool(1, library) as pool:
        session = open_image(make_image(a_graph(), Target(isa)), pool, library)
        return np.concatenate([a.ravel() for a in session.run(FEEDS).values()])


def run_example(folder: Path, compiler: str, runner: list[str]) -> np.ndarray:
    """Build the example by hand as the CMake file would, feed it, and read what it prints."""
    program = folder / "example"
    command = [
        compiler,
        "-std=gnu11",
        "example.c",
        "-L.",
        "-lsmall",
        "-Wl,-rpath,$ORIGIN",
        "-o",
        str(program),
    ]
    subprocess.run(command, cwd=folder, check=True)
    (folder / "x.bin").write_bytes(FEEDS["x"].tobytes())
    command = [*runner, str(program), str(folder / "small.safetensors"), str(folder / "x.bin")]
    printed = subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    return np.frombuffer(printed, np.float32)


@pytest.mark.parametrize("isa", [host_isa(), NEON], ids=lambda isa: isa.name)
def test_the_c_library_answers_as_the_session_does(isa: Isa, folder: Path) -> None:
    """No Python at run time, on this CPU and on 64-bit Arm (emulated)."""
    is_arm = isa.name == "neon"
    compiler = "aarch64-linux-gnu-gcc" if is_arm else "cc"
    runner = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"] if is_arm else []
    for tool in (compiler, *runner[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    out = folder / isa.name
    emitted = write_c(make_image(a_graph(), Target(isa, 2)), "small", out)
    assert emitted.library == out / "libsmall.so", emitted.reason
    np.testing.assert_allclose(run_example(out, compiler, runner), expected(), rtol=1e-6, atol=1e-6)


def test_the_first_error_of_the_compiler_is_told(folder: Path) -> None:
    """Its last line is often a marker below the source."""
    if shutil.which("cc") is None:
        pytest.skip("no cc here")
    out = folder / "wrong"
    (out / OBJECTS).mkdir(parents=True)
    (out / "wrong.c").write_text("int x = missing;\n")
    (out / "wrong.map").write_text("{ global: x; };\n")
    library, reason = link(out, "wrong", host_isa(), ["wrong.c"])
    assert library is None
    assert "error" in reason
    assert "missing" in reason


def test_nothing_is_allocated_after_opening(folder: Path) -> None:
    """A hundred runs with every malloc counted (FluidML, Table 5)."""
    if shutil.which("cc") is None:
        pytest.skip("no cc here")
    out = folder / "counted"
    write_c(make_image(a_graph(), Target(host_isa(), 2)), "small", out)
    (out / "counter.c").write_text(MALLOC_COUNTER)
    (out / "counted.c").write_text(COUNTED)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "counter.c", "-o", "libcounter.so", "-ldl"], cwd=out, check=True
    )
    link = ["-L.", "-lcounter", "-lsmall", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(["cc", "counted.c", *link, "-o", "counted"], cwd=out, check=True)
    done = subprocess.run(
        ["./counted", "small.safetensors"], cwd=out, check=True, capture_output=True, text=True
    )
    before, during = map(int, done.stdout.split())
    assert before > 0, "the counter saw the opening"
    assert during == 0


def test_another_models_weights_are_refused(folder: Path) -> None:
    """A file of the wrong size or header would be read as weights: open fails with EINVAL."""
    if shutil.which("cc") is None:
        pytest.skip("no cc here")
    out = folder / "refused"
    write_c(make_image(a_graph(), Target(host_isa())), "small", out)
    weights = out / "small.safetensors"
    data = bytearray(weights.read_bytes())
    data[12] ^= 1
    for broken in (bytes(data), bytes(data[:-1]), b""):
        weights.write_bytes(broken)
        with pytest.raises(subprocess.CalledProcessError):
            run_example(out, "cc", [])


@pytest.mark.parametrize("isa", foreign_rows(), ids=isa_id)
def test_a_library_for_another_processor_is_not_opened(isa: Isa, folder: Path) -> None:
    """Its kernels would end the program with an illegal instruction."""
    if shutil.which("cc") is None:
        pytest.skip("no cc here")
    out = folder / isa_id(isa)
    write_c(make_image(a_graph(), Target(isa)), "small", out)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_example(out, "cc", [])
    assert failed.value.returncode == 1, "it was opened, and died of a signal"
    assert "Operation not supported" in failed.value.stderr.decode()


def test_a_name_that_c_cannot_spell_and_a_foreign_directory_are_refused(folder: Path) -> None:
    """Nothing of the user's is overwritten, and no source is written that cannot compile."""
    image = make_image(a_graph(), Target(host_isa()))
    with pytest.raises(InputError, match="letters"):
        write_c(image, "a-b", folder / "x")
    (folder / "mine").mkdir()
    (folder / "mine" / "file").write_text("kept")
    with pytest.raises(InputError, match="not empty"):
        write_c(image, "small", folder / "mine")
    assert (folder / "mine" / "file").read_text() == "kept"


def test_an_output_may_be_an_input(folder: Path) -> None:
    """An input that is also the second output: each keeps its own number among inputs and outputs."""
    graph = a_graph()
    graph = replace(graph, outputs=("y", "x"))
    out = folder / "through"
    emitted = write_c(make_image(graph, Target(host_isa(), 2)), "small", out)
    assert emitted.library, emitted.reason
    np.testing.assert_array_equal(run_example(out, "cc", [])[35:], FEEDS["x"].ravel())


@pytest.fixture(scope="module")
def built(folder: Path) -> Path:
    """A directory with the library for this CPU and its example program."""
    if shutil.which("cc") is None:
        pytest.skip("no cc here")
    out = folder / "built"
    write_c(make_image(a_graph(), Target(host_isa(), 2)), "small", out)
    run_example(out, "cc", [])
    return out


def said(folder: Path, *words: str) -> tuple[int, bytes, str]:
    """Exit status, standard output and standard error of the example program."""
    done = subprocess.run(["./example", *words], cwd=folder, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--help",),
        ("-t",),
        ("-t", "0", "small.safetensors"),
        ("-t", "many", "small.safetensors"),
        ("small.safetensors", "x.bin", "x.bin"),
    ],
    ids=" ".join,
)
def test_the_example_says_how_it_is_used(words: tuple[str, ...], built: Path) -> None:
    """It is the first thing a user of the library starts."""
    status, printed, complaint = said(built, *words)
    assert (status, printed) == (2, b"")
    assert "usage" in complaint


def test_any_number_of_threads_gives_the_same_bits(built: Path) -> None:
    """More than the program was compiled for too: scratch is per thread, and allocated when opened."""
    answers = [said(built, "-t", str(n), "small.safetensors", "x.bin") for n in (1, 2, 5)]
    assert {status for status, _, _ in answers} == {0}
    assert len({printed for _, printed, _ in answers}) == 1


def test_the_example_names_a_file_that_does_not_fit(built: Path) -> None:
    """Missing weights, a missing input, an input of another size."""
    (built / "short.bin").write_bytes(b"1234")
    for words, named in (
        (("nowhere.safetensors",), "nowhere.safetensors"),
        (("small.safetensors", "nowhere.bin"), "nowhere.bin"),
        (("small.safetensors", "short.bin"), "140 bytes of input x"),
    ):
        status, _, complaint = said(built, *words)
        assert status == 1
        assert named in complaint


def test_an_index_outside_is_an_error_of_the_c_library(folder: Path) -> None:
    """A C program that feeds a wrong token id must not print an answer to another one."""
    if shutil.which("cc") is None:
        pytest.skip("no cc here")
    out = folder / "looked-up"
    write_c(make_image(a_look_up(), Target(host_isa(), 2)), "small", out)
    command = ["cc", "-std=gnu11", "example.c", "-L.", "-lsmall", "-Wl,-rpath,$ORIGIN", "-o", "example"]
    subprocess.run(command, cwd=out, check=True)
    (out / "x.bin").write_bytes(np.arange(5, dtype=np.float32).tobytes())
    for places, answer in (([-5, 4], [0.0, 4.0]), ([0, 5], None), ([-6, 0], None)):
        (out / "i.bin").write_bytes(np.array(places).tobytes())
        status, printed, complaint = said(out, "small.safetensors", "x.bin", "i.bin")
        if answer is None:
            assert (status, printed) == (1, b"")
            assert "outside its dimension" in complaint
        else:
            assert (status, np.frombuffer(printed, np.float32).tolist()) == (0, answer)


TWICE = """
#include <errno.h>
#include <stdio.h>
#include "small.h"
int main(int n, char **words) {
    float x[35], y[2][35], z[2][7];
    for (int i = 0; i < 35; i++) x[i] = i * 0.1f;
    const void *inputs[] = {x};
    if (small_open("nowhere", 1) || errno != ENOENT) return 1;
    errno = 0;
    if (small_open(words[0], 1) || errno != EINVAL) return 2;
    errno = 0;
    if (small_open(words[1], 0) || errno != EINVAL) return 3;
    small_close(NULL);
    struct small *both[] = {small_open(words[1], 2), small_open(words[1], 1)};
    if (!both[0] || !both[1]) return 4;
    for (int turn = 0; turn < 20; turn++)
        for (int i = 0; i < 2; i++) {
            void *outputs[] = {y[i], z[i]};
            small_run(both[i], inputs, outputs);
        }
    small_close(both[0]);
    void *outputs[] = {y[1], z[1]};
    small_run(both[1], inputs, outputs);
    small_close(both[1]);
    for (int i = 0; i < 35; i++)
        if (y[0][i] != y[1][i]) return 5;
    return 0;
}
"""


def test_a_library_opens_twice_and_refuses_what_is_no_weights(built: Path) -> None:
    """Two models of one library side by side, one closed before the other; failures say why in errno."""
    (built / "twice.c").write_text(TWICE)
    link = ["-L.", "-lsmall", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(["cc", "-std=gnu11", "twice.c", *link, "-o", "twice"], cwd=built, check=True)
    assert subprocess.run(["./twice", "small.safetensors"], cwd=built, check=False).returncode == 0


@pytest.mark.parametrize("isa", [host_isa(), NEON], ids=lambda isa: isa.name)
def test_cmake_builds_what_is_written(isa: Isa, folder: Path) -> None:
    """From a clean directory, for this machine and for another with its compiler named."""
    is_arm = isa.name == "neon"
    compiler = "aarch64-linux-gnu-gcc" if is_arm else "cc"
    for tool in ("cmake", "make", compiler, *(["qemu-aarch64"] if is_arm else [])):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    out = folder / f"cmake_{isa.name}"
    write_c(make_image(a_graph(), Target(isa, 2)), "small", out)
    (out / "libsmall.so").unlink()
    system = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"] if is_arm else []
    options = [f"-DCMAKE_C_COMPILER={compiler}", *system]
    for words in (["-S", str(out), "-B", str(out / "b"), *options], ["--build", str(out / "b")]):
        subprocess.run(["cmake", *words], check=True, capture_output=True)
    (out / "x.bin").write_bytes(FEEDS["x"].tobytes())
    runner = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"] if is_arm else []
    command = [*runner, str(out / "b" / "example"), str(out / "small.safetensors"), str(out / "x.bin")]
    printed = subprocess.run(command, check=True, capture_output=True).stdout
    np.testing.assert_allclose(np.frombuffer(printed, np.float32), expected(), rtol=1e-6, atol=1e-6)


def test_the_source_compiles_without_a_warning(built: Path) -> None:
    """Firmware is often built with warnings as errors."""
    warnings = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wstrict-prototypes", "-Werror")
    command = ["cc", "-std=c11", "-O2", "-fsyntax-only", *warnings, "small.c"]
    done = subprocess.run(command, cwd=built, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
