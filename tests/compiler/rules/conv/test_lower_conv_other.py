"""Transposed and deformable convolutions through the compiler, against torch and onnx's reference."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.passes.round_convolutions import round_convolutions
from pliant.compiler.rules.conv import lower_conv_tiles
from pliant.compiler.rules.rules import lower
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.kernels.emit.isa import AVX2, AVX512_AMX, AVX512_BF16, X86_64, Isa
from tests.compiler.rules.run_node import expected, run_node
from tests.rows import TILE_ROWS, integer_name

torch = pytest.importorskip("torch", reason="torch is the reference")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 6, 5, 7), (6, 4, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}),
    ((1, 6, 4, 4), (6, 2, 2, 3), {"group": 3, "dilations": (2, 1)}),
    ((1, 5, 9), (5, 3, 4), {"strides": (3,), "pads": (2, 1)}),
    ((1, 2, 3, 4, 2), (2, 3, 2, 2, 2), {"strides": (1, 2, 1)}),
    ((1, 40, 6, 6), (40, 33, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
]


@pytest.mark.parametrize("isa", [AVX2, X86_64], ids=lambda isa: isa.name)
@pytest.mark.parametrize("constants", [(), (1, 2)], ids=["fed", "constant"])
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), SHAPES)
def test_a_transposed_convolution_is_the_gradient_of_a_plain_one(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    constants: tuple[int, ...],
    isa: Isa,
    cache: Path,
) -> None:
    """Strides leave holes, pads cut the result, groups keep channels apart."""
    x, w, b, want = transposed(x_shape, w_shape, attributes)
    types = [TensorType("float32", want.shape)]
    (got,) = run_node(
        "ConvTranspose", [x, w, b], attributes, types=types, isa=isa, constants=constants, cache=cache
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)


def transposed(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    *,
    is_absolute: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, w, b and torch's answer in float64; `is_absolute`: that of their absolute values."""
    rank, groups = len(w_shape) - 2, attributes.get("group", 1)
    x, w, b = normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[1] * groups, seed=2)
    if is_absolute:
        x, w, b = (np.abs(a) for a in (x, w, b))
    pads = attributes.get("pads", (0,) * (2 * rank))
    whole = getattr(torch.nn.functional, f"conv_transpose{rank}d")(
        torch.from_numpy(x).double(),
        torch.from_numpy(w).double(),
        torch.from_numpy(b).double(),
        attributes.get("strides", 1),
        0,
        0,
        groups,
        attributes.get("dilations", 1),
    ).numpy()
    more = attributes.get("output_padding", (0,) * rank)
    cut = tuple(
        slice(pads[i], whole.shape[2 + i] - pads[rank + i] + (more[i] if more[i] else 0)) for i in range(rank)
    )
    filled = np.pad(
        whole - b.reshape(1, -1, *[1] * rank), [(0, 0), (0, 0), *((0, m) for m in more)]
    ) + b.reshape(1, -1, *[1] * rank)
    return x, w, b, filled[(slice(None), slice(None), *cut)]


@pytest.mark.parametrize("isa", TILE_ROWS, ids=integer_name)
@pytest.mark.parametrize("constants", [(), (1, 2)], ids=["fed", "constant"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [*SHAPES, ((2, 64, 17, 17), (64, 24, 2, 2), {"strides": (2, 2), "group": 2})],
)
def test_tiles_multiply_for_a_transposed_convolution(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    constants: tuple[int, ...],
    isa: Isa,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within what splitting leaves of each term, 2**-16 of it and as much for the sums in float32."""
    monkeypatch.setattr(lower_conv_tiles, "tiles_are_faster", lambda *_, **__: True)
    x, w, b, want = transposed(x_shape, w_shape, attributes)
    scale = transposed(x_shape, w_shape, attributes, is_absolute=True)[3] + 1
    types = [TensorType("float32", want.shape)]
    (got,) = run_node(
        "ConvTranspose", [x, w, b], attributes, types=types, isa=isa, constants=constants, cache=cache
    )
    assert (np.abs(got - want) <= 2.0**-15 * scale).all()


def upsampling(channels: int = 256, outs: int = 128, size: int = 16, **constants: np.ndarray) -> Graph:
    """A transposed convolution that doubles an image, as in a U-Net."""
    shapes = {"x": (1, channels, size, size), "w": (channels, outs, 2, 2), "y": (1, outs, 2 * size, 2 * size)}
    types = {name: TensorType("float32", shape) for name, shape in shapes.items()}
    attributes: dict[str, Attribute] = {"strides": (2, 2)}
    node = Node("ConvTranspose", ("x", "w"), ("y",), attributes, "up")
    inputs = tuple(name for name in ("x", "w") if name not in constants)
    return Graph((node,), inputs, ("y",), types, constants)


def kernels(graph: Graph, isa: Isa) -> list[str]:
    (made,) = lower(graph, Target(isa, 1))
    return [call.kernel.name for call in made.calls]


def test_a_transposed_convolution_takes_tiles_where_they_are_faster() -> None:
    """The products, not the sum of what overlaps; few channels leave tiles empty."""
    known, given = upsampling(w=normal(256, 128, 2, 2)), upsampling()
    assert kernels(known, AVX512_AMX)[-3:] == ["split_rows", "conv_split_nchw_nchw", "conv_transpose_add"]
    assert kernels(known, AVX512_BF16) == ["conv_nchw_nchw", "conv_transpose_add"]
    assert kernels(given, AVX512_AMX)[:2] == ["conv_pack", "split_panels"]
    assert "conv_split_nchw_nchw" in kernels(given, AVX512_AMX)
    assert kernels(given, AVX512_BF16) == ["conv_pack", "conv_nchw_nchw", "conv_transpose_add"]
    rounded = round_convolutions(known)
    assert "conv_bf16_nchw_nchw" in kernels(rounded, AVX512_AMX)
    few = upsampling(channels=4, outs=2)
    assert kernels(few, AVX512_AMX) == kernels(few, AVX512_BF16)


def test_a_deformable_convolution_reads_between_pixels(cache: Path) -> None:
    """Two groups of offsets, a mask, places beyond every border."""
    x, w = normal(1, 4, 5, 6), normal(3, 4, 2, 2, seed=1)
    offset = normal(1, 2 * 2 * 4, 4, 5, seed=2) * 2
    b, mask = normal(3, seed=3), normal(1, 2 * 4, 4, 5, seed=4)
    attributes = {"kernel_shape": [2, 2], "offset_group": 2, "pads": [0, 0, 0, 0]}
    (want,) = expected("DeformConv", [x, w, offset, b, mask], attributes)
    types = [TensorType("float32", want.shape)]
    (got,) = run_node("DeformConv", [x, w, offset, b, mask], attributes, types=types, isa=AVX2, cache=cache)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    offset[0, 0] = np.nan
    (got,) = run_node("DeformConv", [x, w, offset, b, mask], attributes, types=types, isa=AVX2, cache=cache)
    assert got.shape == want.shape
