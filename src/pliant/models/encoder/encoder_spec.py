"""The specification of any transformer encoder: its layers, and the names of their weights.

Weights have canonical names, the same for every family: `layers.3.query.weight` float32 [out, in] as Hugging
Face has it, `.bias` [out], and a norm's `.weight` and `.bias`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from pliant.errors import ModelError
from pliant.models.spec import Activation, picked_layers

EncoderFamily = Literal["bert", "distilbert", "roberta", "electra", "mobilebert", "vit", "whisper"]
NormKind = Literal["layer", "affine"]


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """y = x @ weight.T + bias; `NAME.weight` is [n_out, n_in], `NAME.bias` [n_out] where there is one."""

    name: str
    n_in: int
    n_out: int
    has_bias: bool = True


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Over the last axis: layer norm, or "affine", MobileBERT's x * weight + bias, which takes no mean."""

    name: str
    n: int
    kind: NormKind
    eps: float


@dataclass(frozen=True, slots=True)
class Narrowing:
    """norm(linear(x) [+ residual]): MobileBERT's way in and out of its bottleneck (Sun et al. 2020, 3.1)."""

    linear: LinearSpec
    norm: NormSpec


@dataclass(frozen=True, slots=True)
class FeedForward:
    """down(activation(up(h))); post-norm adds the residual and then takes `norm`, pre-norm reads norm(h)."""

    up: LinearSpec
    down: LinearSpec
    norm: NormSpec


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One layer, x [rows, hidden] to the same shape.

    Post-norm (BERT): y = attention_norm(r + output(attention(x))), then each feed forward
    y = norm(y + down(act(up(y)))). Pre-norm (ViT, Whisper): y = x + output(attention(attention_norm(x))),
    then y = y + down(act(up(norm(y)))).

    MobileBERT (post-norm): query and key read `query_in`(x), value reads `value_in`(x), the residual r is
    `residual_in`(x); where one is None, that is x. In the end y = widen(y), whose residual is x.
    """

    query: LinearSpec
    key: LinearSpec
    value: LinearSpec
    output: LinearSpec
    attention_norm: NormSpec
    feed_forwards: tuple[FeedForward, ...]
    is_pre_norm: bool = False
    query_in: Narrowing | None = None
    value_in: Narrowing | None = None
    residual_in: Narrowing | None = None
    widen: Narrowing | None = None

    @property
    def tensors(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Canonical name and shape of every weight of the layer, each once."""
        shapes: dict[str, tuple[int, ...]] = {}
        for part in _parts(self):
            n = part.n_out if isinstance(part, LinearSpec) else part.n
            shapes[f"{part.name}.weight"] = (n, part.n_in) if isinstance(part, LinearSpec) else (n,)
            if isinstance(part, NormSpec) or part.has_bias:
                shapes[f"{part.name}.bias"] = (n,)
        return tuple(shapes.items())


