"""A store as an encoder: its layers one at a time, decoded to float32 at one bitwidth, or as codes."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import final

import numpy as np

from pliant.arrays import Float32, Integer
from pliant.errors import StoreError
from pliant.ir.bitwidths import FULL_BITS
from pliant.models.encoder.bert import make_bert
from pliant.models.encoder.encoder_source import Encoder, MatrixCodes
from pliant.models.encoder.encoder_spec import CodedLayers
from pliant.models.hf.checkpoint import WORD
from pliant.store.coding.cut_slices import LINEARS
from pliant.store.layers import layer_codes, layer_matrices, layer_vectors
from pliant.store.manifest import Manifest
from pliant.store.read import Store, open_store
from pliant.store.store_files import Embeddings, HeadWeights, LinearWeights


def open_stored_encoder(path: Path, bits: int | None = None) -> Encoder:
    """The encoder in a store, at 1 to 6 `bits` or 32 for full fidelity (default: the highest that it offers).

    Raises StoreError naming what is wrong.
    """
    store = open_store(path)
    offered = store.manifest.bits
    wanted = max(offered) if bits is None else bits
    if wanted not in offered:
        store.close()
        raise StoreError(
            f"{path} does not offer {wanted} bits; it offers {', '.join(map(str, sorted(offered)))}."
        )
    family = make_bert(store.spec)
    spec = replace(family.spec, coded=_coded_layers(store.manifest))
    return Encoder(replace(family, spec=spec), _StoredWeights(store, wanted), path)


def _coded_layers(manifest: Manifest) -> CodedLayers:
    table = manifest.importance or ((1.0,),) * len(manifest.layers)
    share = max(layer.n_outliers / layer.n_weights for layer in manifest.layers)
    return CodedLayers(manifest.most_planes, share, tuple(sum(row) for row in table))


@final
class _StoredWeights:
    """A store at one bitwidth; the last layer requested is cached."""

    def __init__(self, store: Store, bits: int) -> None:
        # Full fidelity equals the source weights; planes at fewer bits are different weights.
        precision = "full" if bits == FULL_BITS else f"{bits} bits"
        self.identity = sha256(f"{store.identity} {precision}".encode()).hexdigest()
        self._store, self._bits = store, bits
        self._ends = _ends(store.embeddings, store.head)
        self._kept: tuple[int, dict[str, np.ndarray]] | None = None
        self._kept_codes: tuple[int, dict[str, MatrixCodes]] | None = None

    def view(self, name: str, /) -> np.ndarray:
        if name == WORD:
            return self.rows(name, np.arange(self._store.spec.vocab))
        if name in self._ends:
            return self._ends[name]
        layer, linear, kind = self._placed(name)
        if linear in LINEARS and kind == "weight":
            return self._layer(layer)[linear]
        vector = layer_vectors(self._store, layer).get(linear) if kind in ("weight", "bias") else None
        if vector is None:
            raise StoreError(f"the store has no tensor {name!r}; it is not part of this model.")
        return vector if vector.ndim == 1 else vector[("weight", "bias").index(kind)]

    def codes(self, name: str, /) -> MatrixCodes:
        layer, linear, kind = self._placed(name)
        if linear not in LINEARS or kind != "weight":
            raise StoreError(f"the store has no codes of {name!r}: it codes the matrices of layers.")
        kept = self._kept_codes
        if kept is None or kept[0] != layer:
            kept = self._kept_codes = layer, layer_codes(self._store, layer)
        return kept[1][linear]

    def rows(self, name: str, ids: Integer[np.ndarray, " n"], /) -> Float32[np.ndarray, "n columns"]:
        if name != WORD:
            found: np.ndarray = self.view(name)[ids]
            return found
        self._store.embeddings.check(ids)
        return self._store.embeddings.word.decode(ids)

    def release(self) -> None:
        self._kept = self._kept_codes = None

    def _layer(self, layer: int) -> dict[str, np.ndarray]:
        kept = self._kept
        if kept is None or kept[0] != layer:
            kept = self._kept = layer, layer_matrices(self._store, layer, self._bits)
        return kept[1]

    def _placed(self, name: str) -> tuple[int, str, str]:
        """Split a canonical name into layer, linear or norm, and `weight` or `bias`."""
        match name.split("."):
            case ["layers", layer, part, kind] if layer.isdigit() and int(layer) < self._store.spec.n_layers:
                return int(layer), part, kind
            case _:
                raise StoreError(f"the store has no tensor {name!r}; it is not part of this model.")


def _ends(embeddings: Embeddings, head: HeadWeights) -> dict[str, np.ndarray]:
    """Everything but the word table, by canonical name."""
    found = {"embeddings.position": embeddings.position} | _pair("embeddings.norm", embeddings.norm)
    if embeddings.types is not None:
        found["embeddings.type"] = embeddings.types
    linears = {
        "embeddings.project": embeddings.project,
        "head.dense": head.dense,
        "head.classifier": head.classifier,
    }
    for name, linear in linears.items():
        found |= {} if linear is None else _pair(name, linear)
    return found


def _pair(name: str, pair: LinearWeights | np.ndarray) -> dict[str, np.ndarray]:
    weight, bias = (pair.weight, pair.bias) if isinstance(pair, LinearWeights) else pair
    return {f"{name}.weight": weight, f"{name}.bias": bias}
