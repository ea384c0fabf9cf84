"""ViT (Dosovitskiy et al. 2021) as an encoder: patches in, logits or hidden states out."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from pliant.errors import InputError, ModelError
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
from pliant.models.encoder.part_builder import EncoderPart, PartBuilder
from pliant.models.hf.config import activation_of, label_names, read_json
from pliant.models.hf.encoder_flags import EncoderFlags, is_classifier, refuse_unsupported

_LAYER = {
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "output": "attention.output.dense",
    "attention_norm": "layernorm_before",
    "output_norm": "layernorm_after",
    "up": "intermediate.dense",
    "down": "output.dense",
}
_ENDS = {
    "embeddings.class": "vit.embeddings.cls_token",
    "embeddings.position": "vit.embeddings.position_embeddings",
    "embeddings.patch.weight": "vit.embeddings.patch_embeddings.projection.weight",
    "embeddings.patch.bias": "vit.embeddings.patch_embeddings.projection.bias",
    "head.norm.weight": "vit.layernorm.weight",
    "head.norm.bias": "vit.layernorm.bias",
    "head.classifier.weight": "classifier.weight",
    "head.classifier.bias": "classifier.bias",
}


class _Config(EncoderFlags, kw_only=True):
    """config.json; absent keys take the defaults of transformers."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    image_size: int | tuple[int, int] = 224
    patch_size: int | tuple[int, int] = 16
    num_channels: int = 3
    qkv_bias: bool = True


