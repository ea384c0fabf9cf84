"""`pliant.load`: a compiled model becomes a session. Knows what sessions share, and imports no compiler."""

import os
from functools import cache as remembered
from pathlib import Path

from pliant.compile.saved import open_saved
from pliant.errors import InputError
from pliant.kernels.isa import host_isa
from pliant.kernels.jit import Library
from pliant.kernels.pool import Pool
from pliant.run.compiled import CompiledSession


def load(directory: str | os.PathLike[str], *, threads: int | None = None) -> CompiledSession:
    """A session on what `pliant compile -o` wrote: nothing is compiled or packed, weights stay mapped.

    Raises StoreError naming the file at fault, KernelError when it was compiled for another CPU.
    """
    saved = open_saved(Path(directory))
    _, pool = shared_pool(n_threads(threads))
    return CompiledSession(saved.program, saved.weights, saved.addresses, pool)


def n_threads(asked: int | None) -> int:
    """`asked`, or the physical cores. Raises InputError below 1."""
    n = _physical_cores() if asked is None else asked
    if n < 1:
        raise InputError(f"{asked} threads cannot run anything; give at least 1.")
    return n


def shared_pool(n_threads: int, cache: Path | None = None) -> tuple[Library, Pool]:
    """The kernels and threads all sessions of a process share; idle threads sleep and cost nothing."""
    return _shared(n_threads, cache)


@remembered
def _shared(n_threads: int, cache: Path | None) -> tuple[Library, Pool]:
    library = Library(host_isa(), cache)
    return library, Pool(n_threads, library)


def _physical_cores() -> int:
    import psutil  # 2 MB, where nobody says how many threads

    return psutil.cpu_count(logical=False) or 1
