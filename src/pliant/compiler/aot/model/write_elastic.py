"""Write an elastic model as a C library: plans for a ladder of targets, and its store's files."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pliant.arrays import Int
from pliant.compiler.aot.c_library import BuildResult
from pliant.compiler.aot.c_source import format_array, format_numbers, quote
from pliant.compiler.aot.model.form_source import Spaces, forms_source
from pliant.compiler.aot.model.library import (
    TABLES,
    LibraryDescription,
    LibrarySizes,
    data_source,
    finish_library,
    library_draft,
)
from pliant.compiler.aot.model.plan_source import LadderPlan, ReadTable, plans_source, preload_source
from pliant.compiler.aot.model.resident_tables import (
    array_offsets,
    is_table,
    linear_spaces,
    resident_arrays,
    resident_source,
    space_of,
    write_arrays,
)
from pliant.compiler.aot.model.text_tables import TextTables
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encoder_stages import plain_layers, word_format
from pliant.compiler.executable.stage import StageForm, coded_form
from pliant.compiler.executable.weight_inputs import FULL_CODES
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.executable import ALIGNMENT, ARENA
from pliant.ir.program import FULL, SliceRun
from pliant.kernels.attention.attention import block_rows
from pliant.models.encoder.encoder_graph import ComputeDtype, embedding_graph, head_graph, layer_graph, n_sums
from pliant.models.slice_shapes import slice_geometry
from pliant.models.word_table import QuantizedTable
from pliant.store.container import read_layout
from pliant.store.manifest import MANIFEST, VERSION, expected_slice_bytes
from pliant.store.read import Store
from pliant.store.store_files import EMBEDDINGS

STORE = "store"
_FILES = ("elastic.h", "elastic.c", "pipeline.c")
_RUNTIME = {
    ARENA: "SPACE_ARENA", "hidden": "SPACE_HIDDEN", "out": "SPACE_HIDDEN", "blocks": "SPACE_BLOCKS",
    "ids": "SPACE_IDS", "types": "SPACE_TYPES", "word": "SPACE_WORDS", "slices": "SPACE_SLICES",
    "sums": "SPACE_SUMS",
    "answer": "SPACE_ANSWER",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ElasticLibrary:
    """The library to write: plans over a store, by length and then by target, and the resident weights.

    `held` int [N, M] are the planes of each shard in the preload buffer, 32 for full fidelity; `preload` are
    the runs that read them. Inputs have at most `most_tokens`.
    """

    name: str
    store: Store
    plans: tuple[LadderPlan, ...]
    held: Int[np.ndarray, "N M"]
    preload: tuple[SliceRun, ...]
    most_tokens: int
    target: Target
    compute: ComputeDtype
    text: TextTables | None


@dataclass(frozen=True, slots=True)
class ElasticBuild:
    """The library, and the bytes that it allocates at open."""

    result: BuildResult
    sizes: LibrarySizes


def write_elastic(made: ElasticLibrary, out: Path) -> ElasticBuild:
    """Write `made` into the new directory `out`, atomically.

    Raises InputError when `out` has other contents or cannot be written, or the name is not a C identifier.
    """
    store, spec, isa = made.store, made.store.spec, made.target.isa
    layers = sorted({layer for plan in made.plans for layer in plan.layers})
    widths = sorted({plan.width for plan in made.plans})
    forms = _forms(made, widths)
    with library_draft(out, made.name) as draft:
        arrays = resident_arrays(store, layers, made.most_tokens, isa, made.compute)
        layout, written = write_arrays(arrays, draft / TABLES)
        text, text_bytes = ("", 0) if made.text is None else made.text.write(draft)
        _copy_store(store, layers, draft / STORE)
        reads = ReadTable(store)
        preload, preload_bytes, bounce_bytes = preload_source(made.preload, reads)
        form_of = {width: 2 + i for i, width in enumerate(widths)}
        plans, ring_bytes = plans_source(made.plans, form_of, reads)
        places = _arena(made, forms)
        tables_bytes = layout.n_bytes + text_bytes
        scratch = max(form.program.scratch_bytes for form in forms)
        sizes = LibrarySizes(preload_bytes, ring_bytes, places.n_bytes, tables_bytes, scratch)
        tables = [
            text,
            forms_source(forms, [_spaces(form) for form in forms], made.most_tokens),
            resident_source(
                array_offsets(layout), spec.n_layers, list(plain_layers(store.embeddings, store.head))
            ),
            plans,
            preload,
            format_array("struct extent EXTENTS", reads.extents, "{0, 0, 0, 0, 0, 0}"),
            format_array("struct piece PIECES", reads.pieces, "{0, 0, 0, 0, 0}"),
            _store_source(store, layers, made.held),
            _elastic_source(made, sizes, places, bounce_bytes, len(forms), forms[1]),
            data_source(
                _about(made), sizes, (written.n_bytes, written.xxh3), made.text is not None, "&ELASTIC"
            ),
        ]
        result = finish_library(draft, out, made.name, isa, forms, _FILES, "\n".join(tables))
    return ElasticBuild(result, sizes)


def _forms(made: ElasticLibrary, widths: Sequence[int]) -> list[StageForm]:
    """Embedding, head, and a layer of each width."""
    spec, tokens = made.store.spec, made.most_tokens
    graphs = [embedding_graph(spec, word_format(made.store.embeddings), tokens), head_graph(spec, tokens)]
    graphs += [layer_graph(spec, width, tokens, made.compute) for width in widths]
    forms = [coded_form(graph, made.target) for graph in graphs]
    for form in forms[2:]:
        assert form.image.may_replace("out", "hidden"), "a layer cannot run in place"
    return forms


def _spaces(form: StageForm) -> Spaces:
    named = {*form.program.inputs, *form.program.outputs, ARENA}
    linears = linear_spaces()
    return {
        x: (space_of(x) if is_table(x) else linears[x] if x in linears else _RUNTIME[x], 0)
        for x in sorted(named)
    }


@dataclass(frozen=True, slots=True)
class _ArenaPlaces:
    """The bytes of the arena, and where in it `hidden` and the layers' column sums begin.

    `n_sums` are the int32 of a layer's sums, 0 if the products need none.
    """

    n_bytes: int
    hidden: int
    sums: int
    n_sums: int


def _arena(made: ElasticLibrary, forms: Sequence[StageForm]) -> _ArenaPlaces:
    spec = made.store.spec
    hidden = _align(max(form.program.arena_bytes for form in forms))
    sums = _align(hidden + 4 * made.most_tokens * slice_geometry(spec).hidden)
    n = n_sums(spec) if made.compute == "int8" else 0
    return _ArenaPlaces(sums + 4 * n * spec.n_layers, hidden, sums, n)


def _align(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def _about(made: ElasticLibrary) -> LibraryDescription:
    spec = made.store.spec
    labels = spec.head.labels
    return LibraryDescription(
        name=made.name,
        labels=labels,
        n_numbers=spec.hidden if labels is None else len(labels),
        is_normalized=spec.head.is_normalized,
        most_tokens=made.most_tokens,
        vocab=spec.vocab,
        n_types=spec.n_types,
        padding=spec.position_offset - 1 if spec.family == "roberta" else None,
        n_threads=made.target.n_threads,
        n_layers=spec.n_layers,
        n_slices=spec.n_heads,
        targets_s=tuple(sorted({plan.target_s for plan in made.plans})),
        manifest=(f"{STORE}/{MANIFEST}", made.store.identity, VERSION),
    )


def _copy_store(store: Store, layers: Sequence[int], out: Path) -> None:
    """Copy the files that the library reads at run time; the manifest identifies their model."""
    out.mkdir()
    for name in (MANIFEST, EMBEDDINGS, *(store.manifest.layers[layer].file for layer in layers)):
        shutil.copyfile(store.path / name, out / name)


def _store_source(store: Store, layers: Sequence[int], held: Int[np.ndarray, "N M"]) -> str:
    """The arrays LAYER_FILES, HASHES and HELD."""
    spec, manifest = store.spec, store.manifest
    files = []
    for number, layer in enumerate(manifest.layers):
        entry = manifest.file(layer.file)
        name = quote(f"{STORE}/{entry.name}") if number in layers else "NULL"
        files.append(f"{{{name}, {entry.n_bytes}u, 0}}")
    hashes = np.zeros((spec.n_layers, FULL + 1, spec.n_heads), np.uint64)
    for number, layer in enumerate(manifest.layers):
        for part in layer.parts:
            hashes[number, part.part] = [int(h, 16) for h in part.xxh3]
    masks = np.where(held == FULL_BITS, 1 << FULL, (1 << np.minimum(held, FULL)) - 1)
    return "\n".join(
        [
            format_array("struct file LAYER_FILES", files),
            format_numbers("uint64_t HASHES", hashes.ravel().tolist()),
            format_numbers("uint8_t HELD", masks.ravel().tolist()),
        ]
    )


def _elastic_source(
    made: ElasticLibrary,
    sizes: LibrarySizes,
    places: _ArenaPlaces,
    bounce_bytes: int,
    n_forms: int,
    head: StageForm,
) -> str:
    store, spec = made.store, made.store.spec
    geometry = slice_geometry(spec)
    file = f"{{{quote(f'{STORE}/{EMBEDDINGS}')}, {store.manifest.file(EMBEDDINGS).n_bytes}u, 0}}"
    words, row_bytes, row_hashes = _word_table(store)
    slice_bytes = ", ".join(str(expected_slice_bytes(spec, part)) for part in range(FULL + 1))
    fields = {
        "layer_files": "LAYER_FILES",
        "words": f"{{{file}, {words}u, {row_bytes}u, {row_hashes}u}}",
        **{"n_layers": spec.n_layers, "n_slices": spec.n_heads, "slice_bytes": f"{{{slice_bytes}}}"},
        **{"full_code": FULL_CODES[spec.precision], "hashes": "HASHES", "held": "HELD"},
        **{"preload": "PRELOAD", "extents": "EXTENTS", "pieces": "PIECES"},
        "n_preload": "sizeof PRELOAD / sizeof *PRELOAD" if made.preload else 0,
        **{"preload_bytes": f"{sizes.preload}u", "bounce_bytes": f"{bounce_bytes}u"},
        **{
            "ring_bytes": f"{sizes.working}u",
            "arena_bytes": f"{sizes.arena}u",
            "hidden_at": f"{places.hidden}u",
        },
        **{"sums_at": f"{places.sums}u", "n_sums": places.n_sums},
        **{"scratch_bytes": f"{sizes.scratch}u", "plans": "PLANS", "n_plans": len(made.plans)},
        **{"n_forms": n_forms, "block_rows": block_rows(made.target.isa), "forms": "FORMS"},
        **{"places": "PLACES", "decoders": "DECODERS", "outliers": "OUTLIERS"},
        **{"outlier_columns": geometry.column_groups + 1, "linears": "LINEARS"},
        "n_linears": len(plain_layers(store.embeddings, store.head)),
        "n_answer": head.program.outputs["answer"].size,
    }
    lines = [f"    .{name} = {value}," for name, value in fields.items()]
    return "\n".join(["static const struct elastic ELASTIC = {", *lines, "};"])


def _word_table(store: Store) -> tuple[int, int, int]:
    """The start of the word table's rows in their file, a row's bytes, and the start of the rows' hashes."""
    path, table = store.path / EMBEDDINGS, store.embeddings.word
    entry = store.manifest.file(EMBEDDINGS)
    with path.open("rb") as file:
        data = file.read(entry.n_bytes)
    found = read_layout(path, data)
    is_coded = isinstance(table, QuantizedTable)
    rows = table.codes if isinstance(table, QuantizedTable) else table.values
    name = "word.codes" if is_coded else "word"
    return found[name][2], rows[0].nbytes, found["word.xxh3"][2]
