"""Encoders of random weights without a file: `x` goes in and comes out as it is."""

from dataclasses import dataclass, field

import numpy as np

from pliant.errors import ModelError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.models.encoder.encoder_spec import EncoderSpec
from tests.reference_encoder import run_layer


@dataclass(frozen=True)
class RandomSource:
    """An `EncoderSource` whose input and head change nothing."""

    spec: EncoderSpec
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    identity: str = "random"

    @property
    def whole(self) -> "RandomSource":
        return self

    def submodel(self, n_layers: int, n_heads: int, /) -> "RandomSource":
        raise ModelError(f"{n_layers} layers of {n_heads} heads are not known.")

    def tensor(self, name: str, /) -> np.ndarray:
        return self.tensors[name]

    def input(self, rows: int, /) -> Graph:
        return _same("given", "x", rows, self.spec.hidden)

    def head(self, rows: int, /) -> Graph:
        return _same("x", "answer", rows, self.spec.hidden)

    def release(self) -> None:
        """Nothing is mapped."""

    def reference(self, x: np.ndarray) -> np.ndarray:
        """All layers in float64 numpy."""
        for i in range(self.spec.n_layers):
            x = run_layer(self.spec, i, self.tensors, x)
        return x


def random_source(spec: EncoderSpec, seed: int = 0) -> RandomSource:
    """Weights of unit gain."""
    rng = np.random.default_rng(seed)
    tensors = {
        name: rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1] if len(shape) > 1 else 4))
        for i in range(spec.n_layers)
        for name, shape in spec.layer(i).tensors
    }
    return RandomSource(spec, tensors)


def feeds(spec: EncoderSpec, tokens: int, seed: int = 1) -> dict[str, np.ndarray]:
    return {"given": np.random.default_rng(seed).standard_normal((tokens, spec.hidden), np.float32)}


def _same(x: str, y: str, rows: int, columns: int) -> Graph:
    type_ = TensorType("float32", (rows, columns))
    return Graph(
        (
            Node("Relu", (x,), (f"{x}+",)),
            Node("Neg", (x,), (f"{x}-",)),
            Node("Relu", (f"{x}-",), ("n",)),
            Node("Sub", (f"{x}+", "n"), (y,)),
        ),
        (x,),
        (y,),
        dict.fromkeys((x, y, "n", f"{x}+", f"{x}-"), type_),
    )
