"""Whisper's encoder (Radford et al. 2023): log-mel in, hidden states out."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import msgspec
import numpy as np

from pliant.errors import InputError, ModelError
from pliant.ir.port import Port
from pliant.models.encoder.encoder_architecture import (
    AnswerKind,
    Feeds,
    PreparedInput,
    TableLookup,
    check_answer,
    check_feeds,
)
from pliant.models.encoder.encoder_spec import EncoderLayer, EncoderSpec, FeedForward, LinearSpec, NormSpec
from pliant.models.encoder.part_builder import EncoderPart, IndexRange, PartBuilder
from pliant.models.hf.config import activation_of, read_json

_EPS = 1e-5
_STRIDE = 2
_LAYER = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "output_norm": "final_layer_norm",
    "up": "fc1",
    "down": "fc2",
}
_ENDS = {
    "embeddings.conv1.weight": "conv1.weight",
    "embeddings.conv1.bias": "conv1.bias",
    "embeddings.conv2.weight": "conv2.weight",
    "embeddings.conv2.bias": "conv2.bias",
    "embeddings.position": "embed_positions.weight",
    "head.norm.weight": "layer_norm.weight",
    "head.norm.bias": "layer_norm.bias",
}


class _Config(msgspec.Struct):
    """config.json; absent keys take the defaults of transformers (those of whisper-tiny)."""

    num_mel_bins: int = 80
    d_model: int = 384
    encoder_layers: int = 4
    encoder_attention_heads: int = 6
    encoder_ffn_dim: int = 1536
    activation_function: str = "gelu"
    max_source_positions: int = 1500


@final
@dataclass(frozen=True, slots=True)
class Whisper:
    """Whisper's encoder. Its feed is `mel`, floats [bins, frames], two frames per row.

    The model was trained on 30 s of audio, `max_rows` rows; a shorter input uses its first positions.
    """

    spec: EncoderSpec
    bins: int

    @property
    def labels(self) -> None:
        return None

    @property
    def answers(self) -> tuple[AnswerKind, ...]:
        return ("hidden",)

    @property
    def inputs(self) -> tuple[Port, ...]:
        return (Port("mel", "float32", (self.bins, None)),)

    def end_shapes(self) -> Mapping[str, tuple[int, ...]]:
        d = self.spec.hidden
        return {
            "embeddings.conv1.weight": (d, self.bins, 3),
            "embeddings.conv1.bias": (d,),
            "embeddings.conv2.weight": (d, d, 3),
            "embeddings.conv2.bias": (d,),
            "embeddings.position": (self.spec.max_rows, d),
            "head.norm.weight": (d,),
            "head.norm.bias": (d,),
        }

    def saved_names(self, name: str, /) -> tuple[str, ...]:
        if name in _ENDS:
            found = _ENDS[name]
        else:
            _, layer, part, kind = name.split(".")
            found = f"layers.{layer}.{_LAYER[part]}.{kind}"
        return f"model.encoder.{found}", f"encoder.{found}", found

    def rows(self, feeds: Feeds, /) -> int:
        mel = check_feeds(feeds, ("mel",), "f")["mel"]
        most = _STRIDE * self.spec.max_rows
        if mel.ndim != 2 or len(mel) != self.bins or mel.shape[1] % _STRIDE or not 0 < mel.shape[1] <= most:
            raise InputError(
                f"mel is {list(mel.shape)}, but the model reads [{self.bins}, frames], an even number of "
                f"frames up to {most}."
            )
        return int(mel.shape[1]) // _STRIDE

    def prepare(self, feeds: Feeds, look_up: TableLookup, /) -> PreparedInput:
        rows = self.rows(feeds)
        return PreparedInput(rows, {"mel": np.asarray(feeds["mel"], np.float32)})

    def sample(self, rows: int, seed: int, /) -> Feeds:
        self._check(rows)
        return {"mel": np.random.default_rng(seed).standard_normal((self.bins, _STRIDE * rows), np.float32)}

    def input(self, rows: int, /) -> EncoderPart:
        self._check(rows)
        d, hidden, frames = PartBuilder("input"), self.spec.hidden, _STRIDE * rows
        x = d.reshape(d.input("mel", self.bins, frames), 1, self.bins, frames)
        for name, n_in, n, stride in (("conv1", self.bins, frames, 1), ("conv2", hidden, rows, _STRIDE)):
            weight = d.weight(f"embeddings.{name}.weight", hidden, n_in, 3)
            bias = d.weight(f"embeddings.{name}.bias", hidden)
            x = d.node("Conv", (x, weight, bias), (1, hidden, n), strides=(stride,), pads=(1, 1))
            x = d.activate(x, "gelu")
        x = d.reshape(d.node("Transpose", (x,), (1, rows, hidden), perm=(0, 2, 1)), rows, hidden)
        position = d.weight("embeddings.position", self.spec.max_rows, hidden, rows=IndexRange(0, rows))
        return d.part(x=d.add(x, position))

    def head(self, rows: int, answer: AnswerKind, /) -> EncoderPart:
        check_answer(self, answer)
        d, hidden = PartBuilder("head"), self.spec.hidden
        return d.part(answer=d.norm(d.input("x", rows, hidden), NormSpec("head.norm", hidden, "layer", _EPS)))

    def _check(self, rows: int) -> None:
        if not 1 <= rows <= self.spec.max_rows:
            raise InputError(f"{rows} rows are out of the model's range, 1 to {self.spec.max_rows}.")


def read_whisper(path: Path, tensor_names: Collection[str]) -> Whisper:
    """The encoder that the configuration at `path` describes. Raises ModelError naming file and key."""
    c: _Config = read_json(path, _Config)
    d, f, heads = c.d_model, c.encoder_ffn_dim, c.encoder_attention_heads
    if min(heads, d) < 1 or d % heads:
        raise ModelError(f"{path}: {d} columns do not divide into {heads} heads.")
    layer = EncoderLayer(
        LinearSpec("query", d, d),
        LinearSpec("key", d, d, has_bias=False),
        LinearSpec("value", d, d),
        LinearSpec("output", d, d),
        NormSpec("attention_norm", d, "layer", _EPS),
        (
            FeedForward(
                LinearSpec("up", d, f), LinearSpec("down", f, d), NormSpec("output_norm", d, "layer", _EPS)
            ),
        ),
        is_pre_norm=True,
    )
    try:
        spec = EncoderSpec(
            family="whisper",
            n_layers=c.encoder_layers,
            n_heads=heads,
            head_dim=d // heads,
            hidden=d,
            inner=d,
            ffn=f,
            activation=activation_of(path, c.activation_function),
            max_rows=c.max_source_positions,
            template=layer,
        )
    except ModelError as e:
        raise ModelError(f"{path}: {e}") from e
    return Whisper(spec, c.num_mel_bins)
