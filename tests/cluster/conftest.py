"""Kernels of this CPU, a thread for them, and a cache of compiled kernels."""

from collections.abc import Iterator

import pytest

from pliant.kernels.emit.isa import vector_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool


@pytest.fixture(scope="session")
def library() -> Library:
    return Library(vector_isa(), None)


@pytest.fixture
def pool(library: Library) -> Iterator[ThreadPool]:
    with ThreadPool(1, library) as pool:
        yield pool
