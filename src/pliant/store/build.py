"""Build a store from a checkpoint: written under a temporary name, then renamed."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import xxhash

from pliant.errors import StoreError
from pliant.ir.bitwidths import BITS
from pliant.ir.program import FULL
from pliant.models.spec import ModelSpec, Precision, tensor_shapes
from pliant.models.word_table import QuantizedTable
from pliant.store.atomic_directory import atomic_directory, clear_leftovers
from pliant.store.coding.encode_layer import (
    RESIDENT_ARRAYS,
    EncodedLayer,
    ResidentLayer,
    encode_layer,
    to_precision,
)
from pliant.store.coding.quantize import Quantizer
from pliant.store.coding.shard_order import Cell, file_order
from pliant.store.container import (
    BLOCK,
    FileDigest,
    FileLayout,
    Opener,
    TensorField,
    dtype_name,
    lay_out,
    write_file,
)
from pliant.store.manifest import (
    FORMAT,
    VERSION,
    AccuracyTable,
    FileEntry,
    LayerEntry,
    Manifest,
    PartEntry,
    check_bits,
    expected_slice_bytes,
    identity_of,
    stored_parts,
    write_manifest,
)
from pliant.store.store_files import EMBEDDINGS, HEAD, RESIDENT

TOKENIZER = "tokenizer.json"


@runtime_checkable
class WeightSource(Protocol):
    """Where weights come from: a checkpoint on disk, or arrays in a test."""

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def directory(self) -> Path: ...
    def tensor(self, name: str, /) -> np.ndarray: ...
    def embedding_codes(self) -> QuantizedTable | None: ...


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """`done` of `total` equal shares of the work are finished; `what` is the next one."""

    done: int
    total: int
    what: str


def build(
    checkpoint: WeightSource,
    out: Path,
    quantizer: Quantizer = "lloyd",
    bits: tuple[int, ...] = BITS,
    *,
    source: str | None = None,
    importance: tuple[tuple[float, ...], ...] | None = None,
    accuracy: AccuracyTable | None = None,
    overwrite: bool = False,
    on_progress: Callable[[BuildProgress], None] = lambda _: None,
    open_file: Opener = lambda path: path.open("xb"),
) -> Path:
    """Write the store of `checkpoint` at `out` and return `out`.

    `bits` of 1..6 keep the planes of the highest; 32 adds full fidelity. `source` is the origin recorded in
    the manifest (default: the checkpoint's directory name); `importance` and `accuracy` are recorded there as
    by `put_importance` and `put_accuracy`. `out` does not exist before the last rename; the
    leftovers of a killed build are removed by the next one. Raises StoreError when `out` exists and
    `overwrite` is false, when the disk is too small, or when writing fails; ModelError comes from the
    checkpoint.
    """
    check_bits(bits)
    clear_leftovers(out)
    if out.exists() and not overwrite:
        raise StoreError(f"{out} exists; name another place, or ask for it to be overwritten.")
    if out.exists() and not (out.is_dir() and (out / "manifest.json").is_file()):
        raise StoreError(f"{out} exists and is not a store, so it is not overwritten; name another path.")
    with _atomic_store(out) as staging:
        manifest = _build(checkpoint, staging, quantizer, bits, source, on_progress, open_file)
        write_manifest(staging, replace(manifest, importance=importance, accuracy=accuracy))
        on_progress(BuildProgress(manifest.spec.n_layers + 1, manifest.spec.n_layers + 1, "done"))
    return out


def _build(
    checkpoint: WeightSource,
    staging: Path,
    quantizer: Quantizer,
    bits: tuple[int, ...],
    source: str | None,
    on_progress: Callable[[BuildProgress], None],
    open_file: Opener,
) -> Manifest:
    """Write all files but the manifest, and return it."""
    spec = checkpoint.spec
    layout = layer_layout(spec, bits)
    _check_room(staging, layout.n_bytes * spec.n_layers)
    files: list[FileEntry] = []
    layers: list[LayerEntry] = []
    resident: dict[str, np.ndarray] = {}
    total = spec.n_layers + 1

    def write(
        name: str, layout: FileLayout, arrays: Iterator[np.ndarray], checked: int | None = None
    ) -> None:
        written = write_file(staging / name, layout, arrays, open_file, checked)
        files.append(_file_entry(name, written))

    for number in range(spec.n_layers):
        on_progress(BuildProgress(number, total, f"layer {number}"))
        encoded = encode_layer(spec, _layer_tensors(checkpoint, number), quantizer)
        entry = _layer_entry(number, layout, bits, spec, encoded)
        write(entry.file, layout, (_cell(encoded, cell) for cell in _cells(spec, bits)), 0)
        layers.append(entry)
        resident |= {f"layers.{number}.{n}": a for n, a in _resident_arrays(encoded.resident).items()}
    on_progress(BuildProgress(spec.n_layers, total, "embeddings and head"))
    write(RESIDENT, _layout_of(resident), iter(resident.values()))
    embeddings, n_checked = _embedding_arrays(checkpoint)
    embedding_layout = _layout_of(embeddings)
    checked = embedding_layout.offsets[n_checked] if n_checked < len(embeddings) else embedding_layout.n_bytes
    write(EMBEDDINGS, embedding_layout, iter(embeddings.values()), checked)
    head = {n: checkpoint.tensor(n) for n, _ in tensor_shapes(spec) if n.startswith("head.")}
    write(HEAD, _layout_of(head), iter(head.values()))
    files.append(_copy_tokenizer(checkpoint.directory, staging, open_file))
    return Manifest(
        format=FORMAT,
        version=VERSION,
        identity=identity_of(tuple(files)),
        source=source if source is not None else checkpoint.directory.name,
        made_by=f"pliant {version('pliant')}",
        quantizer=quantizer,
        bits=bits,
        spec=spec,
        files=tuple(files),
        layers=tuple(layers),
    )


def layer_layout(spec: ModelSpec, bits: tuple[int, ...] = BITS) -> FileLayout:
    """A layer's file: the cells of the stored parts in `file_order`, each beginning on a disk block."""
    fields = []
    for cell in _cells(spec, bits):
        name = "full" if cell.part == FULL else f"plane.{cell.part}.{cell.first}"
        fields.append(TensorField(name, "U8", (cell.count, expected_slice_bytes(spec, cell.part))))
    return lay_out(fields, BLOCK)


def _cells(spec: ModelSpec, bits: tuple[int, ...]) -> list[Cell]:
    parts = stored_parts(bits)
    return [cell for cell in file_order(spec.n_heads, spec.widths) if cell.part in parts]


def _layer_tensors(checkpoint: WeightSource, number: int) -> dict[str, np.ndarray]:
    prefix = f"layers.{number}."
    names = [n for n, _ in tensor_shapes(checkpoint.spec) if n.startswith(prefix)]
    return {n.removeprefix(prefix): checkpoint.tensor(n) for n in names}


def _layer_entry(
    number: int, layout: FileLayout, bits: tuple[int, ...], spec: ModelSpec, encoded: EncodedLayer
) -> LayerEntry:
    offsets = {part: [0] * spec.n_heads for part in stored_parts(bits)}
    for cell, offset in zip(_cells(spec, bits), layout.offsets, strict=True):
        for i in range(cell.count):
            offsets[cell.part][cell.first + i] = offset + i * expected_slice_bytes(spec, cell.part)
    parts = tuple(
        PartEntry(
            part,
            tuple(offsets[part]),
            expected_slice_bytes(spec, part),
            tuple(f"{xxhash.xxh3_64_intdigest(row):016x}" for row in _part(encoded, part)),
        )
        for part in stored_parts(bits)
    )
    return LayerEntry(
        f"layer-{number:02d}.safetensors",
        parts,
        encoded.mean,
        encoded.std,
        encoded.n_weights,
        encoded.n_outliers,
        encoded.error,
    )


def _part(encoded: EncodedLayer, part: int) -> np.ndarray:
    return encoded.full if part == FULL else encoded.planes[part]


def _cell(encoded: EncodedLayer, cell: Cell) -> np.ndarray:
    return _part(encoded, cell.part)[cell.first : cell.first + cell.count]


def _resident_arrays(resident: ResidentLayer) -> dict[str, np.ndarray]:
    codebooks = {f"codebook.{k}": values for k, values in resident.codebooks.items()}
    return codebooks | {name: getattr(resident, name) for name in RESIDENT_ARRAYS}


def _embedding_arrays(checkpoint: WeightSource) -> tuple[dict[str, np.ndarray], int]:
    """All arrays of the embeddings file in order, and how many of them are checked when the store opens.

    The word table is too large to check at open: each of its rows has its own XXH3-64 in `word.xxh3`.
    """
    small = {
        name.removeprefix("embeddings."): checkpoint.tensor(name)
        for name, _ in tensor_shapes(checkpoint.spec)
        if name.startswith("embeddings.") and name != "embeddings.word"
    }
    table = checkpoint.embedding_codes()
    if table is not None:
        small["word.codebook"] = table.codebook
        rows, name = table.codes.reshape(table.rows, -1), "word.codes"
        word = table.codes
    else:
        word = _narrow(checkpoint.tensor("embeddings.word"), checkpoint.spec.precision)
        rows, name = word.view(np.uint8).reshape(len(word), -1), "word"
    small["word.xxh3"] = np.array([xxhash.xxh3_64_intdigest(row.data) for row in rows], np.uint64)
    return small | {name: word}, len(small)


def _narrow(values: np.ndarray, precision: Precision) -> np.ndarray:
    """The table in the layers' precision if that is exact; a checkpoint may store its tables in a wider
    type.
    """
    try:
        return to_precision(values, precision)
    except StoreError:
        return values


def _layout_of(arrays: Mapping[str, np.ndarray]) -> FileLayout:
    fields = []
    for name, array in arrays.items():
        is_bfloat16 = name == "word" and array.dtype == np.uint16
        fields.append(TensorField(name, "BF16" if is_bfloat16 else dtype_name(array), array.shape))
    return lay_out(fields)


def _copy_tokenizer(directory: Path, staging: Path, open_file: Opener) -> FileEntry:
    try:
        text = (directory / TOKENIZER).read_bytes()
    except OSError as error:
        raise StoreError(
            f"{directory / TOKENIZER} cannot be read ({error.strerror}); a store needs the model's tokenizer."
        ) from error
    layout = FileLayout(text, (), (), len(text))
    return _file_entry(TOKENIZER, write_file(staging / TOKENIZER, layout, (), open_file))


def _file_entry(name: str, w: FileDigest) -> FileEntry:
    return FileEntry(name, w.n_bytes, w.sha256, w.checked_bytes, f"{w.xxh3:016x}")


def _check_room(staging: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(staging).free
    if free < n_bytes:
        raise StoreError(
            f"the store's layers need {n_bytes / 1e6:.1f} MB, but only {free / 1e6:.1f} MB are free at "
            f"{staging.parent}; make room, choose another place (PLIANT_CACHE moves the cache), or leave out "
            "32 from the bits."
        )


@contextmanager
def _atomic_store(out: Path) -> Iterator[Path]:
    """As `atomic_directory`, raising StoreError."""
    try:
        with atomic_directory(out) as staging:
            yield staging
    except OSError as error:
        raise StoreError(
            f"the store {out} could not be written ({error.strerror or error}); nothing is left of it. "
            "Make room or choose another place (PLIANT_CACHE moves the cache), then build again."
        ) from error