@final
@dataclass(frozen=True, slots=True)
class Vit:
    """A ViT. Its feed is `pixels`, floats [channels, height, width], scaled as in the model's training."""

    spec: EncoderSpec
    labels: tuple[str, ...] | None
    image: tuple[int, int, int]
    patch: tuple[int, int]
    norm: NormSpec

    @property
    def answers(self) -> tuple[AnswerKind, ...]:
        return ("hidden",) if self.labels is None else ("logits", "hidden")

    @property
    def inputs(self) -> tuple[Port, ...]:
        return (Port("pixels", "float32", self.image),)

    def end_shapes(self) -> Mapping[str, tuple[int, ...]]:
        hidden, rows = self.spec.hidden, self.spec.max_rows
        shapes: dict[str, tuple[int, ...]] = {
            "embeddings.class": (1, 1, hidden),
            "embeddings.position": (1, rows, hidden),
            "embeddings.patch.weight": (hidden, self.image[0], *self.patch),
            "embeddings.patch.bias": (hidden,),
            "head.norm.weight": (hidden,),
            "head.norm.bias": (hidden,),
        }
        if self.labels is not None:
            shapes["head.classifier.weight"] = (len(self.labels), hidden)
            shapes["head.classifier.bias"] = (len(self.labels),)
        return shapes

    def saved_names(self, name: str, /) -> tuple[str, ...]:
        if name in _ENDS:
            found = _ENDS[name]
        else:
            _, layer, part, kind = name.split(".")
            found = f"vit.encoder.layer.{layer}.{_LAYER[part]}.{kind}"
        return found, found.removeprefix("vit.")

    def rows(self, feeds: Feeds, /) -> int:
        pixels = check_feeds(feeds, ("pixels",), "f")["pixels"]
        if pixels.shape != self.image:
            raise InputError(f"pixels are {list(pixels.shape)}, but the model reads {list(self.image)}.")
        return self.spec.max_rows

    def prepare(self, feeds: Feeds, look_up: TableLookup, /) -> PreparedInput:
        rows = self.rows(feeds)
        return PreparedInput(rows, {"pixels": np.asarray(feeds["pixels"], np.float32)})

    def sample(self, rows: int, seed: int, /) -> Feeds:
        self._check(rows)
        return {"pixels": np.random.default_rng(seed).standard_normal(self.image, np.float32)}

    def input(self, rows: int, /) -> EncoderPart:
        self._check(rows)
        d, hidden = PartBuilder("input"), self.spec.hidden
        pixels = d.reshape(d.input("pixels", *self.image), 1, *self.image)
        kernel = (hidden, self.image[0], *self.patch)
        weights = d.weight("embeddings.patch.weight", *kernel), d.weight("embeddings.patch.bias", hidden)
        across = tuple(n // p for n, p in zip(self.image[1:], self.patch, strict=True))
        x = d.node("Conv", (pixels, *weights), (1, hidden, *across), strides=self.patch)
        x = d.node("Transpose", (x,), (1, *across, hidden), perm=(0, 2, 3, 1))
        x = d.reshape(x, 1, rows - 1, hidden)
        first = d.weight("embeddings.class", 1, 1, hidden)
        x = d.node("Concat", (first, x), (1, rows, hidden), axis=1)
        x = d.add(x, d.weight("embeddings.position", 1, rows, hidden))
        return d.part(x=d.reshape(x, rows, hidden))

    def head(self, rows: int, answer: AnswerKind, /) -> EncoderPart:
        check_answer(self, answer)
        d = PartBuilder("head")
        x = d.input("x", rows, self.spec.hidden)
        if answer == "hidden" or self.labels is None:
            return d.part(answer=d.norm(x, self.norm))
        return add_classifier(d, d.norm(d.row(x, 0), self.norm), self.spec.hidden, self.labels)

    def _check(self, rows: int) -> None:
        if rows != self.spec.max_rows:
            raise InputError(
                f"an image of {self.image[1]} x {self.image[2]} pixels has {self.spec.max_rows} rows, "
                f"not {rows}."
            )


def read_vit(path: Path, tensor_names: Collection[str]) -> Vit:
    """The model that the configuration at `path` describes. Raises ModelError naming file and key."""
    c: _Config = read_json(path, _Config)
    refuse_unsupported(path, c)
    height, width = _pair(c.image_size)
    patch = _pair(c.patch_size)
    if min(*patch, height, width, c.num_channels) < 1 or height % patch[0] or width % patch[1]:
        raise ModelError(f"{path}: an image of {height} x {width} is not whole patches of {patch}.")
    if min(c.num_attention_heads, c.hidden_size) < 1 or c.hidden_size % c.num_attention_heads:
        raise ModelError(f"{path}: {c.hidden_size} columns do not divide into {c.num_attention_heads} heads.")
    d, f = c.hidden_size, c.intermediate_size
    norm, forward_norm = (
        NormSpec(n, d, "layer", c.layer_norm_eps) for n in ("attention_norm", "output_norm")
    )
    query, key, value = (LinearSpec(name, d, d, c.qkv_bias) for name in ("query", "key", "value"))
    layer = EncoderLayer(
        query,
        key,
        value,
        LinearSpec("output", d, d),
        norm,
        (FeedForward(LinearSpec("up", d, f), LinearSpec("down", f, d), forward_norm),),
        is_pre_norm=True,
    )
    try:
        spec = EncoderSpec(
            family="vit",
            n_layers=c.num_hidden_layers,
            n_heads=c.num_attention_heads,
            head_dim=d // c.num_attention_heads,
            hidden=d,
            inner=d,
            ffn=f,
            activation=activation_of(path, c.hidden_act),
            max_rows=height // patch[0] * (width // patch[1]) + 1,
            template=layer,
        )
        has_labels = is_classifier(c, "ForImageClassification", "classifier.weight" in tensor_names)
        labels = label_names(c.id2label, c.num_labels) if has_labels else None
    except ModelError as e:
        raise ModelError(f"{path}: {e}") from e
    return Vit(
        spec,
        labels,
        (c.num_channels, height, width),
        patch,
        NormSpec("head.norm", d, "layer", c.layer_norm_eps),
    )


def _pair(n: int | tuple[int, int]) -> tuple[int, int]:
    return (n, n) if isinstance(n, int) else n
