"""Read and replace the manifest.json of a store.

The manifest is JSON. Its `check` is the SHA-256 of itself with `check` empty, in compact form, so that a
flipped bit in a size, a hash or an importance is an error and not a wrong answer.
"""

import os
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import msgspec

from pliant.errors import StoreError
from pliant.ir.bitwidths import FULL_BITS, PLANES
from pliant.ir.program import FULL
from pliant.models.slice_shapes import slice_geometry
from pliant.models.spec import ModelSpec
from pliant.store.atomic_directory import sync_directory
from pliant.store.coding.quantize import Quantizer

VERSION = 3
OLDEST_VERSION = 2  # without `spec.depths` and the folds of `accuracy`; otherwise the same
FORMAT: Literal["pliant-store"] = "pliant-store"
MANIFEST = "manifest.json"
PART_NAMES = (*(f"plane {q}" for q in range(PLANES)), "full fidelity")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: its size, its identity, and the XXH3-64 of its first `checked_bytes`, checked at open."""

    name: str
    n_bytes: int
    sha256: str
    checked_bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class PartEntry:
    """One part of a layer (a plane, or full fidelity): the offset of each slice, and its XXH3-64."""

    part: int
    offsets: tuple[int, ...]
    slice_bytes: int
    xxh3: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One layer: its file, its parts and its quantization errors.

    `error[k-1]` is the squared error of the k-bit version over all weights, divided by their variance
    times their number. `n_outliers` excludes padding.
    """

    file: str
    parts: tuple[PartEntry, ...]
    mean: float
    std: float
    n_weights: int
    n_outliers: int
    error: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AccuracyEntry:
    """A submodel of n layers x m slices, all at `bits` (32: full fidelity), on labelled examples.

    `accuracy` is the fraction of correct answers, `log_likelihood` the mean logarithm of the correct label's
    probability.
    """

    n: int
    m: int
    bits: int
    accuracy: float
    log_likelihood: float


@dataclass(frozen=True, slots=True)
class AccuracyFold:
    """Results on one part of the examples: `accuracy` and `log_likelihood` of each entry, in their order."""

    n_examples: int
    accuracy: tuple[float, ...]
    log_likelihood: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AccuracyTable:
    """Measured accuracies of submodels of a store, all on the same `n_examples` examples.

    `folds` split these examples into at least two parts, so that a submodel can be chosen on some examples
    and judged on others; empty in tables of older versions.
    """

    n_examples: int
    entries: tuple[AccuracyEntry, ...]
    folds: tuple[AccuracyFold, ...] = ()

    def __post_init__(self) -> None:
        places = {(e.n, e.m, e.bits) for e in self.entries}
        if self.n_examples < 1 or not self.entries or len(places) < len(self.entries):
            raise StoreError("a table of accuracy needs examples, and each submodel once at each bitwidth.")
        for e in self.entries:
            if not (0 <= e.accuracy <= 1 and e.log_likelihood <= 0):
                raise StoreError(
                    f"accuracy of {e.n}x{e.m} at {e.bits} bits: {e.accuracy} must lie in 0..1, and its "
                    f"log-likelihood, {e.log_likelihood}, not above 0."
                )

        self._check_folds()

    def _check_folds(self) -> None:
        if not self.folds:
            return
        sizes = [fold.n_examples for fold in self.folds]
        lengths = {len(x) for fold in self.folds for x in (fold.accuracy, fold.log_likelihood)}
        if (
            len(sizes) < 2
            or min(sizes) < 1
            or sum(sizes) != self.n_examples
            or lengths != {len(self.entries)}
        ):
            raise StoreError(
                f"folds of {sizes} examples with {sorted(lengths)} numbers each do not split a table of "
                f"{self.n_examples} examples and {len(self.entries)} entries."
            )
        for i, e in enumerate(self.entries):
            right = sum(fold.n_examples * fold.accuracy[i] for fold in self.folds)
            if not abs(right - self.n_examples * e.accuracy) < 0.5:
                raise StoreError(
                    f"accuracy of {e.n}x{e.m} at {e.bits} bits is {e.accuracy}, but its folds say "
                    f"{right / self.n_examples}."
                )

    def check(self, spec: ModelSpec) -> None:
        """Raise StoreError unless every entry is a submodel of `spec`."""
        for e in self.entries:
            known = e.bits == FULL_BITS or 1 <= e.bits <= PLANES
            if not (1 <= e.n <= spec.n_layers and e.m in spec.widths and known):
                raise StoreError(
                    f"accuracy of {e.n}x{e.m} at {e.bits} bits does not fit a model of {spec.n_layers} "
                    f"layers and widths {','.join(map(str, spec.widths))}."
                )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The data that a planner needs about a store, without its weights.

    `identity` is the SHA-256 over the files' SHA-256, in order of name; importance and accuracy are not
    part of it. `bits` are the bitwidths offered, ascending, 32 being full fidelity.
    `importance[layer][slice]` orders shards by the benefit of a higher fidelity (STI 5.2); `accuracy` holds
    measured accuracies of submodels.
    """

    format: Literal["pliant-store"]
    version: int
    identity: str
    source: str
    made_by: str
    quantizer: Quantizer
    bits: tuple[int, ...]
    spec: ModelSpec
    files: tuple[FileEntry, ...]
    layers: tuple[LayerEntry, ...]
    importance: tuple[tuple[float, ...], ...] | None = None
    accuracy: AccuracyTable | None = None
    check: str = ""

    def __post_init__(self) -> None:
        check_bits(self.bits)
        if len(self.layers) != self.spec.n_layers:
            raise StoreError(
                f"the manifest lists {len(self.layers)} layers of a model with {self.spec.n_layers}; "
                "build the store again."
            )
        sizes = [expected_slice_bytes(self.spec, part) for part in range(FULL + 1)]
        for number, layer in enumerate(self.layers):
            if [p.part for p in layer.parts] != list(stored_parts(self.bits)) or any(
                p.slice_bytes != sizes[p.part] or {len(p.xxh3), len(p.offsets)} != {self.spec.n_heads}
                for p in layer.parts
            ):
                raise StoreError(f"layer {number}'s parts do not fit the model; build the store again.")
        if (
            self.importance is not None
            and [len(row) for row in self.importance] != [self.spec.n_heads] * self.spec.n_layers
        ):
            raise StoreError(
                f"importance must be {self.spec.n_layers} rows of {self.spec.n_heads} numbers, one a shard."
            )
        if self.accuracy is not None:
            self.accuracy.check(self.spec)

    @property
    def most_planes(self) -> int:
        """The most bits offered below full fidelity: at least 1."""
        return max(bits for bits in self.bits if bits <= PLANES)

    @property
    def n_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(f.n_bytes for f in self.files)

    def file(self, name: str) -> FileEntry:
        for entry in self.files:
            if entry.name == name:
                return entry
        raise StoreError(f"the manifest does not list {name}; build the store again.")


def check_bits(bits: tuple[int, ...]) -> None:
    """Raise StoreError unless `bits` ascend, are in 1..6 or 32, and include at least one of 1..6."""
    allowed = [b for b in bits if 1 <= b <= PLANES or b == FULL_BITS]
    if list(bits) != sorted(set(allowed)) or not bits or bits[0] > PLANES:
        raise StoreError(
            f"bits {','.join(map(str, bits)) or 'none'}: name ascending bitwidths of 1..{PLANES}, at least "
            f"one, and {FULL_BITS} for full fidelity."
        )


def stored_parts(bits: tuple[int, ...]) -> tuple[int, ...]:
    """The parts a store with these bitwidths holds: the planes of the highest, and full fidelity for 32."""
    planes = max(b for b in bits if b <= PLANES)
    return (*range(planes), FULL) if FULL_BITS in bits else tuple(range(planes))


def expected_slice_bytes(spec: ModelSpec, part: int) -> int:
    """Bytes of one slice's share of `part`."""
    geometry = slice_geometry(spec)
    return geometry.full_bytes(spec.precision) if part == FULL else geometry.plane_bytes


