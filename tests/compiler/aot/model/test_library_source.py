"""The C source of a library, as a firmware's build and a careless caller use it."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.api.compile_library import LibraryReport
from tests.compiler.aot.model.c_model import CModel
from tests.compiler.aot.model.conftest import Build


@pytest.fixture(scope="module")
def library(tiny_stores: Callable[..., Path], build_library: Build) -> LibraryReport:
    return build_library(tiny_stores())


@pytest.mark.parametrize("standard", ["c11", "gnu17"])
def test_the_source_compiles_without_a_warning(standard: str, library: LibraryReport) -> None:
    """Firmware is often built with warnings as errors."""
    warnings = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wstrict-prototypes", "-Werror")
    sources = ["tables.c", *(f"runtime/{path.name}" for path in (library.output / "runtime").glob("*.c"))]
    command = ["cc", f"-std={standard}", "-O2", "-fsyntax-only", *warnings, "-I.", *sources]
    done = subprocess.run(command, cwd=library.output, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_known_about_no_model(library: LibraryReport) -> None:
    """A failed open gives null, and a caller may ask before it checks."""
    about = ctypes.CDLL(str(library.library)).pliant_model_about
    about.restype = ctypes.c_void_p
    assert about(None) is None


def test_scratch_is_of_the_threads_that_it_was_opened_with(library: LibraryReport) -> None:
    """Firmware reads there what a model costs; it may give it more threads than were planned with."""
    assert library.library is not None
    found = {}
    for n_threads in (0, 1, 2, 5):
        with CModel(library.library, library.output, n_threads) as model:
            found[n_threads] = model.about.scratch_bytes
    assert found[1] > 0
    assert found == {n: (n or 2) * found[1] for n in found}