@dataclass(frozen=True, slots=True)
class CodedLayers:
    """Properties of layers that a store keeps in codes of up to `bits`.

    `outlier_share` is the largest fraction of a layer's weights stored as exact outliers. `importance` ranks
    layers by the benefit of more bits: one number per layer.
    """

    bits: int
    outlier_share: float
    importance: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """A stack of `n_layers` equal layers.

    `hidden` is the width between layers, `inner` the width inside of them (the same but for MobileBERT),
    `ffn` the columns of each feed forward; heads attend over n_heads * head_dim columns. `max_rows` is the
    most rows (tokens, patches, frames) that the model reads. `template` is a layer whose names lack their
    prefix; `coded` is set for a model from a store. Raises ModelError for inconsistent sizes.
    """

    family: EncoderFamily
    n_layers: int
    n_heads: int
    head_dim: int
    hidden: int
    inner: int
    ffn: int
    activation: Activation
    max_rows: int
    template: EncoderLayer
    coded: CodedLayers | None = None

    def __post_init__(self) -> None:
        for name in ("n_layers", "n_heads", "head_dim", "hidden", "inner", "ffn", "max_rows"):
            if getattr(self, name) < 1:
                raise ModelError(
                    f"{name} is {getattr(self, name)}, but must be at least 1; check the configuration."
                )
        for name, got, wanted in _widths(self):
            if got != wanted:
                raise ModelError(
                    f"{name} is {got} wide in this {self.family}, but must be {wanted}; check the config."
                )

    @property
    def attended(self) -> int:
        """The columns of all heads together."""
        return self.n_heads * self.head_dim

    def submodel(self, n_layers: int, n_heads: int) -> "EncoderSpec":
        """The spec of a submodel: `n_layers` layers (`picked_layers`), the first heads and a proportional
        part of each feed forward.

        These are STI's submodels (section 3). Raises ModelError for sizes that are too large or 0, and for a
        family whose feed forwards cannot be divided this way.
        """
        if not (1 <= n_layers <= self.n_layers and 1 <= n_heads <= self.n_heads) or self.ffn % self.n_heads:
            raise ModelError(
                f"{n_layers} layers of {n_heads} heads are not a submodel of {self.n_layers} layers of "
                f"{self.n_heads} heads with {self.ffn} columns; give 1 up to as many, of columns that divide."
            )
        t, attended, ffn = self.template, n_heads * self.head_dim, n_heads * self.ffn // self.n_heads
        forwards = tuple(
            replace(one, up=replace(one.up, n_out=ffn), down=replace(one.down, n_in=ffn))
            for one in t.feed_forwards
        )
        query, key, value = (replace(one, n_out=attended) for one in (t.query, t.key, t.value))
        output = replace(t.output, n_in=attended)
        template = replace(t, query=query, key=key, value=value, output=output, feed_forwards=forwards)
        coded = self.coded
        if coded is not None:
            importance = (coded.importance[i] for i in picked_layers(self.n_layers, n_layers))
            coded = replace(coded, importance=tuple(importance))
        return replace(self, n_layers=n_layers, n_heads=n_heads, ffn=ffn, template=template, coded=coded)

    def layer(self, i: int) -> EncoderLayer:
        """Layer `i` under its canonical names. Raises ModelError for one the model does not have."""
        if not 0 <= i < self.n_layers:
            raise ModelError(f"layer {i} was requested, but the encoder has layers 0 to {self.n_layers - 1}.")
        layer: EncoderLayer = _add_prefix(self.template, f"layers.{i}.")
        return layer


def _add_prefix(part: Any, prefix: str) -> Any:
    """`part`, or each of a tuple, with `prefix` before every name in it."""
    match part:
        case LinearSpec() | NormSpec():
            return replace(part, name=prefix + part.name)
        case tuple():
            return tuple(_add_prefix(one, prefix) for one in part)
        case Narrowing() | FeedForward() | EncoderLayer():
            changed = {f.name: _add_prefix(getattr(part, f.name), prefix) for f in fields(part)}
            return replace(part, **changed)
        case _:
            return part


def _parts(layer: EncoderLayer) -> Iterator[LinearSpec | NormSpec]:
    """Every product and norm of a layer, in execution order; shared ones are repeated."""
    norm_first = (layer.attention_norm,) if layer.is_pre_norm else ()
    yield from norm_first
    for narrowing in (layer.query_in, layer.value_in, layer.residual_in):
        if narrowing is not None:
            yield from (narrowing.linear, narrowing.norm)
    yield from (layer.query, layer.key, layer.value, layer.output)
    if not norm_first:
        yield layer.attention_norm
    for forward in layer.feed_forwards:
        parts = (forward.up, forward.down)
        yield from ((forward.norm, *parts) if layer.is_pre_norm else (*parts, forward.norm))
    if layer.widen is not None:
        yield from (layer.widen.linear, layer.widen.norm)


def _widths(spec: EncoderSpec) -> Iterator[tuple[str, int, int]]:
    """Widths that must be equal: (name, width found, width wanted)."""
    t, hidden, inner = spec.template, spec.hidden, spec.inner
    for name, linear, narrowing in (
        ("query", t.query, t.query_in),
        ("key", t.key, t.query_in),
        ("value", t.value, t.value_in),
    ):
        yield f"what {name} reads", linear.n_in, hidden if narrowing is None else narrowing.linear.n_out
        yield name, linear.n_out, spec.attended
    yield "what output reads", t.output.n_in, spec.attended
    yield "output", t.output.n_out, inner
    yield "the residual", hidden if t.residual_in is None else t.residual_in.linear.n_out, inner
    for forward in t.feed_forwards:
        yield "what up reads", forward.up.n_in, inner
        yield "up", forward.up.n_out, spec.ffn
        yield "what down reads", forward.down.n_in, spec.ffn
        yield "down", forward.down.n_out, inner
    yield "the layer's result", inner if t.widen is None else t.widen.linear.n_out, hidden
