"""A decoder with GPT-2's architecture, exported with its past: keys and values in, and out with one more
row.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Sizes:
    layers: int = 6
    hidden: int = 384
    heads: int = 6
    vocabulary: int = 8192
    positions: int = 1024


class _Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        n = sizes.hidden
        self.heads = sizes.heads
        self.first, self.second = nn.LayerNorm(n), nn.LayerNorm(n)
        self.qkv, self.out = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x: Tensor, mask: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, rows, hidden = x.shape
        q, k, v = (
            part.view(batch, rows, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.qkv(self.first(x)).split(hidden, 2)
        )
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        scores = q @ keys.transpose(2, 3) * (hidden // self.heads) ** -0.5
        scores = torch.where(mask, scores, torch.full([], -1e9))
        x = x + self.out((scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, rows, hidden))
        return x + self.down(nn.functional.gelu(self.up(self.second(x)))), keys, values


class Decoder(nn.Module):
    """Logits of every row, and keys and values of all layers, for ids and those of the rows before."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.places = nn.Embedding(sizes.positions, sizes.hidden)
        self.layers = nn.ModuleList(_Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden)
        mask = torch.tril(torch.ones(sizes.positions, sizes.positions, dtype=torch.bool))
        self.register_buffer("mask", mask[None, None])

    def forward(self, ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        before, rows = past[0].shape[2], ids.shape[1]
        x = self.words(ids) + self.places(torch.arange(before, before + rows))[None]
        mask: Any = self.mask
        mask = mask[:, :, before : before + rows, : before + rows]
        present = []
        for i, layer in enumerate(self.layers):
            x, keys, values = layer(x, mask, past[2 * i], past[2 * i + 1])
            present += [keys, values]
        return self.norm(x) @ self.words.weight.T, *present


def names(sizes: Sizes, what: str) -> list[str]:
    return [f"{what}.{i}.{part}" for i in range(sizes.layers) for part in ("key", "value")]


def random_past(sizes: Sizes, rows: int) -> dict[str, np.ndarray]:
    """Keys and values of `rows` rows, at random."""
    rng = np.random.default_rng(0)
    shape = (1, sizes.heads, rows, sizes.hidden // sizes.heads)
    return {name: rng.standard_normal(shape, np.float32) for name in names(sizes, "past")}


def export_decoder(path: Path, sizes: Sizes) -> Path:
    """Write the decoder as ONNX by TorchScript's exporter; batch, rows and rows of the past are open."""
    torch.manual_seed(0)
    ids = torch.zeros(1, 2, dtype=torch.int64)
    past = [torch.from_numpy(a) for a in random_past(sizes, 3).values()]
    before, after = names(sizes, "past"), names(sizes, "present")
    axes = {"ids": {0: "batch", 1: "rows"}, "logits": {0: "batch", 1: "rows"}}
    axes |= {name: {0: "batch", 2: "past"} for name in before}
    axes |= {name: {0: "batch", 2: "all"} for name in after}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Decoder(sizes).eval(), (ids, *past), str(path), input_names=["ids", *before],
            output_names=["logits", *after], dynamic_axes=axes, opset_version=17, dynamo=False,
        )  # fmt: skip
    return path
