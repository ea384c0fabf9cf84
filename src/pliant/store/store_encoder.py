"""A store as an encoder at one bitwidth: its layers are decoded to float32 one at a time."""

from hashlib import sha256
from pathlib import Path
from typing import final

import numpy as np

from pliant.arrays import Float32, Integer
from pliant.errors import StoreError
from pliant.ir.bitwidths import FULL_BITS
from pliant.models.encoder.bert import text
from pliant.models.encoder.encoder_source import Encoder
from pliant.models.hf.checkpoint import WORD
from pliant.store.layers import LayerWeights, layer_weights
from pliant.store.read import Store, open_store
from pliant.store.store_files import Embeddings, HeadWeights, Linear


def stored_encoder(path: Path, bits: int | None = None) -> Encoder:
    """The encoder in a store, at 1 to 6 `bits` or 32 for full fidelity: the highest it offers unless told.

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
    return Encoder(text(store.spec), _StoredWeights(store, wanted), path)


@final
class _StoredWeights:
    """A store at one bitwidth; the layer that was asked for last is kept."""

    def __init__(self, store: Store, bits: int) -> None:
        # Full fidelity is what the store was built from; planes at fewer bits are other weights.
        precision = "full" if bits == FULL_BITS else f"{bits} bits"
        self.identity = sha256(f"{store.identity} {precision}".encode()).hexdigest()
        self._store, self._bits = store, bits
        self._ends = _ends(store.embeddings, store.head)
        self._kept: tuple[int, dict[str, np.ndarray]] | None = None

    def view(self, name: str, /) -> np.ndarray:
        if name == WORD:
            return self.rows(name, np.arange(self._store.spec.vocab))
        if name in self._ends:
            return self._ends[name]
        _, _, rest = name.partition("layers.")
        layer, _, part = rest.partition(".")
        if not layer.isdigit() or part not in self._layer(int(layer)):
            raise StoreError(f"the store has no tensor {name!r}; it is not part of this model.")
        return self._layer(int(layer))[part]

    def rows(self, name: str, ids: Integer[np.ndarray, " n"], /) -> Float32[np.ndarray, "n columns"]:
        if name != WORD:
            found: np.ndarray = self.view(name)[ids]
            return found
        self._store.embeddings.check(ids)
        return self._store.embeddings.word.decode(ids)

    def release(self) -> None:
        self._kept = None

    def _layer(self, layer: int) -> dict[str, np.ndarray]:
        kept = self._kept
        if kept is None or kept[0] != layer:
            kept = self._kept = layer, _tensors(layer_weights(self._store, layer, self._bits))
        return kept[1]


def _tensors(layer: LayerWeights) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name in layer.__dataclass_fields__:
        found |= _pair(name, getattr(layer, name))
    return found


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


def _pair(name: str, pair: Linear | np.ndarray) -> dict[str, np.ndarray]:
    weight, bias = (pair.weight, pair.bias) if isinstance(pair, Linear) else pair
    return {f"{name}.weight": weight, f"{name}.bias": bias}
