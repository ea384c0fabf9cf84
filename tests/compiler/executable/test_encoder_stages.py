"""The local engine's graphs, compiled: what they take of memory at every width."""

from typing import get_args

import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encoder_stages import arena_bytes
from pliant.compiler.executable.place_tensors import Lifetime, place_tensors
from pliant.compiler.executable.stage import coded_form
from pliant.kernels.emit.isa import X86_64
from pliant.models.encoder.encoder_graph import ComputeDtype, layer_graph
from pliant.models.slice_shapes import slice_geometry
from pliant.models.spec import ModelSpec
from tests.tiny import tiny_spec

SHAPES = [
    (4, 32, 64),
    (12, 384, 1536),
    (12, 768, 3072),
    (4, 160, 448),
    (8, 256, 768),
    (2, 512, 512),
    (3, 96, 2304),
]


def _spec(n_heads: int, hidden: int, ffn: int) -> ModelSpec:
    return tiny_spec(n_heads=n_heads, hidden=hidden, ffn=ffn, embedding=hidden, widths=(n_heads,))


@pytest.mark.parametrize("compute", get_args(ComputeDtype))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_narrower_layer_never_needs_a_larger_arena(
    shape: tuple[int, int, int], compute: ComputeDtype
) -> None:
    """The arena is made for the full width, and layers of any width run in it, in place."""
    spec = _spec(*shape)
    target = Target(X86_64)
    images = [coded_form(layer_graph(spec, m, 40, compute), target).image for m in range(1, spec.n_heads + 1)]
    needed = [image.arena_bytes for image in images]
    assert needed == sorted(needed)
    assert all(image.may_replace("out", "hidden") for image in images)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_layer_takes_five_tensors(shape: tuple[int, int, int]) -> None:
    """hidden, qkv, attended, normed, ffn, by lifetime: sums and norms are made in place."""
    spec = _spec(*shape)
    g, tokens = slice_geometry(spec), 40
    columns = (g.hidden, spec.n_heads * 3 * g.head_dim, spec.n_heads * g.head_dim, g.hidden,
               spec.n_heads * g.slice_ffn)  # fmt: skip
    lives = ((0, 6), (0, 1), (1, 2), (2, 6), (4, 5))
    tensors = [Lifetime(4 * tokens * n, *life) for n, life in zip(columns, lives, strict=True)]
    assert arena_bytes(spec, "F32", tokens) <= place_tensors(tensors).n_bytes
