"""Float32 convolutions through AMX, against torch in float64: borders, strides, groups, layouts, ends."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.compiler.executable.call import LoweredNode, PackedConstant, Target
from pliant.compiler.passes.pair_weights import pair_weights
from pliant.compiler.passes.round_convolutions import round_convolutions
from pliant.compiler.rules.conv import lower_conv_tiles
from pliant.compiler.rules.conv.conv_call import ConvShape
from pliant.compiler.rules.conv.lower_conv_tiles import frame_of, tiles_are_faster
from pliant.compiler.rules.conv.window_extents import Window
from pliant.compiler.rules.rules import lower
from pliant.errors import GraphError
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.kernels.conv.conv_args import ConvForm, ImageLayout
from pliant.kernels.emit.isa import AVX512_AMX, AVX512_BF16, Isa
from tests.compiler.rules.conv.test_lower_conv import laid_out, normal, reference
from tests.compiler.rules.product.test_split_product import cache as cache
from tests.compiler.rules.product.test_split_product import isa as isa
from tests.compiler.rules.run_node import run_node
from tests.kernels.tiles.amx_trap import Executed, Trap
from tests.rows import TILE_ROWS

# A number less the two that stand for it is at most 2**-17 of it, the product of the lower parts 2**-16.
SPLIT_ERROR = 2.0**-15
# Both factors are rounded to eight bits: 2**-9 of each.
BF16_ERROR = 2.0**-7
SAME = {"pads": (1, 1, 1, 1)}
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 32, 7, 9), (48, 32, 3, 3), SAME),  # several lines a segment, two images
    ((1, 64, 14, 14), (40, 64, 1, 1), {}),  # every pixel is a row where it is
    ((1, 37, 13, 11), (24, 37, 1, 1), {"strides": (2, 2)}),  # odd channels, pixels apart
    ((1, 3, 20, 21), (20, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),  # a narrow tile for each line
    ((2, 24, 10, 10), (36, 12, 3, 3), {"group": 2, "dilations": (2, 2), "pads": (2, 0, 1, 2)}),
    ((2, 5, 300), (7, 5, 4), {"pads": (1, 2)}),  # a line in several parts
    ((1, 4, 5, 6, 7), (5, 4, 2, 3, 3), {"strides": (2, 1, 2), "pads": (1, 1, 1, 0, 1, 1)}),
    ((1, 20, 2, 2), (5, 20, 5, 5), {"pads": (4, 4, 4, 4), "dilations": (2, 1)}),  # more border than image
]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles also where they do not pay."""
    monkeypatch.setattr(lower_conv_tiles, "tiles_are_faster", lambda *_, **__: True)


def check(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], isa: Isa, cache: Path,
    *, layouts: tuple[ImageLayout, ImageLayout] = ("nhwc", "nhwc"), constants: tuple[int, ...] = (1, 2),
    **more: Attribute,
) -> np.ndarray:  # fmt: skip
    """Each answer is within what splitting, or rounding, leaves of its terms."""
    x, w, b = normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[0], seed=2)
    wanted = reference(x, w, b, attributes)
    scale = reference(np.abs(x), np.abs(w), np.abs(b), attributes) + 1
    named = {**attributes, "x_layout": layouts[0], "y_layout": layouts[1], **more}
    types = [TensorType("float32", laid_out(wanted, layouts[1]).shape)]
    inputs = [laid_out(x, layouts[0]), w, b]
    (y,) = run_node("FusedConv", inputs, named, types=types, isa=isa, cache=cache, constants=constants)
    error = y - laid_out(wanted, layouts[1])
    bound = BF16_ERROR if "bf16" in more else SPLIT_ERROR
    assert (np.abs(error) <= bound * laid_out(scale, layouts[1])).all()
    return np.asarray(error / np.sqrt((wanted**2).mean()))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), SHAPES)
def test_a_convolution_equals_torchs(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], isa: Isa, cache: Path
) -> None:
    """Every border, stride, dilation, group and tail."""
    check(x_shape, w_shape, attributes, isa, cache)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("constants", [(), (1,), (2,)], ids=["fed", "bias fed", "weights fed"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"), [shape for shape in SHAPES if shape[1][1] % 2 == 0]
)
def test_weights_may_come_with_the_run(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    constants: tuple[int, ...],
    isa: Isa,
    cache: Path,
) -> None:
    """They are packed and split at each run, as constant ones are once."""
    check(x_shape, w_shape, attributes, isa, cache, constants=constants)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("layouts", [("nchw", "nhwc"), ("nhwc", "nchw"), ("nchw", "nchw")])
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), [SHAPES[0], SHAPES[3], SHAPES[5]])
def test_layouts_change_where_numbers_lie_not_what_they_are(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    layouts: tuple[ImageLayout, ImageLayout],
    cache: Path,
) -> None:
    """Schedules choose layouts freely."""
    check(x_shape, w_shape, attributes, TILE_ROWS[0], cache, layouts=layouts)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), [SHAPES[0], SHAPES[1]])
