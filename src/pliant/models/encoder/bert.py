"""BERT, DistilBERT, RoBERTa and ELECTRA as encoders."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.models.encoder.encoder_architecture import (
    AnswerKind,
    Feeds,
    PreparedInput,
    TableLookup,
    add_classifier,
    check_answer,
    check_feeds,
)
from pliant.models.encoder.encoder_spec import EncoderLayer, EncoderSpec, FeedForward, LinearSpec, NormSpec
from pliant.models.encoder.part_builder import EncoderPart, IndexRange, PartBuilder
from pliant.models.hf.weight_names import saved_names
from pliant.models.spec import ModelSpec, tensor_shapes
from pliant.models.token_ids import check_ids
from pliant.models.tokenizer import InputLimits

TOKEN_IDS = Port("ids", "int64", (None,))


@final
@dataclass(frozen=True, slots=True)
class Bert:
    """A BERT-family model. Feeds are `ids` and, where the model has types, `types`: integers [tokens]."""

    model: ModelSpec
    spec: EncoderSpec

    @property
    def labels(self) -> tuple[str, ...] | None:
        return self.model.head.labels

    @property
    def answers(self) -> tuple[AnswerKind, ...]:
        return ("pooled", "hidden") if self.labels is None else ("logits", "hidden")

    @property
    def inputs(self) -> tuple[Port, ...]:
        return (TOKEN_IDS,)

    def end_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: shape for name, shape in tensor_shapes(self.model) if not name.startswith("layers.")}

    def saved_names(self, name: str, /) -> tuple[str, ...]:
        return saved_names(self.model.family, name)

    def rows(self, feeds: Feeds, /) -> int:
        return len(check_tokens(feeds, self.model)[0])

    def prepare(self, feeds: Feeds, look_up: TableLookup, /) -> PreparedInput:
        return prepare_tokens(feeds, look_up, self.model)

    def sample(self, rows: int, seed: int, /) -> Feeds:
        return sample_tokens(rows, seed, self.model.vocab, self.model.max_tokens)

    def input(self, rows: int, /) -> EncoderPart:
        m, d = self.model, PartBuilder("input")
        x = d.input("word", rows, m.embedding)
        if m.n_types:
            x = d.add(x, d.input("type", rows, m.embedding))
        span = IndexRange(m.position_offset, m.position_offset + rows)
        shape = (m.max_tokens + m.position_offset, m.embedding)
        x = d.add(x, d.weight("embeddings.position", *shape, rows=span))
        x = d.norm(x, NormSpec("embeddings.norm", m.embedding, "layer", m.norm_eps))
        if m.embedding != m.hidden:
            x = d.linear(x, LinearSpec("embeddings.project", m.embedding, m.hidden))
        return d.part(x=x)

    def head(self, rows: int, answer: AnswerKind, /) -> EncoderPart:
        check_answer(self, answer)
        head, hidden, d = self.model.head, self.model.hidden, PartBuilder("head")
        x = d.input("x", rows, hidden)
        if answer == "hidden":
            return d.part(answer=d.node("Identity", (x,), (rows, hidden)))
        x = d.row(x, 0) if head.pooling == "cls" else d.mean(x)
        if head.dense is not None:
            x = d.activate(d.linear(x, LinearSpec("head.dense", hidden, hidden)), head.dense)
        if head.labels is not None:
            return add_classifier(d, x, hidden, head.labels)
        return d.part(answer=d.reshape(d.unit(x) if head.is_normalized else x, hidden))


def make_bert(m: ModelSpec) -> Bert:
    """The family of a BERT-family model."""
    d = m.hidden
    attention_norm, output_norm = (
        NormSpec(name, d, "layer", m.norm_eps) for name in ("attention_norm", "output_norm")
    )
    query, key, value, output = (LinearSpec(name, d, d) for name in ("query", "key", "value", "output"))
    forward = FeedForward(LinearSpec("up", d, m.ffn), LinearSpec("down", m.ffn, d), output_norm)
    layer = EncoderLayer(query, key, value, output, attention_norm, (forward,))
    return Bert(
        m,
        EncoderSpec(
            m.family, m.n_layers, m.n_heads, m.head_dim, d, d, m.ffn, m.activation, m.max_tokens, layer
        ),
    )


def check_tokens(feeds: Feeds, limits: InputLimits) -> tuple[np.ndarray, np.ndarray]:
    """`ids` and `types`, integers [tokens]; types default to 0.

    Raises InputError for ids or types that the model does not have, and for too many or no tokens.
    """
    found = check_feeds(feeds, ("ids", "types"), "iu")
    ids = found["ids"]
    if ids.ndim != 1 or not 1 <= len(ids) <= limits.max_tokens:
        raise InputError(f"ids are {list(ids.shape)}, but the model reads 1 to {limits.max_tokens} tokens.")
    types = found.get("types", np.zeros_like(ids))
    if types.shape != ids.shape:
        raise InputError(f"there are {list(types.shape)} types, but {len(ids)} ids.")
    check_ids(ids, limits.vocab, "token id")
    check_ids(types, max(limits.n_types, 1), "token type")
    return ids, types


def prepare_tokens(feeds: Feeds, look_up: TableLookup, limits: InputLimits) -> PreparedInput:
    """`word`, and `type` where there are types: rows of "embeddings.word" and "embeddings.type".

    Raises InputError as `check_tokens` does.
    """
    ids, types = check_tokens(feeds, limits)
    rows = {"word": look_up("embeddings.word", ids)}
    if limits.n_types:
        rows["type"] = look_up("embeddings.type", types)
    return PreparedInput(len(ids), rows)


def sample_tokens(rows: int, seed: int, vocab: int, max_tokens: int) -> Feeds:
    """Random ids, of one type."""
    if not 1 <= rows <= max_tokens:
        raise InputError(f"{rows} rows are out of the model's range, 1 to {max_tokens}.")
    return {"ids": np.random.default_rng(seed).integers(0, vocab, rows).astype(np.int32)}
