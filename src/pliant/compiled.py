"""`pliant.compile`: an ONNX model becomes a session. Knows defaults and what sessions share, no compiler."""

import os
from collections.abc import Collection, Mapping
from functools import cache as remembered
from pathlib import Path
from typing import Any

import psutil

from pliant.errors import InputError
from pliant.kernels.isa import host_isa
from pliant.kernels.jit import Library
from pliant.kernels.pool import Pool
from pliant.models.onnx_file import open_onnx
from pliant.run.model import ModelOptions, ModelSession

__all__ = ["compile", "shared_pool"]


def compile(
    source: str | os.PathLike[str] | bytes | Any,
    *,
    dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    without: Collection[str] = (),
    images: int = 8,
    cache: Path | None = None,
) -> ModelSession:
    """A session that runs an ONNX model, given by its path, its bytes or as a ModelProto.

    `dims` fixes symbolic dimensions ({"batch": 1}); a dimension without a name is called "input.axis".
    The others are whatever is fed: the model is compiled for each new shape, and the last `images` of
    these are kept. `threads` default to the physical cores; sessions of equal `threads` share a pool.
    `without` names passes to leave out. Compiled kernels are kept in `cache`.

    Raises ModelError for a file that cannot be read or is damaged, GraphError for a model that cannot be
    compiled, InputError for options that make no sense.
    """
    n_threads = (psutil.cpu_count(logical=False) or 1) if threads is None else threads
    if n_threads < 1:
        raise InputError(f"{threads} threads cannot run anything; give at least 1.")
    model = open_onnx(source)
    library, pool = shared_pool(n_threads, cache)
    return ModelSession(model, pool, library, ModelOptions(dims or {}, without, images))


@remembered
def shared_pool(n_threads: int, cache: Path | None = None) -> tuple[Library, Pool]:
    """The kernels and threads all sessions of a process share; idle threads sleep and cost nothing."""
    library = Library(host_isa(), cache)
    return library, Pool(n_threads, library)
