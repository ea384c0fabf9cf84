"""Turn IR text into function addresses: compile in a child process, cache on disk."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import final

import llvmlite  # for its version only: LLVM takes 45 MB

from pliant.errors import KernelError
from pliant.kernels.emit.isa import Isa, is_runnable
from pliant.kernels.runtime import compile_child
from pliant.kernels.runtime.fork_safe_lock import ForkSafeLock
from pliant.kernels.runtime.loader import load
from pliant.kernels.version import generator_version
from pliant.settings import cache_folder

_DIGEST_BYTES = 32


@final
class Library:
    """Kernels of one ISA row, compiled on first use; threads may share it.

    A compiled module is a file in the folder `kernels` of the cache folder (settings.cache_folder), named by
    CPU row, llvmlite version and the IR's hash, with a leading checksum: a damaged file is compiled again,
    concurrent processes are safe, and with a read-only folder kernels are compiled each time. Code stays
    mapped until the process ends. `compiler` identifies what, besides its text, determines a kernel's code.
    """

    def __init__(self, isa: Isa, cache: Path | None = None) -> None:
        if not is_runnable(isa):
            raise KernelError(f"this CPU cannot run {isa.name} code; use host_isa() or to_portable(isa).")
        self.isa = isa
        self.cache = cache_folder(cache)
        self.compiler = f"{isa.triple}\n{isa.cpu}\n{isa.features}\nllvmlite {llvmlite.__version__}"
        self._loaded: dict[Path, Mapping[str, int]] = {}
        self._mutex = ForkSafeLock()

    def load_function(self, name: str, ir: Callable[[], str]) -> int:
        """The address of the function `name`, defined in the module whose text `ir()` gives.

        The text alone determines the loaded code, so different kernels with equal names do not conflict.
        Raises KernelError for IR that LLVM rejects.
        """
        return self.load_functions({name: ir})[name]

    def load_functions(self, wanted: Mapping[str, Callable[[], str]]) -> dict[str, int]:
        """As `load_function`, for several functions at once: those not cached are compiled in one child
        process.
        """
        texts = {name: ir() for name, ir in wanted.items()}
        modules = self._load_modules(
            {name: (self._path(text), partial(str, text)) for name, text in texts.items()}
        )
        return {name: _address(symbols, name) for name, symbols in modules.items()}

    def load_generated(self, wanted: Mapping[str, Callable[[], str]]) -> dict[str, Mapping[str, int]]:
        """The symbols of modules written by pliant's generators, by a name that identifies the module up to
        the ISA row.

        Generators are pure: a note file beside the objects records the text that a source version wrote for a
        name. `ir()` is called only if there is no note, its object is missing, or the source version is
        unknown.
        """
        source = generator_version()
        texts = {name: cache(ir) for name, ir in wanted.items()}  # generated at most once
        return self._load_modules(
            {name: (self._noted_path(source, name, ir), ir) for name, ir in texts.items()}
        )

    def _noted_path(self, source: str | None, name: str, ir: Callable[[], str]) -> Path:
        """The path of a generated module's object, from its note or else from its text."""
        if source is None:
            return self._path(ir())
        note = self._path(f"{source}\n{self.isa!r}\n{name}").with_suffix(".note")
        noted = _read(note)
        if noted is not None:
            return note.with_name(noted.decode())
        path = self._path(ir())
        _write(note, path.name.encode())
        return path

    def _load_modules(
        self, wanted: Mapping[str, tuple[Path, Callable[[], str]]]
    ) -> dict[str, Mapping[str, int]]:
        with self._mutex.lock:
            missing = {path: ir for path, ir in wanted.values() if path not in self._loaded}
            for path, data in self._read_or_compile(missing).items():
                self._loaded[path] = load(data)
            return {name: self._loaded[path] for name, (path, _) in wanted.items()}

    def _read_or_compile(self, wanted: Mapping[Path, Callable[[], str]]) -> dict[Path, bytes]:
        """The objects of modules, from their files, or compiled and written there."""
        cached = {path: data for path in wanted if (data := _read(path)) is not None}
        missing = [path for path in wanted if path not in cached]
        if not missing:
            return cached
        made = dict(zip(missing, compile_modules([wanted[p]() for p in missing], self.isa), strict=True))
        for path, data in made.items():
            _write(path, data)
        return cached | made

    def _path(self, text: str) -> Path:
        digest = hashlib.sha256(f"{self.compiler}\n{text}".encode()).hexdigest()[:40]
        return self.cache / "kernels" / f"{self.isa.name}-{digest}.o"


def _address(symbols: Mapping[str, int], name: str) -> int:
    if name not in symbols:
        raise KernelError(f"the IR given for {name} defines only {', '.join(symbols)}.")
    return symbols[name]


def compile_modules(texts: Sequence[str], isa: Isa) -> list[bytes]:
    """One object per IR text, made in a child process, or in this process if no child can be started."""
    request = json.dumps(
        {"texts": list(texts), "cpu": isa.cpu, "features": isa.features, "triple": isa.triple}
    )
    # -P keeps this folder's module names out of the child's import path.
    command = [sys.executable, "-P", compile_child.__file__]
    try:
        child = subprocess.run(command, input=request.encode(), capture_output=True, check=False)
    except OSError:
        return _compile_here(texts, isa)
    if child.returncode:
        raise KernelError(f"LLVM could not compile a kernel for {isa.name}: {_last_line(child.stderr)}")
    objects, at = [], 0
    for _ in texts:
        start = at + compile_child.LENGTH_BYTES
        at = start + int.from_bytes(child.stdout[at:start], "little")
        objects.append(child.stdout[start:at])
    return objects


def _compile_here(texts: Sequence[str], isa: Isa) -> list[bytes]:
    try:
        return compile_child.compile_objects(texts, isa.cpu, isa.features, isa.triple)
    except RuntimeError as error:
        raise KernelError(f"LLVM could not compile a kernel for {isa.name}: {error}") from error


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    about = next((i for i, line in enumerate(lines) if "Error" in line and not line.startswith(" ")), -1)
    return " ".join(lines[about:]) if lines else "the compiler said nothing"


def _read(path: Path) -> bytes | None:
    """A cached object or note; None if it is missing or its checksum is wrong."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return data if data and hashlib.sha256(data).digest() == digest else None


def _write(path: Path, data: bytes) -> None:
    """Write an object or note atomically; a folder that cannot be written is not an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
