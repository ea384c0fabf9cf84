"""Write the directory of a model as a C library: sources, kernels, tables, an example, and the linked
library.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import sizeof
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from pliant.compiler.aot.c_library import BuildResult, compiler_triple, link
from pliant.compiler.aot.c_source import format_array, format_numbers, quote
from pliant.compiler.aot.compiled_files import draft_of, write_kernels
from pliant.compiler.aot.processor_features import PROCESSOR, feature_source, processor_header
from pliant.compiler.executable.encode_image import image_kernels
from pliant.compiler.executable.stage import StageForm
from pliant.errors import InputError
from pliant.kernels.emit.isa import Isa
from pliant.kernels.runtime.walker import PoolContext, UnitRange, walker_ir

TABLES = "tables.safetensors"
_RUNTIME = "runtime"
_HEADER = "pliant_model.h"
_API = ("open", "run", "run_ids", "encode", "about", "close")
_COMMON = ("model.c", "files.c", "xxh3.c", "pool.c", "words.c", "text.c", "normalize.c")
_HEADERS = ("runtime.h", "text.h")
_PROCESSOR = """const char *processor_lacks(void) {
    return missing_feature(FEATURES, N_FEATURES, STATES, USES_TILES);
}"""


@dataclass(frozen=True, slots=True)
class LibraryDescription:
    """The common part of a model's description: its name, inputs and outputs."""

    name: str
    labels: tuple[str, ...] | None
    n_numbers: int
    is_normalized: bool
    most_tokens: int
    vocab: int
    n_types: int
    padding: int | None
    """An id that inputs must not contain."""
    n_threads: int
    n_layers: int = 0
    n_slices: int = 0
    targets_s: tuple[float, ...] = ()
    manifest: tuple[str, str, int] | None = None
    """Path, identity, and the newest version that the library reads."""


@dataclass(frozen=True, slots=True)
class LibrarySizes:
    """The bytes that `pliant_model_open` allocates."""

    preload: int
    working: int
    arena: int
    tables: int
    scratch: int
    """Scratch bytes per thread."""


@contextmanager
def library_draft(out: Path, name: str) -> Iterator[Path]:
    """A directory that becomes `out` after all is written. Raises InputError as `draft_of`, and for an
    invalid name.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InputError(f"{name!r} cannot be the name of a C library: take letters, digits and underscores.")
    with draft_of(out, f"{name}.map") as draft:
        yield draft


def finish_library(
    draft: Path, out: Path, name: str, isa: Isa, forms: Sequence[StageForm], kind: Sequence[str], tables: str
) -> BuildResult:
    """Write `tables.c`, kernels, sources and the rest, and link.

    `kind` are the C files of this kind of model.
    """
    used = {x: kernel for form in forms for x, kernel in image_kernels(form.image).items()}
    write_kernels(used, isa, draft, {"walker": walker_ir(isa)})
    own = [path for path in kind if path.endswith(".c")]
    (draft / _RUNTIME).mkdir()
    for path in (*_COMMON, *_HEADERS, *kind):
        (draft / _RUNTIME / path).write_text(_template(path), encoding="utf-8")
    (draft / PROCESSOR).write_text(processor_header(), encoding="utf-8")
    (draft / _HEADER).write_text(_template(_HEADER), encoding="utf-8")
    sizes = [("context", sizeof(PoolContext)), ("slot", sizeof(UnitRange))]
    checks = [f'_Static_assert(sizeof(struct {x}) == {n}, "as the kernels have it");' for x, n in sizes]
    features = [feature_source(isa), _PROCESSOR]
    headers = ["#define _GNU_SOURCE", '#include "processor.h"']
    headers += [f'#include "{_RUNTIME}/{path}"' for path in ("text.h", *kind) if path.endswith(".h")]
    (draft / "tables.c").write_text("\n".join([*headers, *checks, *features, tables, ""]), encoding="utf-8")
    sources = ["tables.c", *(f"{_RUNTIME}/{path}" for path in (*_COMMON, *own))]
    known = {"name": name, "triple": compiler_triple(isa), "sources": " ".join(sources)}
    for path in ("example.c", "CMakeLists.txt"):
        (draft / path).write_text(Template(_template(path)).substitute(known), encoding="utf-8")
    exported = "; ".join(f"pliant_model_{x}" for x in _API)
    (draft / f"{name}.map").write_text(f"{{ global: {exported}; local: *; }};\n", encoding="utf-8")
    library, reason = link(draft, name, isa, sources, ("-I.", "-Wl,-Bsymbolic", "-lm"))
    return BuildResult(out, out / library if library else None, reason)


def data_source(
    about: LibraryDescription, sizes: LibrarySizes, tables: tuple[int, int], has_text: bool, kind: str
) -> str:
    """The description PLIANT_DATA. `tables` are bytes and XXH3 of their file, `kind` names the model-specific
    part.
    """
    labels, targets = about.labels or (), about.targets_s
    scratch = sizes.scratch * about.n_threads
    n_bytes = (sizes.preload, sizes.working, sizes.arena, sizes.tables, scratch)
    manifest = "NULL, NULL, 0"
    if about.manifest is not None:
        path, identity, newest = about.manifest
        manifest = f"{quote(path)}, {quote(identity)}, {newest}"
    return "\n".join(
        [
            format_array("char *const LABELS", [quote(x) for x in labels], "NULL"),
            format_numbers("uint64_t TARGETS", [round(t * 1e6) for t in targets]),
            "const struct model_data PLIANT_DATA = {",
            f"    {{{quote(about.name)}, {about.n_numbers}u, {len(labels)}u, LABELS, {about.most_tokens}u,",
            f"     {about.n_layers}u, {about.n_slices}u, {len(targets)}u, TARGETS,",
            f"     {', '.join(f'{n}u' for n in n_bytes)}, 0, {int(has_text)}}},",
            f"    {manifest}, {about.n_threads}, {int(about.is_normalized)},",
            f"    {about.vocab}u, {about.n_types}u, {-1 if about.padding is None else about.padding},",
            f"    {{{quote(TABLES)}, {tables[0]}u, UINT64_C({tables[1]})}},",
            f"    {'&TEXT' if has_text else 'NULL'}, {kind}}};",
        ]
    )


def _template(path: str) -> str:
    return (files("pliant.compiler.aot") / "c" / "model" / path).read_text(encoding="utf-8")
