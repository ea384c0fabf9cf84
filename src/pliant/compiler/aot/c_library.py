"""Link emitted C source and kernels as a shared library, if a C compiler for the target is available."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pliant import system
from pliant.compiler.aot.compiled_files import OBJECTS
from pliant.kernels.emit.isa import Isa


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The result: the directory, and the shared library or the reason why there is none."""

    directory: Path
    library: Path | None
    reason: str = ""


def compiler_triple(isa: Isa) -> str:
    """The target triple in the names of its compilers."""
    return isa.triple.replace("-unknown", "")


def link(
    directory: Path, name: str, isa: Isa, sources: Sequence[str], flags: Sequence[str] = ()
) -> tuple[str | None, str]:
    """The shared library's file name, or None and the reason.

    `sources` and all kernels of `directory` are linked; `NAME.map` lists the exported symbols.
    """
    compiler = "cc" if isa.architecture == system.machine() else f"{compiler_triple(isa)}-gcc"
    if shutil.which(compiler) is None:
        return None, f"no {compiler} here: build it with CMakeLists.txt where there is one"
    library = f"lib{name}.so"
    command = [compiler, "-std=c11", "-O2", "-fPIC", "-shared", "-pthread", *sources]
    command += [f"{OBJECTS}/{path.name}" for path in sorted((directory / OBJECTS).iterdir())]
    command += [f"-Wl,--version-script={name}.map,-soname,{library}", "-o", library, *flags]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        first_error = next((line for line in lines if "error" in line), lines[-1] if lines else "")
        return None, f"{compiler} failed: {first_error}"
    return library, ""
