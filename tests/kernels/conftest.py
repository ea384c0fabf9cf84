"""Every kernel test runs on all ISA rows of this architecture."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.kernels.emit.isa import Isa
from pliant.kernels.runtime.jit import Library
from tests.kernels.tiles.amx_trap import library_of as tiles_library
from tests.rows import ROWS, isa_fixtures

isa, library = isa_fixtures(ROWS, ids=lambda isa: isa.name)


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session")
def library_of(kernel_cache: Path) -> Callable[[Isa], Library]:
    """The session's library of a row; AMX runs by a handler of its instructions where the CPU lacks it."""
    made: dict[Isa, Library] = {}

    def library(isa: Isa) -> Library:
        if isa not in made:
            made[isa] = tiles_library(isa, kernel_cache)
        return made[isa]

    return library
