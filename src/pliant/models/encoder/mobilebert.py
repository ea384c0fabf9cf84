"""MobileBERT (Sun et al. 2020): trigram embeddings, bottlenecks, several feed forwards."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from pliant.errors import ModelError
from pliant.ir.port import Port
from pliant.models.encoder.bert import TOKEN_IDS, check_tokens, prepare_tokens, sample_tokens
from pliant.models.encoder.encoder_architecture import (
    AnswerKind,
    Feeds,
    PreparedInput,
    TableLookup,
    add_classifier,
    check_answer,
)
from pliant.models.encoder.encoder_spec import (
    EncoderLayer,
    EncoderSpec,
    FeedForward,
    LinearSpec,
    Narrowing,
    NormKind,
    NormSpec,
)
from pliant.models.encoder.part_builder import EncoderPart, IndexRange, PartBuilder
from pliant.models.hf.config import activation_of, embedding_head, label_names, read_json
from pliant.models.hf.encoder_flags import EncoderFlags, is_classifier, refuse_unsupported
from pliant.models.spec import Head, Pooling

_DEFAULT_EPS = 1e-5
"""The default of torch's layer norm: transformers does not set the configured epsilon for some of the
norms.
"""
_KINDS: dict[str, NormKind] = {"no_norm": "affine", "layer_norm": "layer"}
_PARTS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "query_in": "bottleneck.attention.dense",
    "query_in_norm": "bottleneck.attention.LayerNorm",
    "residual_in": "bottleneck.input.dense",
    "residual_in_norm": "bottleneck.input.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "output_norm": "output.LayerNorm",
    "widen": "output.bottleneck.dense",
    "widen_norm": "output.bottleneck.LayerNorm",
}
_ENDS = {
    "embeddings.word": "mobilebert.embeddings.word_embeddings.weight",
    "embeddings.position": "mobilebert.embeddings.position_embeddings.weight",
    "embeddings.type": "mobilebert.embeddings.token_type_embeddings.weight",
    "embeddings.project": "mobilebert.embeddings.embedding_transformation",
    "embeddings.norm": "mobilebert.embeddings.LayerNorm",
    "head.dense": "mobilebert.pooler.dense",
    "head.classifier": "classifier",
}


class _Config(EncoderFlags, kw_only=True):
    """config.json; absent keys take the defaults of transformers."""

    vocab_size: int = 30522
    hidden_size: int = 512
    num_hidden_layers: int = 24
    num_attention_heads: int = 4
    intermediate_size: int = 512
    hidden_act: str = "relu"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    embedding_size: int = 128
    trigram_input: bool = True
    use_bottleneck: bool = True
    intra_bottleneck_size: int = 128
    use_bottleneck_attention: bool = False
    key_query_shared_bottleneck: bool = True
    num_feedforward_networks: int = 4
    normalization_type: str = "no_norm"
    classifier_activation: bool = True


@final
@dataclass(frozen=True, slots=True)
class MobileBert:
    """A MobileBERT. Feeds are `ids` and `types`: integers [tokens]."""

    spec: EncoderSpec
    labels: tuple[str, ...] | None
    vocab: int
    n_types: int
    embedding: int
    is_trigram: bool
    norm: NormSpec
    has_dense: bool
    pooling: Pooling
    is_normalized: bool
    """Whether the vector, by `pooling`, has unit length; a classifier reads the first row."""

    position_offset = 0
    family = "mobilebert"

    @property
    def max_tokens(self) -> int:
        return self.spec.max_rows

    @property
    def answers(self) -> tuple[AnswerKind, ...]:
        return ("pooled", "hidden") if self.labels is None else ("logits", "hidden")

    @property
    def inputs(self) -> tuple[Port, ...]:
        return (TOKEN_IDS,)

    def end_shapes(self) -> Mapping[str, tuple[int, ...]]:
        hidden, project = self.spec.hidden, self._project
        shapes: dict[str, tuple[int, ...]] = {
            "embeddings.word": (self.vocab, self.embedding),
            "embeddings.position": (self.spec.max_rows, hidden),
            "embeddings.type": (self.n_types, hidden),
            "embeddings.norm.weight": (hidden,),
            "embeddings.norm.bias": (hidden,),
        }
        linears = [] if project is None else [project]
        if self.labels is not None:
            linears += [LinearSpec("head.dense", hidden, hidden)] if self.has_dense else []
            linears += [LinearSpec("head.classifier", hidden, len(self.labels))]
        for linear in linears:
            shapes[f"{linear.name}.weight"] = (linear.n_out, linear.n_in)
            shapes[f"{linear.name}.bias"] = (linear.n_out,)
        return shapes

    def saved_names(self, name: str, /) -> tuple[str, ...]:
        if name in _ENDS:
            found = _ENDS[name]
        else:
            stem, _, kind = name.rpartition(".")
            found = f"{_ENDS[stem] if stem in _ENDS else _layer_stem(stem)}.{kind}"
        return found, found.removeprefix("mobilebert.")

    def rows(self, feeds: Feeds, /) -> int:
        return len(check_tokens(feeds, self)[0])

    def prepare(self, feeds: Feeds, look_up: TableLookup, /) -> PreparedInput:
        return prepare_tokens(feeds, look_up, self)

    def sample(self, rows: int, seed: int, /) -> Feeds:
        return sample_tokens(rows, seed, self.vocab, self.spec.max_rows)

    def input(self, rows: int, /) -> EncoderPart:
        d, hidden = PartBuilder("input"), self.spec.hidden
        x = d.input("word", rows, self.embedding)
        types = d.input("type", rows, hidden)
        if self.is_trigram:
            x = _trigrams(d, x)
        if self._project is not None:
            x = d.linear(x, self._project)
        span = IndexRange(0, rows)
        x = d.add(x, d.weight("embeddings.position", self.spec.max_rows, hidden, rows=span))
        return d.part(x=d.norm(d.add(x, types), self.norm))

    def head(self, rows: int, answer: AnswerKind, /) -> EncoderPart:
        check_answer(self, answer)
        d, hidden = PartBuilder("head"), self.spec.hidden
        x = d.input("x", rows, hidden)
        if answer == "hidden":
            return d.part(answer=d.node("Identity", (x,), (rows, hidden)))
        if self.labels is None:
            x = d.row(x, 0) if self.pooling == "cls" else d.mean(x)
            return d.part(answer=d.reshape(d.unit(x) if self.is_normalized else x, hidden))
        x = d.row(x, 0)
        if self.has_dense:
            x = d.activate(d.linear(x, LinearSpec("head.dense", hidden, hidden)), "tanh")
        return add_classifier(d, x, hidden, self.labels)

    @property
    def _project(self) -> LinearSpec | None:
        width = 3 * self.embedding if self.is_trigram else self.embedding
        if not self.is_trigram and width == self.spec.hidden:
            return None
        return LinearSpec("embeddings.project", width, self.spec.hidden)


def read_mobilebert(path: Path, tensor_names: Collection[str]) -> MobileBert:
    """The model that the configuration at `path` describes. Raises ModelError naming file and key."""
    config: _Config = read_json(path, _Config)
    refuse_unsupported(path, config)
    if config.normalization_type not in _KINDS:
        raise ModelError(
            f"{path}: normalization_type {config.normalization_type!r} is none of {', '.join(_KINDS)}."
        )
    try:
        has_labels = is_classifier(config, "ForSequenceClassification", "classifier.weight" in tensor_names)
    except ModelError as e:
        raise ModelError(f"{path}: {e}") from e
    head = Head("cls", None, None) if has_labels else embedding_head(path.parent)
    try:
        return MobileBert(
            spec=_spec(path, config),
            labels=label_names(config.id2label, config.num_labels) if has_labels else None,
            vocab=config.vocab_size,
            n_types=config.type_vocab_size,
            embedding=config.embedding_size,
            is_trigram=config.trigram_input,
            norm=NormSpec(
                "embeddings.norm", config.hidden_size, _KINDS[config.normalization_type], _DEFAULT_EPS
            ),
            has_dense=config.classifier_activation,
            pooling=head.pooling,
            is_normalized=head.is_normalized,
        )
    except ModelError as e:
        raise ModelError(f"{path}: {e}") from e


def _spec(path: Path, c: _Config) -> EncoderSpec:
    inner = c.intra_bottleneck_size if c.use_bottleneck else c.hidden_size
    if min(c.num_attention_heads, inner) < 1 or inner % c.num_attention_heads:
        raise ModelError(f"{inner} columns do not divide into {c.num_attention_heads} heads.")
    kind, eps = _KINDS[c.normalization_type], c.layer_norm_eps

    def narrow(name: str) -> Narrowing:
        return Narrowing(LinearSpec(name, c.hidden_size, inner), NormSpec(f"{name}_norm", inner, kind, eps))

    def forward(prefix: str, norm: str, eps: float) -> FeedForward:
        up = LinearSpec(f"{prefix}up", inner, c.intermediate_size)
        down = LinearSpec(f"{prefix}down", c.intermediate_size, inner)
        return FeedForward(up, down, NormSpec(f"{prefix}{norm}", inner, kind, eps))

    residual_in = query_in = value_in = widen = None
    if c.use_bottleneck:
        residual_in = narrow("residual_in")
        if c.use_bottleneck_attention:
            query_in = value_in = residual_in
        elif c.key_query_shared_bottleneck:
            query_in = narrow("query_in")
        widen = Narrowing(
            LinearSpec("widen", inner, c.hidden_size), NormSpec("widen_norm", c.hidden_size, kind, eps)
        )
    inside = [forward(f"ffn{i}.", "norm", eps) for i in range(c.num_feedforward_networks - 1)]
    layer = EncoderLayer(
        LinearSpec("query", inner, inner),
        LinearSpec("key", inner, inner),
        LinearSpec("value", c.hidden_size if value_in is None else inner, inner),
        LinearSpec("output", inner, inner),
        NormSpec("attention_norm", inner, kind, eps),
        (*inside, forward("", "output_norm", _DEFAULT_EPS)),
        query_in=query_in,
        value_in=value_in,
        residual_in=residual_in,
        widen=widen,
    )
    return EncoderSpec(
        family="mobilebert",
        n_layers=c.num_hidden_layers,
        n_heads=c.num_attention_heads,
        head_dim=inner // c.num_attention_heads,
        hidden=c.hidden_size,
        inner=inner,
        ffn=c.intermediate_size,
        activation=activation_of(path, c.hidden_act),
        max_rows=c.max_position_embeddings,
        template=layer,
    )


def _layer_stem(stem: str) -> str:
    """`layers.3.up` or `layers.3.ffn0.up` in transformers' words."""
    _, layer, *parts = stem.split(".")
    prefix = f"mobilebert.encoder.layer.{layer}."
    if len(parts) == 1:
        return prefix + _PARTS[parts[0]]
    inside = {"up": "intermediate.dense", "down": "output.dense", "norm": "output.LayerNorm"}
    return f"{prefix}ffn.{parts[0].removeprefix('ffn')}.{inside[parts[1]]}"


def _trigrams(d: PartBuilder, x: str) -> str:
    """The embeddings of the next token, the token itself and the previous one, concatenated; zeros beyond the
    ends.
    """
    rows, columns = d.shape(x)
    nothing = d.constant("nothing", np.zeros((1, columns), np.float32))
    around = d.node("Concat", (nothing, x, nothing), (rows + 2, columns), axis=0)
    shifted = tuple(d.rows(around, first, first + rows) for first in (2, 1, 0))
    return d.node("Concat", shifted, (rows, 3 * columns), axis=1)
