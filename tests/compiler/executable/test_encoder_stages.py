"""The local engine's graphs, compiled: what they take of memory at every width."""

from typing import get_args

import pytest

from pliant.compiler.executable import encoder_stages
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encoder_stages import arena_bytes
from pliant.compiler.executable.place_tensors import Lifetime, place_tensors
from pliant.compiler.executable.stage import coded_form
from pliant.kernels.emit.isa import AVX512_AMX, X86_64, Isa
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


@pytest.mark.parametrize("isa", [X86_64, AVX512_AMX], ids=["sse", "amx"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_layer_takes_five_tensors(
    shape: tuple[int, int, int], isa: Isa, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hidden, qkv, attended, normed, ffn, by lifetime: sums and norms are made in place. Tiles also take both
    parts of a product's rows.
    """
    monkeypatch.setattr(encoder_stages, "host_isa", lambda: isa)
    spec = _spec(*shape)
    g, tokens = slice_geometry(spec), 40
    qkv, attended, ffn = (spec.n_heads * n for n in (3 * g.head_dim, g.head_dim, g.slice_ffn))
    lives = [(g.hidden, 0, 9), (qkv, 1, 2), (attended, 2, 4), (g.hidden, 4, 9), (ffn, 7, 9)]
    if isa.has_tiles:
        lives += [(g.hidden, 0, 1), (attended, 3, 4), (g.hidden, 6, 7), (ffn, 8, 9)]
    tensors = [Lifetime(4 * tokens * n, *life) for n, *life in lives]
    assert arena_bytes(spec, "F32", tokens) <= place_tensors(tensors).n_bytes
