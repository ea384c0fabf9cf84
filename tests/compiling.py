"""Compile kernels in the tests' own process, each text once for a checkout.

pliant compiles in a child process, so that LLVM's 60 MB leave with it; each child takes 0.12 s of CPU time to
start, and the tests compile about a thousand kernels. tests/kernels/runtime/test_jit.py tests the
child itself.
"""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from inspect import getsource
from pathlib import Path

import llvmlite

from pliant.kernels.emit.isa import Isa
from pliant.kernels.runtime import compile_child, jit

in_a_child = jit.compile_modules
"""What pliant itself does."""


def compile_here(folder: Path) -> None:
    """From now on this process compiles kernels itself, and keeps the objects in `folder`.

    Call it before a module of pliant imports `compile_modules` by name. Several processes may share `folder`.
    """
    compiler = f"{llvmlite.__version__}\n{getsource(compile_child)}"

    def path(text: str, isa: Isa) -> Path:
        content = "\n".join((compiler, isa.cpu, isa.features, isa.triple, text))
        return folder / hashlib.sha256(content.encode()).hexdigest()

    def compile_modules(texts: Sequence[str], isa: Isa) -> list[bytes]:
        return [_read(path(text, isa)) or _made(path(text, isa), text, isa) for text in texts]

    folder.mkdir(parents=True, exist_ok=True)
    jit.compile_modules = compile_modules


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _made(path: Path, text: str, isa: Isa) -> bytes:
    try:
        (data,) = compile_child.compile_objects([text], isa.cpu, isa.features, isa.triple)
    except RuntimeError:
        return in_a_child([text], isa)[0]  # raises what users see
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
    return data
