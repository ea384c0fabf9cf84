"""Open the store's small files (resident parts, embeddings, head), and verify all files."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

import numpy as np
import xxhash

from pliant.arrays import Float32, Integer, UInt64
from pliant.errors import StoreError
from pliant.ir.bitwidths import PLANES
from pliant.models.slice_shapes import SliceGeometry, slice_geometry
from pliant.models.spec import ModelSpec, Precision, tensor_shapes
from pliant.models.word_table import QuantizedTable
from pliant.store.coding.encode_layer import RESIDENT_ARRAYS, ResidentLayer
from pliant.store.container import read_layout, view
from pliant.store.manifest import FileEntry, Manifest, identity_of, read_manifest
from pliant.system import map_file

RESIDENT = "resident.safetensors"
EMBEDDINGS = "embeddings.safetensors"
HEAD = "head.safetensors"
_Tensors = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class DenseTable:
    """A word table in the checkpoint's precision, [vocab, embedding]; BF16 as raw uint16."""

    precision: Precision
    values: np.ndarray

    def decode(self, rows: Integer[np.ndarray, " n"]) -> Float32[np.ndarray, "n columns"]:
        """The embedding vectors of `rows` (token ids); an id outside the table is an IndexError."""
        picked = self.values[rows]
        if self.precision == "BF16":
            picked = (picked.astype(np.uint32) << 16).view(np.float32)
        exact: np.ndarray = picked.astype(np.float32)
        return exact


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """A dense layer: weight [out, in] and bias [out], float32."""

    weight: Float32[np.ndarray, "out in"]
    bias: Float32[np.ndarray, " out"]


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embedding tables; `word` is memory-mapped, the rest in memory, float32. `norm` is [weight, bias].

    `position` has all rows of the checkpoint, `position_offset` first ones included; `types` is None
    when the model has none, `project` None when embedding and hidden size are equal.
    """

    word: QuantizedTable | DenseTable
    position: Float32[np.ndarray, "positions embedding"]
    types: Float32[np.ndarray, "types embedding"] | None
    norm: Float32[np.ndarray, "2 embedding"]
    project: LinearWeights | None
    row_hashes: UInt64[np.ndarray, " vocab"]

    def check(self, ids: Integer[np.ndarray, " n"]) -> None:
        """Raise StoreError naming the first damaged row of the word table among `ids`.

        The table is too large to check at open, so the rows that a request reads are checked here.
        """
        table = self.word.codes if isinstance(self.word, QuantizedTable) else self.word.values
        rows = table.reshape(len(table), -1)
        for i in ids.tolist():
            if xxhash.xxh3_64_intdigest(rows[i].data) != self.row_hashes[i]:
                raise StoreError(
                    f"{EMBEDDINGS} is damaged: row {i} of the word table; build the store again."
                )


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The weights after the last layer; None where the head has no such layer."""

    dense: LinearWeights | None
    classifier: LinearWeights | None


def open_resident(store: Path, manifest: Manifest) -> tuple[ResidentLayer, ...]:
    """The resident part of every layer, read and checked."""
    tensors = _read_tensors(store, manifest.file(RESIDENT))
    layers = []
    for number in range(manifest.spec.n_layers):
        prefix = f"layers.{number}."
        codebooks = {
            k: _take(tensors, RESIDENT, f"{prefix}codebook.{k}", (1 << k,)) for k in range(1, PLANES + 1)
        }
        shapes = _resident_shapes(manifest.spec, slice_geometry(manifest.spec))
        arrays = {n: _take(tensors, RESIDENT, prefix + n, shapes[n]) for n in RESIDENT_ARRAYS}
        layers.append(ResidentLayer(codebooks, **arrays))
    return tuple(layers)


def open_head(store: Path, manifest: Manifest) -> HeadWeights:
    """The head's weights, read and checked."""
    tensors = _read_tensors(store, manifest.file(HEAD))
    shapes = dict(tensor_shapes(manifest.spec))

    def linear(name: str) -> LinearWeights | None:
        if name + ".weight" not in shapes:
            return None
        pair = [_take(tensors, HEAD, f"{name}.{n}", shapes[f"{name}.{n}"]) for n in ("weight", "bias")]
        return LinearWeights(*pair)

    return HeadWeights(linear("head.dense"), linear("head.classifier"))


