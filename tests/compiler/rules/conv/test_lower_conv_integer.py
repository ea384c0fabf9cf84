"""Convolutions of bytes through the compiler, against torch in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.compiler.rules.conv import lower_conv_integer as conv_integer
from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, Isa
from tests.compiler.rules.run_node import run_node, type_of
from tests.rows import BYTE_ROWS, byte_row_name

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
    ],
    ids=["2d", "1d", "3d", "pointwise"],
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