def test_bf16_where_it_was_asked_for(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], isa: Isa, cache: Path
) -> None:
    """One product instead of three, at the error of eight bits."""
    error = check(x_shape, w_shape, attributes, isa, cache, bf16=1)
    assert 5e-4 < np.sqrt((error**2).mean()) < 5e-3


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_residual_and_activation_follow(layout: ImageLayout, isa: Isa, cache: Path) -> None:
    """As in vectors; panels that are not full, in either layout."""
    x, w = normal(1, 32, 9, 10), normal(30, 32, 3, 3, seed=1)
    plain = reference(x, w, None, SAME)
    residual = normal(*plain.shape, seed=3)
    wanted = laid_out(np.clip(plain + residual, -3, 4), layout)
    named = {**SAME, "x_layout": "nhwc", "y_layout": layout, "activation": "clip", "low": -3.0, "high": 4.0}
    inputs = [laid_out(x, "nhwc"), w, None, laid_out(residual, layout)]
    types = [TensorType("float32", wanted.shape)]
    (y,) = run_node("FusedConv", inputs, named, types=types, isa=isa, cache=cache, constants=(1,))
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=5e-3)


def test_errors_are_a_few_millionths(isa: Isa, cache: Path) -> None:
    """Relative to the result's size, on normal numbers: what float32 may promise."""
    error = check((1, 64, 16, 16), (48, 64, 3, 3), SAME, isa, cache)
    assert np.sqrt((error**2).mean()) < 5e-6


@pytest.mark.usefixtures("always")
def test_nan_reaches_only_what_sees_it(isa: Isa, cache: Path) -> None:
    """Not the pixels whose tiles go on over the same border."""
    x, w = normal(1, 16, 8, 9), normal(16, 16, 3, 3, seed=1)
    x[0, 3, 2, 8] = np.nan
    wanted = laid_out(reference(x, w, None, SAME), "nhwc")
    named = {**SAME, "x_layout": "nhwc", "y_layout": "nhwc"}
    types = [TensorType("float32", wanted.shape)]
    (y,) = run_node(
        "FusedConv", [laid_out(x, "nhwc"), w], named, types=types, isa=isa, cache=cache, constants=(1,)
    )
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))


def shape_of(channels: int, outs: int, kernel: int, stride: int, size: int, groups: int = 1) -> ConvShape:
    """A square convolution with half of its kernel around the image."""
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    window = Window((kernel,) * 2, (stride,) * 2, (1, 1), (pad,) * 2, (pad,) * 2)
    return ConvShape(window, 1, groups, channels, outs, (size,) * 2, (out,) * 2)


@pytest.mark.parametrize(
    ("sizes", "is_winograd", "is_faster"),
    [
        ((64, 64, 3, 1, 56), True, True),  # ResNet's blocks: against Winograd too
        ((512, 512, 3, 1, 7), False, True),
        ((2048, 512, 1, 1, 7), False, True),
        ((128, 128, 3, 2, 56), False, True),
        ((1024, 1024, 3, 1, 7, 32), False, True),  # 32 channels a group
        ((3, 32, 3, 2, 224), False, False),  # nine channels of a line: half a tile, for whose sums tiles wait
        ((24, 24, 1, 1, 28), False, False),
        ((16, 96, 1, 1, 112), False, False),
        ((128, 128, 3, 1, 56, 32), False, False),  # 4 channels a group
    ],
)
def test_tiles_convolve_where_they_take_fewer_cycles(
    sizes: tuple[int, ...], is_winograd: bool, is_faster: bool
) -> None:
    """Few channels leave tiles half empty; Winograd multiplies a quarter as often."""
    form = ConvForm("nhwc", "nhwc")
    assert tiles_are_faster(shape_of(*sizes), form, is_winograd=is_winograd, parts=2) == is_faster


