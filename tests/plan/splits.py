"""Encoder specs of every shape of layer, and random uneven partitions of them: zeros, grids, any primary."""

import numpy as np

from pliant.ir.partition import DeviceGrid, Mode, Partition, Share
from pliant.models.encoder.encoder_spec import (
    EncoderLayer,
    EncoderSpec,
    FeedForward,
    LinearSpec,
    Narrowing,
    NormSpec,
)

MODES: tuple[Mode, ...] = ("ws", "1d", "2d")


def bert(
    hidden: int = 12, heads: int = 4, ffn: int = 20, n_layers: int = 2, *, pre: bool = False
) -> EncoderSpec:
    """A post-norm encoder, or a pre-norm one."""
    forward = FeedForward(
        LinearSpec("up", hidden, ffn),
        LinearSpec("down", ffn, hidden),
        NormSpec("norm", hidden, "layer", 1e-5),
    )
    square = {name: LinearSpec(name, hidden, hidden) for name in ("query", "key", "value", "output")}
    layer = EncoderLayer(
        **square,
        attention_norm=NormSpec("attention_norm", hidden, "layer", 1e-5),
        feed_forwards=(forward,),
        is_pre_norm=pre,
    )
    family = "vit" if pre else "bert"
    return EncoderSpec(family, n_layers, heads, hidden // heads, hidden, hidden, ffn, "gelu", 512, layer)


def mobilebert() -> EncoderSpec:
    """A bottleneck of 8 in 12, two feed forwards, a narrowing that two products share."""
    affine = {
        name: NormSpec(name, n, "affine", 1e-12) for name, n in (("n0", 8), ("n1", 8), ("n2", 12), ("a", 8))
    }
    forwards = tuple(
        FeedForward(
            LinearSpec(f"up{i}", 8, 20), LinearSpec(f"down{i}", 20, 8), NormSpec(f"f{i}", 8, "affine", 1e-12)
        )
        for i in range(2)
    )
    layer = EncoderLayer(
        query=LinearSpec("query", 8, 8),
        key=LinearSpec("key", 8, 8),
        value=LinearSpec("value", 12, 8),
        output=LinearSpec("output", 8, 8),
        attention_norm=affine["a"],
        feed_forwards=forwards,
        query_in=Narrowing(LinearSpec("query_in", 12, 8), affine["n0"]),
        residual_in=Narrowing(LinearSpec("residual_in", 12, 8), affine["n1"]),
        widen=Narrowing(LinearSpec("widen", 8, 12), affine["n2"]),
    )
    return EncoderSpec("mobilebert", 2, 4, 2, 12, 8, 20, "relu", 512, layer)


def cut(rng: np.random.Generator, total: int, parts: int) -> list[int]:
    """`total` in `parts` numbers, zeros among them."""
    marks = sorted(rng.integers(0, total + 1, parts - 1).tolist())
    return [b - a for a, b in zip([0, *marks], [*marks, total], strict=True)]


def partition(spec: EncoderSpec, mode: Mode, ranks: int, tokens: int, seed: int) -> Partition:
    """A random partition; in a grid some devices may be left out."""
    rng = np.random.default_rng(seed)
    names = [f"d{i}" for i in range(ranks)]
    if mode == "2d":
        return _gridded(spec, names, tokens, rng)
    columns = cut(rng, spec.ffn, ranks) if mode == "1d" else [0] * ranks
    counts = zip(cut(rng, spec.n_heads, ranks), cut(rng, tokens, ranks), columns, strict=True)
    shares = tuple(Share(name, *n) for name, n in zip(names, counts, strict=True))
    return Partition(mode, str(rng.choice(names)), shares, tokens)


def _gridded(spec: EncoderSpec, names: list[str], tokens: int, rng: np.random.Generator) -> Partition:
    primary = str(rng.choice(names))
    n = int(rng.integers(1, len(names) + 1))
    placed = [names[i] for i in sorted(rng.choice(len(names), n, replace=False))]
    width = int(rng.choice([w for w in range(1, n + 1) if n % w == 0]))
    groups = tuple(tuple(placed[i : i + width]) for i in range(0, n, width))
    grid = DeviceGrid(
        groups,
        tuple(cut(rng, spec.inner, width)),
        tuple(cut(rng, spec.inner, len(groups))),
    )
    counts = zip(*(cut(rng, total, n) for total in (spec.n_heads, tokens, spec.ffn)), strict=True)
    by_name = dict(zip(placed, counts, strict=True))
    shares = tuple(Share(name, *by_name.get(name, (0, 0, 0))) for name in names)
    return Partition("2d", primary, shares, tokens, grid)


def problem(seed: int) -> tuple[EncoderSpec, Partition]:
    """A spec and a partition of it over 1 to 6 devices."""
    rng = np.random.default_rng(seed)
    spec = (bert(), bert(pre=True), mobilebert())[rng.integers(3)]
    mode, ranks, tokens = MODES[rng.integers(3)], int(rng.integers(1, 7)), int(rng.integers(1, 10))
    return spec, partition(spec, mode, ranks, tokens, seed)
