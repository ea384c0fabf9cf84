"""Parts of a layer: together they are the layer, however it is cut, and the compiler fuses them."""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.fragment import fragment_image
from pliant.compiler.passes.passes import simplify
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder import encoder_parts as parts
from pliant.models.encoder.encoder_spec import (
    EncoderLayer,
    EncoderSpec,
    FeedForward,
    LinearSpec,
    Narrowing,
    NormSpec,
)
from pliant.models.encoder.part_builder import EncoderPart, IndexRange
from pliant.run.graph.array_stage import open_image
from tests.reference_encoder import run_layer

# Sums of some 50 products of O(1) in float32, a few of them in a row, on results of O(1): about 1e-6.
TOLERANCE = 2e-5
ROWS = 7
Run = Callable[..., dict[str, np.ndarray]]


def _norm(name: str, n: int, kind: str = "layer") -> NormSpec:
    return NormSpec(name, n, kind, 1e-5)  # type: ignore[arg-type]


def _plain(is_pre_norm: bool, activation: str, has_bias: bool = True) -> EncoderSpec:
    """Three heads of 5 columns, a hidden size that is not their sum, and an odd feed forward."""
    hidden, attended, ffn = 13, 15, 19
    layer = EncoderLayer(
        LinearSpec("query", hidden, attended),
        LinearSpec("key", hidden, attended, has_bias),
        LinearSpec("value", hidden, attended),
        LinearSpec("output", attended, hidden),
        _norm("attention_norm", hidden),
        (
            FeedForward(
                LinearSpec("up", hidden, ffn), LinearSpec("down", ffn, hidden), _norm("output_norm", hidden)
            ),
        ),
        is_pre_norm,
    )
    return EncoderSpec("bert", 2, 3, 5, hidden, hidden, ffn, activation, 99, layer)  # type: ignore[arg-type]


def _bottlenecked(kind: str, shares_value: bool) -> EncoderSpec:
    """MobileBERT's layer: two feed forwards inside of a bottleneck."""
    hidden, inner, ffn = 14, 9, 11

    def narrow(name: str) -> Narrowing:
        return Narrowing(LinearSpec(name, hidden, inner), _norm(f"{name}_norm", inner, kind))

    def forward(name: str) -> FeedForward:
        up, down = LinearSpec(f"{name}up", inner, ffn), LinearSpec(f"{name}down", ffn, inner)
        return FeedForward(up, down, _norm(f"{name}norm", inner, kind))

    entry = narrow("residual_in")
    query_in = entry if shares_value else narrow("query_in")
    layer = EncoderLayer(
        LinearSpec("query", inner, inner),
        LinearSpec("key", inner, inner),
        LinearSpec("value", inner if shares_value else hidden, inner),
        LinearSpec("output", inner, inner),
        _norm("attention_norm", inner, kind),
        (forward("ffn0."), forward("")),
        query_in=query_in,
        value_in=entry if shares_value else None,
        residual_in=entry,
        widen=Narrowing(LinearSpec("widen", inner, hidden), _norm("widen_norm", hidden, kind)),
    )
    return EncoderSpec("mobilebert", 2, 3, 3, hidden, inner, ffn, "relu", 99, layer)


SPECS = {
    "post-norm": _plain(False, "gelu"),
    "pre-norm": _plain(True, "gelu_tanh"),
    "key without bias": _plain(True, "gelu", has_bias=False),
    "bottleneck": _bottlenecked("affine", False),
    "bottleneck for all": _bottlenecked("layer", True),
}
EVERY_SPEC = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


@pytest.fixture(scope="module")
def run() -> Run:
    """`run(part, tensors, **feeds)` compiles the part on layer 1's weights and runs it."""
    library = Library(host_isa(), None)
    pool = ThreadPool(1, library)

    def once(
        part: EncoderPart, tensors: Mapping[str, np.ndarray], **feeds: np.ndarray
    ) -> dict[str, np.ndarray]:
        image = fragment_image(part.graph(tensors.__getitem__, 1), Target(library.isa))
        return open_image(image, pool, library).run(feeds)

    return once


