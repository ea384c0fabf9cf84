"""Every kernel test runs on all ISA rows; what this CPU lacks runs through its portable lowering."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, portable
from pliant.kernels.runtime.jit import Library


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session", params=[AVX512, AVX2, X86_64], ids=lambda isa: isa.name)
def isa(request: pytest.FixtureRequest) -> Isa:
    return portable(request.param)


@pytest.fixture(scope="session")
def library_of(kernel_cache: Path) -> Callable[[Isa], Library]:
    """The session's library of a row."""
    made: dict[Isa, Library] = {}

    def library(isa: Isa) -> Library:
        return made.setdefault(isa, Library(isa, kernel_cache))

    return library


@pytest.fixture(scope="session")
def library(isa: Isa, library_of: Callable[[Isa], Library]) -> Library:
    return library_of(isa)