def open_embeddings(store: Path, manifest: Manifest) -> Embeddings:
    """The embeddings: the word table mapped, everything before it in the file read and checked."""
    entry, spec = manifest.file(EMBEDDINGS), manifest.spec
    data = _map(store / entry.name)
    if xxhash.xxh3_64_hexdigest(data[: entry.checked_bytes]) != entry.xxh3:
        raise StoreError(f"{entry.name} of {store} is damaged before its word table; build the store again.")
    tensors = {
        name: view(data, *where)
        for name, where in read_layout(store / entry.name, data).items()
        if name[:4] != "pad."
    }
    shapes = {n.removeprefix("embeddings."): s for n, s in tensor_shapes(spec)}

    def take(name: str) -> np.ndarray:
        return _take(tensors, EMBEDDINGS, name, shapes[name]).copy()

    word: QuantizedTable | DenseTable
    if "word.codes" in tensors:
        word = QuantizedTable(tensors["word.codes"], tensors["word.codebook"].copy(), spec.embedding)
    else:
        word = _dense(_take(tensors, EMBEDDINGS, "word", shapes["word"]))
    has_project = "project.weight" in shapes
    return Embeddings(
        word=word,
        position=take("position"),
        types=take("type") if spec.n_types else None,
        norm=np.stack([take("norm.weight"), take("norm.bias")]),
        project=LinearWeights(take("project.weight"), take("project.bias")) if has_project else None,
        row_hashes=_take(tensors, EMBEDDINGS, "word.xxh3", (spec.vocab,)).copy(),
    )


def _dense(values: np.ndarray) -> DenseTable:
    precisions: dict[str, Precision] = {"f4": "F32", "f2": "F16", "u2": "BF16"}
    return DenseTable(precisions[values.dtype.str[1:]], values)


def read_checked(store: Path, entry: FileEntry) -> bytes:
    """The bytes of a file that is checked as a whole; raises StoreError if the file is damaged."""
    try:
        data = (store / entry.name).read_bytes()
    except OSError as error:
        raise StoreError(f"{entry.name} of {store} cannot be read: {error.strerror}.") from error
    if len(data) != entry.n_bytes or xxhash.xxh3_64_hexdigest(data) != entry.xxh3:
        raise StoreError(
            f"{entry.name} of {store} is damaged: it does not match its XXH3; build the store again."
        )
    return data


def verify(path: Path, on_file: Callable[[str, int], None] = lambda name, i: None) -> Manifest:
    """Compare every file's SHA-256 with the manifest; StoreError names the first that differs.

    `on_file` is called with each file's name and number before it is read.
    """
    manifest = read_manifest(path)
    for i, entry in enumerate(manifest.files):
        on_file(entry.name, i)
        try:
            with (path / entry.name).open("rb") as file:
                found = file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise StoreError(f"{entry.name} of {path} cannot be read: {error.strerror}.") from error
        if found != entry.sha256:
            raise StoreError(
                f"{entry.name} of {path} is damaged: its SHA-256 is not the manifest's; build it again."
            )
    if identity_of(manifest.files) != manifest.identity:
        raise StoreError(f"the identity of {path} does not follow from its files; build the store again.")
    return manifest


def _resident_shapes(spec: ModelSpec, g: SliceGeometry) -> dict[str, tuple[int, ...]]:
    """Shape of each array of ResidentLayer; the outlier lists have any length, written as -1."""
    return {
        "outlier_rows": (spec.n_heads, g.column_groups + 1),
        "outlier_offsets": (-1,),
        "outlier_values": (-1,),
        "qkv_bias": (spec.n_heads, 3 * g.head_dim),
        "output_bias": (g.hidden,),
        "up_bias": (spec.n_heads, g.slice_ffn),
        "down_bias": (g.hidden,),
        "attention_norm": (2, g.hidden),
        "output_norm": (2, g.hidden),
    }


def _read_tensors(store: Path, entry: FileEntry) -> _Tensors:
    data = read_checked(store, entry)
    return {
        n: view(data, *where) for n, where in read_layout(store / entry.name, data).items() if n[:4] != "pad."
    }


def _take(tensors: _Tensors, file: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    array = tensors.get(name)
    if array is None:
        raise StoreError(f"{file} has no {name}; build the store again.")
    if array.ndim != len(shape) or any(n not in (-1, m) for n, m in zip(shape, array.shape, strict=True)):
        raise StoreError(
            f"{name} in {file} has shape {list(array.shape)}, not {list(shape)}; build it again."
        )
    return array


def _map(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            return map_file(file.fileno())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path.name} of {path.parent} cannot be mapped: {error}.") from error