def weights(spec: EncoderSpec, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1] if len(shape) > 1 else 4))
        for name, shape in spec.layer(1).tensors
    }


def inputs(spec: EncoderSpec) -> np.ndarray:
    return np.random.default_rng(9).standard_normal((ROWS, spec.hidden), np.float32)


@EVERY_SPEC
def test_a_whole_layer_equals_float64_numpy(spec: EncoderSpec, run: Run) -> None:
    """One device alone runs this: it is what every split is held against."""
    tensors, x = weights(spec), inputs(spec)
    got = run(parts.whole_layer_part(spec, ROWS), tensors, x=x)["out"]
    np.testing.assert_allclose(got, run_layer(spec, 1, tensors, x), atol=TOLERANCE)


@EVERY_SPEC
def test_heads_apart_and_rows_apart_are_the_layer(spec: EncoderSpec, run: Run) -> None:
    """WS: any heads on one device, any rows on another."""
    tensors, x = weights(spec), inputs(spec)
    attended = [
        run(parts.attention_part(spec, ROWS, s), tensors, x=x)["attended"] for s in _cut(spec.n_heads)
    ]
    whole = np.concatenate(attended, axis=1)
    out = [
        run(parts.row_wise_part(spec, s.n), tensors, attended=whole[s.start : s.stop], x=x[s.start : s.stop])[
            "out"
        ]
        for s in _cut(ROWS)
    ]
    np.testing.assert_allclose(np.concatenate(out), run_layer(spec, 1, tensors, x), atol=TOLERANCE)


@EVERY_SPEC
@pytest.mark.parametrize("is_joined", [True, False])
def test_partial_products_add_up_to_the_layer(spec: EncoderSpec, is_joined: bool, run: Run) -> None:
    """1D-tiled: heads and columns apart, sums and norms by rows."""
    tensors, x = weights(spec), inputs(spec)
    partials = []
    for heads in _cut(spec.n_heads):
        if is_joined:
            partials.append(run(parts.attention_product_part(spec, ROWS, heads), tensors, x=x)["partial"])
        else:
            attended = run(parts.attention_part(spec, ROWS, heads), tensors, x=x)["attended"]
            columns = IndexRange(heads.start * spec.head_dim, heads.stop * spec.head_dim)
            part = parts.tile_part(spec.template.output, ROWS, columns, IndexRange(0, spec.inner))
            partials.append(run(part, tensors, tile_in=attended)["partial"])
    np.testing.assert_allclose(
        _by_rows(spec, tensors, x, partials, run), run_layer(spec, 1, tensors, x), atol=TOLERANCE
    )


@EVERY_SPEC
def test_tiles_of_both_products_add_up_to_the_feed_forward(spec: EncoderSpec, run: Run) -> None:
    """2D-tiled: `up` is summed before its activation, which is not linear."""
    tensors, forward = weights(spec), spec.template.feed_forwards[-1]
    h = np.random.default_rng(3).standard_normal((ROWS, spec.inner), np.float32)
    last = len(spec.template.feed_forwards) - 1
    total = np.zeros((ROWS, spec.inner))
    for columns in _cut(spec.ffn):
        tiles = {}
        for i, block in enumerate(_cut(spec.inner)):
            part = parts.tile_part(forward.up, ROWS, block, columns)
            tiles[f"partial.{i}"] = run(part, tensors, tile_in=h[:, block.start : block.stop])["partial"]
        activated = run(parts.activation_part(spec, ROWS, last, columns, len(tiles)), tensors, **tiles)[
            "activated"
        ]
        for block in _cut(spec.inner):
            part = parts.tile_part(forward.down, ROWS, columns, block)
            total[:, block.start : block.stop] += run(part, tensors, tile_in=activated)["partial"]
    whole = run(parts.feed_forward_part(spec, ROWS, last, IndexRange(0, spec.ffn)), tensors, h=h)["partial"]
    np.testing.assert_allclose(total, whole, atol=TOLERANCE)