def identity_of(files: tuple[FileEntry, ...]) -> str:
    """SHA-256 over lines `name sha256`, in order of name."""
    lines = "".join(f"{f.name} {f.sha256}\n" for f in sorted(files, key=lambda f: f.name))
    return sha256(lines.encode()).hexdigest()


def read_manifest(store: Path) -> Manifest:
    """The manifest of the store at `store`. Raises StoreError: missing, damaged, or of a newer version."""
    path = store / MANIFEST
    try:
        text = path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"{store} is not a store: {MANIFEST} cannot be read ({error.strerror}). "
            "Build one with `pliant pack`."
        ) from error
    try:
        first = msgspec.json.decode(text, type=_Header)
        if first.version > VERSION:
            raise StoreError(
                f"{path.name} is of format version {first.version}, this pliant reads up to version "
                f"{VERSION}; update pliant, or build the store again."
            )
        if first.version < OLDEST_VERSION:
            raise StoreError(
                f"{store} is of format version {first.version}, this pliant reads versions {OLDEST_VERSION} "
                f"to {VERSION}: pack the model again with `pliant pack`."
            )
        manifest = msgspec.json.decode(text, type=Manifest)
        check = _check(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path.name} of {store} is damaged ({error}); build the store again.") from error
    if manifest.check != check:
        raise StoreError(
            f"{path.name} of {store} is damaged: its content does not match its check; build it again."
        )
    return manifest


def write_manifest(store: Path, manifest: Manifest) -> None:
    """Replace the manifest of `store` atomically: a reader sees either the old or the new one."""
    current = replace(manifest, version=VERSION)
    checked = replace(current, check=_check(msgspec.to_builtins(current)))
    text = msgspec.json.format(msgspec.json.encode(checked), indent=1)
    temporary = store / f".{MANIFEST}.{uuid4().hex}"  # threads and containers share process numbers
    try:
        with temporary.open("wb") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(store / MANIFEST)
        sync_directory(store)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{store / MANIFEST} cannot be written: {error.strerror}.") from error


def put_importance(store: Path, importance: tuple[tuple[float, ...], ...]) -> Manifest:
    """Record the importance of each shard, [layer][slice]; the weights' files stay as they are."""
    manifest = replace(read_manifest(store), importance=importance)
    write_manifest(store, manifest)
    return manifest


def put_accuracy(store: Path, accuracy: AccuracyTable) -> Manifest:
    """Record measured accuracies of submodels; the weight files are unchanged."""
    manifest = replace(read_manifest(store), accuracy=accuracy)
    write_manifest(store, manifest)
    return manifest


class _Header(msgspec.Struct, frozen=True):
    format: Literal["pliant-store"]
    version: int


def _check(fields: dict[str, Any]) -> str:
    """The SHA-256 of a manifest's fields, as its version wrote them: `check` empty, a null accuracy
    omitted.
    """
    kept = {name: value for name, value in fields.items() if name != "accuracy" or value is not None}
    return sha256(msgspec.json.encode(kept | {"check": ""})).hexdigest()
