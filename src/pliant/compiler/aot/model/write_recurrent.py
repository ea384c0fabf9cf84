"""Write a recurrent model as a C library: weights in memory, word vectors read on demand."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from pliant.compiler.aot.c_library import BuildResult
from pliant.compiler.aot.c_source import quote
from pliant.compiler.aot.compiled_files import write_weights
from pliant.compiler.aot.model.form_source import Spaces, forms_source
from pliant.compiler.aot.model.library import (
    TABLES,
    LibraryDescription,
    LibrarySizes,
    data_source,
    finish_library,
    library_draft,
)
from pliant.compiler.aot.model.resident_tables import array_offsets, write_arrays
from pliant.compiler.aot.model.text_tables import TextTables
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.recurrent_stages import recurrent_form
from pliant.compiler.executable.stage import StageForm
from pliant.ir.executable import ARENA
from pliant.models.recurrent.recurrent_graph import LOGITS, POOLED, STATES, VECTORS, recurrent_graph
from pliant.models.recurrent.recurrent_source import RecurrentSource

WORDS = "words.safetensors"
_FILES = ("recurrent.h", "recurrent.c")


@dataclass(frozen=True, slots=True)
class RecurrentBuild:
    """The library, and the bytes that it allocates at open."""

    result: BuildResult
    sizes: LibrarySizes


def write_recurrent(
    source: RecurrentSource, name: str, most_tokens: int, target: Target, text: TextTables | None, out: Path
) -> RecurrentBuild:
    """Write a recurrent model as the C library `name` into the new directory `out`, atomically.

    Raises InputError when `out` has other contents or cannot be written, or the name is not a C identifier.
    """
    spec = source.spec
    form = recurrent_form(recurrent_graph(spec, source.weights, most_tokens), target)
    with library_draft(out, name) as draft:
        layout, written = write_weights(form.image, draft / TABLES)
        text_source, text_bytes = ("", 0) if text is None else text.write(draft)
        activations = 4 * most_tokens * (spec.inputs + spec.width) + most_tokens * source.table[0].nbytes
        arena = form.program.arena_bytes
        sizes = LibrarySizes(
            0, 0, arena + activations, layout.n_bytes + text_bytes, form.program.scratch_bytes
        )
        about = LibraryDescription(
            name=name,
            labels=spec.labels,
            n_numbers=spec.features if spec.labels is None else len(spec.labels),
            is_normalized=False,
            most_tokens=most_tokens,
            vocab=spec.vocab,
            n_types=0,
            padding=None,
            n_threads=target.n_threads,
        )
        offsets = dict(zip(form.program.weights, layout.offsets, strict=True))
        tables = [
            text_source,
            forms_source([form], [_spaces(form, offsets)], most_tokens),
            _recurrent_source(source, form, draft),
            data_source(about, sizes, (written.n_bytes, written.xxh3), text is not None, "&RECURRENT"),
        ]
        result = finish_library(draft, out, name, target.isa, [form], _FILES, "\n".join(tables))
    return RecurrentBuild(result, sizes)


def _spaces(form: StageForm, weights: dict[str, int]) -> Spaces:
    answer = LOGITS if LOGITS in form.program.outputs else POOLED
    runtime = {ARENA: "SPACE_ARENA", VECTORS: "SPACE_WORDS", STATES: "SPACE_HIDDEN", answer: "SPACE_ANSWER"}
    return {x: (space, 0) for x, space in runtime.items()} | {
        x: ("SPACE_TABLES", at) for x, at in weights.items()
    }


def _recurrent_source(source: RecurrentSource, form: StageForm, draft: Path) -> str:
    """Write the word vectors; returns the description RECURRENT."""
    table = np.ascontiguousarray(source.table)
    hashes = np.array([xxhash.xxh3_64_intdigest(row.data) for row in table], np.uint64)
    layout, _ = write_arrays({"hashes": hashes, "rows": table}, draft / WORDS)
    at = array_offsets(layout)
    words = (
        f"{{{{{quote(WORDS)}, {layout.n_bytes}u, 0}}, {at['rows']}u, {table[0].nbytes}u, {at['hashes']}u}}"
    )
    spec, program = source.spec, form.program
    return "\n".join(
        [
            "static const struct recurrent RECURRENT = {",
            f"    {words}, {int(table.dtype == np.float16)}, {spec.inputs}u, {spec.width}u,",
            f"    {program.arena_bytes}u, {program.scratch_bytes}u, FORMS}};",
        ]
    )
