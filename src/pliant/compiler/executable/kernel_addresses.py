"""Get the addresses of an image's kernels, compiled now or from the cache."""

import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

from pliant.compiler.executable.call import Kernel
from pliant.kernels.runtime.jit import Library
from pliant.kernels.version import source_version

_IMPORTED_S = time.time()


def load_kernels(kernels: Mapping[str, Kernel], library: Library) -> dict[str, int]:
    """The address of each kernel by name; missing kernels are compiled in one child process.

    A kernel found in the cache by the source version is loaded without generating its IR again.
    """
    version = lowering_version()
    if version is None:
        return library.load_functions({name: partial(k.ir, library.isa) for name, k in kernels.items()})
    noted = library.load_generated(
        {f"{version}\n{name}": partial(k.ir, library.isa) for name, k in kernels.items()}
    )
    return {name: noted[f"{version}\n{name}"][name] for name in kernels}


@cache
def lowering_version() -> str | None:
    """The version of the rules that name kernels; None if it is unknown."""
    return source_version(Path(__file__).parents[1] / "rules", _IMPORTED_S)