@pytest.mark.parametrize(
    ("size", "kernel", "row_tiles"), [(56, 3, 203), (14, 3, 14), (7, 3, 4), (28, 1, 49), (7, 1, 4)]
)
def test_lines_share_tiles_over_their_borders(size: int, kernel: int, row_tiles: int) -> None:
    """7 lines of 7 pixels with borders between are 4 tiles, not 7; without borders there is one line."""
    frame = frame_of(shape_of(64, 64, kernel, 1, size), ConvForm("nhwc", "nhwc"))
    assert frame.row_tiles == row_tiles


def graph_of(
    w_shape: tuple[int, ...] = (64, 64, 3, 3), constants: tuple[str, ...] = ("w", "b"), size: int = 14
) -> Graph:
    """A convolution over 14 x 14 pixels."""
    arrays = {"x": normal(1, size, size, w_shape[1]), "w": normal(*w_shape), "b": normal(64)}
    types = {name: TensorType("float32", a.shape) for name, a in arrays.items()}
    types["y"] = TensorType("float32", (1, size, size, 64))
    node = Node("FusedConv", ("x", "w", "b"), ("y",), {**SAME, "x_layout": "nhwc", "y_layout": "nhwc"}, "it")
    feeds = tuple(x for x in arrays if x not in constants)
    return Graph((node,), feeds, ("y",), types, {x: arrays[x] for x in constants})


def lowered(graph: Graph, isa: Isa) -> LoweredNode:
    (made,) = lower(graph, Target(isa, 1))
    return made


def _weights(made: LoweredNode) -> PackedConstant:
    return next(packed for name, packed in made.packed.items() if name.startswith("y:weights|tiles"))


def test_weights_are_packed_once_in_as_many_bytes() -> None:
    """Both parts of them; the image's are made at each run, in as many bytes as it has with its borders."""
    made = lowered(graph_of(), AVX512_AMX)
    assert _weights(made).n_bytes == 4 * 64 * 64 * 9
    assert made.temporaries == dict.fromkeys(("y:framed", "y:parts"), 4 * 16 * 16 * 64)
    assert [call.kernel.name for call in made.calls][-2:] == ["split_rows", "conv_split_nhwc_nhwc"]


def test_weights_that_come_with_the_run_are_split_if_the_image_is_large_enough() -> None:
    """As many numbers of them are split as are multiplied by 14 x 14 pixels, or by 4."""
    for size, is_tiled in ((14, True), (2, False)):
        graph = graph_of(constants=("b",), size=size)
        names = [call.kernel.name for call in lowered(graph, AVX512_AMX).calls]
        assert names[0] == "conv_pack"
        assert ("split_panels" in names) == ("conv_split_nhwc_nhwc" in names) == is_tiled
        assert lowered(graph_of(size=size), AVX512_AMX).calls[-1].kernel.name == "conv_split_nhwc_nhwc"


def test_other_convolutions_run_in_vectors() -> None:
    """Without AMX, and with an odd number of channels of weights that come with the run."""
    odd = graph_of((64, 63, 3, 3), constants=("b",))
    for graph, row in ((graph_of(), AVX512_BF16), (odd, AVX512_AMX)):
        assert "conv_nhwc_nhwc" in [call.kernel.name for call in lowered(graph, row).calls]


def test_compute_bf16_marks_convolutions_for_tiles() -> None:
    """A model of convolutions alone has something to round then; without tiles it is refused as before."""
    graph = graph_of()
    made = pair_weights(round_convolutions(graph))
    assert lowered(made, AVX512_AMX).calls[-1].kernel.name == "conv_bf16_nhwc_nhwc"
    assert lowered(made, AVX512_BF16).calls[-1].kernel.name == "conv_nhwc_nhwc"
    assert _weights(lowered(made, AVX512_AMX)).n_bytes == 2 * 64 * 64 * 9
    with pytest.raises(GraphError, match="bfloat16"):
        pair_weights(graph)
    given = replace(graph, constants={"b": graph.constants["b"]}, inputs=("x", "w"))
    assert round_convolutions(given).nodes == given.nodes


def test_as_many_tile_products_as_counted(cache: Path) -> None:
    """Three for each 16 rows of a frame, 16 channels and 32 terms: what the choice is made by."""
    isa = TILE_ROWS[0]
    if isa.is_portable:
        pytest.skip("needs AMX, or what its handler needs")
    sizes, weights = (1, 64, 14, 14), (48, 64, 3, 3)
    check(sizes, weights, SAME, isa, cache)
    trap = Trap(cache)
    before = trap.count(Executed.BFLOATS)
    check(sizes, weights, SAME, isa, cache)
    assert trap.count(Executed.BFLOATS) - before in (0, 3 * 14 * 3 * 18)  # 0 where the CPU has AMX
    assert not trap.is_configured