@EVERY_SPEC
def test_products_take_along_all_that_follows_them(spec: EncoderSpec) -> None:
    """A bias, activation or residual in a pass of its own would read and write all rows once more."""
    graph = simplify(parts.whole_layer_part(spec, ROWS).graph(weights(spec).__getitem__, 1))
    ops = [node.op for node in graph.nodes]
    assert not {"Gemm", "Gelu", "Relu", "Add"} & set(ops), ops
    assert ops.count("FusedAttention") == 1


def test_queries_keys_and_values_are_one_product() -> None:
    """Three would each pack the rows again, and leave narrow panels where a device has one head."""
    spec = SPECS["post-norm"]
    part = parts.attention_part(spec, ROWS, IndexRange(1, 2))
    assert [node.op for node in part.nodes].count("Gemm") == 1
    weight = part.pieces["query+key+value.weight[5:10;5:10;5:10,0:13]"]
    assert weight.shape == (15, 13)


def test_a_part_holds_the_weights_of_its_share_and_no_more() -> None:
    """What a device needs to load, and the memory it needs, is read off the part."""
    spec = SPECS["post-norm"]
    shares = [parts.feed_forward_part(spec, ROWS, 0, s) for s in (IndexRange(0, 7), IndexRange(7, 19))]
    up, up_bias, down = 19 * 13, 19, 13 * 19
    n_weights = sum(prod(piece.shape) for share in shares for piece in share.pieces.values())
    assert n_weights == up + up_bias + down


def test_one_image_serves_every_layer() -> None:
    """Layers differ in values only, a norm of ones and a bias of zeros included."""
    spec = SPECS["bottleneck"]
    part = parts.whole_layer_part(spec, ROWS)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in spec.layer(0).tensors}
    ones = {name: np.ones(shape, np.float32) for name, shape in spec.layer(1).tensors}
    images = [
        fragment_image(part.graph(tensors.__getitem__, i), Target(host_isa()))
        for i, tensors in enumerate((zeros, ones))
    ]
    a, b = ([(call.kernel.name, call.reads, call.writes) for call in image.calls] for image in images)
    assert a == b
    assert list(images[0].packed) == list(images[1].packed)
    assert list(images[0].constants) == list(images[1].constants)


def test_a_piece_of_one_tensor_is_a_view_of_it() -> None:
    """A mapped file is read once, into the packed form."""
    spec = SPECS["post-norm"]
    tensors = weights(spec)
    graph = parts.feed_forward_part(spec, ROWS, 0, IndexRange(3, 11)).graph(tensors.__getitem__, 1)
    assert np.shares_memory(graph.constants["up.weight[3:11,0:13]"], tensors["layers.1.up.weight"])


def _by_rows(
    spec: EncoderSpec, tensors: Mapping[str, np.ndarray], x: np.ndarray, partials: list[np.ndarray], run: Run
) -> np.ndarray:
    """What follows partial sums, on uneven shares of rows and columns."""
    spans = _cut(ROWS)

    def shares(step: Callable[[int], EncoderPart], **feeds: np.ndarray) -> dict[str, np.ndarray]:
        sums = {f"partial.{i}": p for i, p in enumerate(partials)}
        given = []
        for s in spans:
            part = step(s.n)
            own = {name: a[s.start : s.stop] for name, a in (sums | feeds).items() if name in part.inputs}
            given.append(run(part, tensors, **own))
        return {name: np.concatenate([one[name] for one in given]) for name in given[0]}

    now = shares(lambda n: parts.after_attention_part(spec, n, 2), x=x)
    for i in range(len(spec.template.feed_forwards)):
        y = now.get("y", now["h"])
        columns = _cut(spec.ffn)
        partials = [
            run(parts.feed_forward_part(spec, ROWS, i, c), tensors, h=now["h"])["partial"] for c in columns
        ]
        now = shares(lambda n, i=i: parts.after_feed_forward_part(spec, n, i, 2), x=x, y=y)
    return now["out"]


def _cut(n: int) -> tuple[IndexRange, IndexRange]:
    """Two uneven shares, the first of them a single one."""
    return IndexRange(0, 1), IndexRange(1, n)
