"""Convolutions of bytes through the compiler, against torch in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.rules.conv import lower_conv_integer as conv_integer
from pliant.compiler.rules.rules import lower
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import AVX2, AVX512_AMX, AVX512_VNNI, Isa
from tests.compiler.rules.run_node import run_node, type_of
from tests.rows import BYTE_ROWS, TILE_ROWS, byte_row_name

torch = pytest.importorskip("torch", reason="torch is the reference")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize("x_type", ["int8", "uint8"])
@pytest.mark.parametrize("w_type", ["int8", "uint8"])
def test_bytes_are_summed_exactly(x_type: str, w_type: str, cache: Path) -> None:
    """A zero point for each output channel, borders that count as x's zero point."""
    random = np.random.default_rng(0)
    x = random.integers(0, 128, (2, 4, 6, 7)).astype(x_type)
    w = random.integers(0, 128, (6, 2, 3, 3)).astype(w_type)
    x_zero = np.array(7, x_type)
    w_zero = np.arange(6).astype(w_type)
    want = torch.nn.functional.conv2d(
        torch.from_numpy(x.astype(np.float64) - 7),
        torch.from_numpy(w.astype(np.float64) - np.arange(6).reshape(6, 1, 1, 1)),
        None,
        2,
        1,
        1,
        2,
    ).numpy()
    attributes = {"strides": (2, 2), "pads": (1, 1, 1, 1), "group": 2}
    types = [TensorType("int32", want.shape)]
    (got,) = run_node("ConvInteger", [x, w, x_zero, w_zero], attributes, types=types, isa=AVX2, cache=cache)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("isa", BYTE_ROWS, ids=byte_row_name)
@pytest.mark.parametrize("constants", [(), (3, 5)], ids=["fed", "constant"])
@pytest.mark.parametrize("y_type", ["int8", "uint8"])
def test_scaled_sums_round_to_even_and_saturate(
    y_type: str, constants: tuple[int, ...], isa: Isa, cache: Path
) -> None:
    """Scales of powers of two make halves exact; large sums end at the range's ends."""
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (1, 3, 9, 9)).astype(np.uint8)
    w = random.integers(-128, 128, (5, 3, 3, 3)).astype(np.int8)
    bias = random.integers(-500, 500, 5).astype(np.int32)
    w_scale = (2.0 ** -np.arange(4, 9)).astype(np.float32)
    zero = np.array(3, y_type)
    sums = torch.nn.functional.conv2d(
        torch.from_numpy(x.astype(np.float64) - 128), torch.from_numpy(w.astype(np.float64))
    ).numpy() + bias.reshape(1, 5, 1, 1)
    info = np.iinfo(y_type)
    want = np.clip(np.rint(sums * w_scale.reshape(1, 5, 1, 1) * 0.5) + 3, info.min, info.max).astype(y_type)
    one, two = np.array(1, np.float32), np.array(2, np.float32)
    given = [x, one, np.array(128, np.uint8), w, w_scale, np.zeros(5, np.int8), two, zero, bias]
    (got,) = run_node("QLinearConv", given, types=[type_of(want)], isa=isa, constants=constants, cache=cache)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("isa", [AVX2, *TILE_ROWS], ids=byte_row_name)
