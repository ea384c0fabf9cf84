"""`pliant.load`: open a compiled model as a session, without importing the compiler."""

import os
from functools import cache as remembered
from pathlib import Path

from pliant.api.model_name import model_name
from pliant.compiler.aot.compiled_directory import load_directory
from pliant.ir.dilation import Dilation
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.quantities import parse_bytes
from pliant.run.array_sessions.graph_session import GraphSession
from pliant.settings import cache_folder, thread_count


def load(
    directory: str | os.PathLike[str], *, threads: int | None = None, memory: str | int | None = None
) -> GraphSession:
    """Open a directory written by `pliant compile -o`. Compiles nothing; weights stay memory-mapped.

    `memory` limits what the session adds to the process: its activations. Raises StoreError naming the
    damaged file, KernelError if it was compiled for another CPU, BudgetError naming the least memory.
    """
    name = model_name(os.fspath(directory))
    return open_compiled(name, Path(directory), threads, memory=memory)


def open_compiled(
    name: str,
    path: Path,
    threads: int | None,
    dilation: Dilation = Dilation(),  # noqa: B008 - frozen
    *,
    memory: str | int | None = None,
) -> GraphSession:
    """Open a compiled directory; it runs `dilation` times slower. Raises as `load` does."""
    library, pool = shared_pool(threads)
    memory_bytes = None if memory is None else parse_bytes(memory)
    return GraphSession(name, load_directory(path), pool, library, dilation, memory_bytes=memory_bytes)


def shared_pool(threads: int | None = None, cache: Path | None = None) -> tuple[Library, ThreadPool]:
    """Return the kernels and threads that all sessions of a process share; idle threads sleep.

    Defaults come from `settings`. Raises InputError below 1 thread.
    """
    return _shared(thread_count(threads), cache_folder(cache))


@remembered
def _shared(n_threads: int, cache: Path) -> tuple[Library, ThreadPool]:
    library = Library(host_isa(), cache)
    return library, ThreadPool(n_threads, library)
