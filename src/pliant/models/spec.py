"""The specification of a BERT-family model: its dimensions and its head."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pliant.errors import ModelError

Family = Literal["bert", "distilbert", "roberta", "electra"]
Activation = Literal["gelu", "gelu_tanh", "relu", "tanh"]
Precision = Literal["F32", "F16", "BF16"]
Pooling = Literal["cls", "mean"]


@dataclass(frozen=True, slots=True)
class Head:
    """The head, which turns the last layer's tokens into an answer.

    `pooling` picks the first token or the mean over tokens; `dense` is the activation of the square
    layer between pooling and classifier, None when there is none; `labels` are the classifier's
    names in order of its rows, None for an embedding head, whose answer is the pooled vector,
    divided by its Euclidean norm when `is_normalized`.
    """

    pooling: Pooling
    dense: Activation | None
    labels: tuple[str, ...] | None
    is_normalized: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The dimensions of a BERT-family encoder, in the terms of STI Table 1.

    `hidden` is d, `ffn` is d_ff, `n_heads` is M, `n_layers` is N; `embedding` is the width of the
    embedding tables (ELECTRA projects it to `hidden`); `max_tokens` counts usable positions, the
    first of which reads row `position_offset` of the position table (RoBERTa: 2).
    `widths` are the numbers of slices and `depths` the numbers of layers that the model was trained to run
    with, ascending. `depths` is None where config.json does not record it (see `trained_depths`).
    """

    family: Family
    n_layers: int
    n_heads: int
    hidden: int
    ffn: int
    embedding: int
    vocab: int
    max_tokens: int
    position_offset: int
    n_types: int
    activation: Activation
    norm_eps: float
    head: Head
    widths: tuple[int, ...]
    precision: Precision
    depths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("n_layers", "n_heads", "hidden", "ffn", "embedding", "vocab", "max_tokens"):
            if getattr(self, name) < 1:
                raise ModelError(
                    f"{name} is {getattr(self, name)}, but must be at least 1; check config.json."
                )
        if self.hidden % self.n_heads:
            raise ModelError(f"hidden size {self.hidden} is not a multiple of the {self.n_heads} heads.")
        if self.ffn % self.n_heads:
            raise ModelError(
                f"{self.ffn} FFN neurons do not divide into {self.n_heads} slices (STI Table 1); "
                "pick a model whose FFN size is a multiple of its heads."
            )
        if not self.widths or list(self.widths) != sorted({w for w in self.widths if 1 <= w <= self.n_heads}):
            raise ModelError(f"trained widths {self.widths} must ascend within 1..{self.n_heads}.")
        depths = self.trained_depths
        if list(depths) != sorted({n for n in depths if 1 <= n <= self.n_layers}) or depths[-1:] != (
            self.n_layers,
        ):
            raise ModelError(
                f"trained depths {depths} must ascend within 1..{self.n_layers} and end with {self.n_layers}."
            )

    @property
    def trained_depths(self) -> tuple[int, ...]:
        """Numbers of layers the model was trained to run with, ascending; the last one is all layers.

        Models stretched before `depths` was recorded have trained widths below `n_heads`: these were
        trained at every depth (DynaBERT). Any other model without a record runs only with all its layers.
        """
        if self.depths is not None:
            return self.depths
        if self.widths != (self.n_heads,):
            return tuple(range(1, self.n_layers + 1))
        return (self.n_layers,)

    @property
    def head_dim(self) -> int:
        return self.hidden // self.n_heads

    @property
    def slice_ffn(self) -> int:
        """FFN neurons of one slice: d_ff / M."""
        return self.ffn // self.n_heads


def picked_layers(n_layers: int, n: int) -> tuple[int, ...]:
    """The `n` of `n_layers` layers a submodel runs, spread evenly over depth; one layer is the last.

    DynaBERT (section 2.2) drops layers evenly; the first and the last stay whenever n > 1.
    """
    if not 1 <= n <= n_layers:
        raise ModelError(f"a submodel of {n} layers was requested from a model with {n_layers}.")
    if n == 1:
        return (n_layers - 1,)
    return tuple(round(i * (n_layers - 1) / (n - 1)) for i in range(n))


def tensor_shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Canonical name and shape of every weight, linear layers as [out, in]; one naming for all families."""
    E, d, f = spec.embedding, spec.hidden, spec.ffn
    yield "embeddings.word", (spec.vocab, E)
    yield "embeddings.position", (spec.max_tokens + spec.position_offset, E)
    if spec.n_types:
        yield "embeddings.type", (spec.n_types, E)
    yield from _pair("embeddings.norm", (E,))
    if d != E:
        yield from _pair("embeddings.project", (d, E))
    for layer in range(spec.n_layers):
        p = f"layers.{layer}."
        for name in ("query", "key", "value", "output"):
            yield from _pair(p + name, (d, d))
        yield from _pair(p + "attention_norm", (d,))
        yield from _pair(p + "up", (f, d))
        yield from _pair(p + "down", (d, f))
        yield from _pair(p + "output_norm", (d,))
    if spec.head.dense:
        yield from _pair("head.dense", (d, d))
    if spec.head.labels is not None:
        yield from _pair("head.classifier", (len(spec.head.labels), d))


def _pair(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name + ".weight", shape
    yield name + ".bias", shape[:1]