def test_groups_keep_their_own_scales(isa: Isa, cache: Path) -> None:
    """Parameters of output channels, of two images; against float64, exact as scales are powers of two."""
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (2, 24, 7, 7)).astype(np.uint8)
    w, w_zero = random.integers(-100, 100, (30, 8, 3, 3)).astype(np.int8), np.arange(30).astype(np.int8)
    bias = random.integers(-500, 500, 30).astype(np.int32)
    w_scale = (2.0 ** -(4 + np.arange(30) % 7)).astype(np.float32)
    exact = w.astype(np.float64) - w_zero.reshape(30, 1, 1, 1)
    sums = torch.nn.functional.conv2d(
        torch.from_numpy(x.astype(np.float64) - 128), torch.from_numpy(exact), groups=3
    ).numpy() + bias.reshape(1, 30, 1, 1)
    want = np.clip(np.rint(sums * w_scale.reshape(1, 30, 1, 1) * 0.5) + 3, 0, 255).astype(np.uint8)
    one, two, zero = np.array(1, np.float32), np.array(2, np.float32), np.array(3, np.uint8)
    given = [x, one, np.array(128, np.uint8), w, w_scale, w_zero, two, zero, bias]
    (got,) = run_node(
        "QLinearConv", given, {"group": 3}, types=[type_of(want)], isa=isa, constants=(3, 5), cache=cache
    )
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("w_shape", "is_product"), [((32, 8, 3, 3), True), ((16, 8, 3, 3), False), ((32, 1, 3, 3), False)]
)
def test_groups_of_few_channels_are_no_products(w_shape: tuple[int, ...], is_product: bool) -> None:
    """Eight output channels are half a panel of tiles; a depthwise convolution would use one column."""
    shapes = {"x": (1, 32, 9, 9), "w": w_shape, "y": (1, w_shape[0], 7, 7)}
    types = {name: TensorType("int32" if name == "y" else "int8", shape) for name, shape in shapes.items()}
    node = Node("ConvInteger", ("x", "w"), ("y",), {"group": 32 // w_shape[1]}, "it")
    graph = Graph((node,), ("x",), ("y",), types, {"w": np.ones(w_shape, np.int8)})
    (made,) = lower(graph, Target(AVX512_AMX, 1))
    names = [call.kernel.name for call in made.calls]
    assert any("matmul" in name for name in names) == is_product
    assert names == ["conv_i8_i8_i32"] or is_product
    (vectors,) = lower(graph, Target(AVX512_VNNI, 1))
    assert [call.kernel.name for call in vectors.calls] == ["conv_i8_i8_i32"]


@pytest.mark.parametrize("isa", BYTE_ROWS, ids=byte_row_name)
@pytest.mark.parametrize("x_type", ["int8", "uint8"])
@pytest.mark.parametrize("zero", [0, 100], ids=["bytes", "words"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((2, 3, 9, 8), (17, 3, 3, 3), {"pads": (1, 0, 2, 1), "strides": (2, 1)}),
        ((3, 5, 12), (4, 5, 4), {"dilations": (2,), "pads": (2, 1)}),
        ((1, 2, 4, 5, 6), (3, 2, 2, 3, 1), {"strides": (1, 2, 2)}),
        ((1, 64, 6, 7), (33, 64, 1, 1), {}),
        ((2, 18, 6, 7), (34, 9, 3, 3), {"group": 2, "pads": (1, 1, 1, 1), "strides": (2, 1)}),
    ],
    ids=["2d", "1d", "3d", "pointwise", "groups"],
)
def test_windows_of_constant_weights_are_products(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    zero: int,
    x_type: str,
    isa: Isa,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As rows, in blocks of a few lines; exact with and without zero points that need nine bits."""
    random = np.random.default_rng(0)
    low, high = np.iinfo(x_type).min, np.iinfo(x_type).max
    x = random.integers(low, high + 1, x_shape).astype(x_type)
    w = random.integers(-128, 128, w_shape).astype(np.int8)
    x_zero, w_zero = np.array(7, x_type), np.array(zero, np.int8)
    rank = len(w_shape) - 2
    pads = attributes.get("pads", (0,) * (2 * rank))
    framed = np.pad(x.astype(np.float64) - 7, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    want = getattr(torch.nn.functional, f"conv{rank}d")(
        torch.from_numpy(framed),
        torch.from_numpy(w.astype(np.float64) - zero),
        None,
        attributes.get("strides", 1),
        0,
        attributes.get("dilations", 1),
        attributes.get("group", 1),
    ).numpy()
    types = [TensorType("int32", want.shape)]
    for block_bytes in (64, 1 << 20):
        monkeypatch.setattr(conv_integer, "BLOCK_BYTES", block_bytes)
        (got,) = run_node(
            "ConvInteger",
            [x, w, x_zero, w_zero],
            attributes,
            types=types,
            isa=isa,
            constants=[1, 3],
            cache=cache,
        )
        np.testing.assert_array_equal(got, want)


def test_a_pad_without_zero_point_is_zero(cache: Path) -> None:
    """Of signed bytes on a CPU that multiplies unsigned ones: 0 is stored as 128."""
    x, w = np.ones((1, 2, 3, 3), np.int8), np.ones((1, 2, 3, 3), np.int8)
    types = [TensorType("int32", (1, 1, 3, 3))]
    for isa in BYTE_ROWS:
        (got,) = run_node(
            "ConvInteger", [x, w], {"pads": (1, 1, 1, 1)}, types=types, isa=isa, constants=[1], cache=cache
        )
        np.testing.assert_array_equal(got[0, 0], [[8, 12, 8], [12, 18, 12], [8, 12, 8]])
