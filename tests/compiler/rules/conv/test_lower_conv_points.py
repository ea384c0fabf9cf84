"""1x1 convolutions in groups between channels-first images, against torch in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.compiler.rules.conv.lower_conv_points import tile_rows
from pliant.ir.graph import TensorType
from pliant.kernels.conv.direct.conv_pointwise import tile_vectors
from pliant.kernels.emit.isa import AVX2, AVX512, NEON, X86_64, Isa, to_portable
from tests.compiler.rules.conv.test_lower_conv import normal, reference
from tests.compiler.rules.run_node import kernel_of, run_node

pytest.importorskip("torch", reason="torch is the reference")

ISAS = [AVX2, X86_64, to_portable(AVX512)]
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [
    ((1, 96, 7, 7), (384, 12), 8),
    ((2, 34, 5, 13), (10, 17), 2),
    ((1, 6, 4, 4), (15, 2), 3),
    ((3, 8, 9, 11), (12, 2), 4),
    ((1, 5, 31), (10, 1), 5),
    ((1, 12, 2, 3, 6), (2, 6), 2),
    ((1, 130, 30, 31), (26, 65), 2),
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize(("x_shape", "w_shape", "group"), SHAPES)
@pytest.mark.parametrize("has_residual", [False, True])
def test_groups_of_any_width_equal_torchs(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    group: int,
    has_residual: bool,
    isa: Isa,
    cache: Path,
) -> None:
    """Blocks of rows that overlap, vectors that overlap, single pixels, and blocks of pixels."""
    w_shape = (*w_shape, *(1,) * (len(x_shape) - 2))
    x, w, b = normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[0], seed=2)
    want = reference(x, w, b, {"group": group})
    residual = normal(*want.shape, seed=3)
    given = [x, w, b, *([residual] if has_residual else [])]
    want = np.maximum(want + residual, 0) if has_residual else np.maximum(want, 0)
    attributes = {"group": group, "activation": "relu"}
    assert kernel_of("FusedConv", given, attributes, want.shape).startswith("points_relu")
    types = [TensorType("float32", want.shape)]
    (got,) = run_node("FusedConv", given, attributes, types=types, isa=isa, constants=(1, 2), cache=cache)
    # A sum of K products of normal numbers: the rounding of K additions of size sqrt(K).
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * w_shape[1] ** 0.5 * 4)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("n_pixels", range(16, 70))
def test_every_number_of_pixels_is_covered(n_pixels: int, isa: Isa, cache: Path) -> None:
    """Small integers, whose sums are exact in any order: no pixel is left out, or reads another's plane."""
    random = np.random.default_rng(n_pixels)
    x = random.integers(-4, 5, (2, 10, n_pixels, 1)).astype(np.float32)
    w = random.integers(-4, 5, (22, 5, 1, 1)).astype(np.float32)
    want = reference(x, w, None, {"group": 2})
    types = [TensorType("float32", want.shape)]
    (got,) = run_node("Conv", [x, w], {"group": 2}, types=types, isa=isa, constants=[1], cache=cache)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_nan_and_infinity_reach_only_their_group_and_pixel(isa: Isa, cache: Path) -> None:
    """Pixels share vectors: no lane may take part in what another one sums."""
    x, w = normal(1, 24, 7, 7), np.abs(normal(48, 6, 1, 1, seed=1)) + 0.1
    x[0, 5, 3, 3], x[0, 7, 6, 6], x[0, 20, 0, 4] = np.nan, np.inf, -np.inf
    want = reference(x, w, None, {"group": 4})
    types = [TensorType("float32", want.shape)]
    (got,) = run_node("Conv", [x, w], {"group": 4}, types=types, isa=isa, constants=[1], cache=cache)
    for is_such in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(is_such(got), is_such(want))


@pytest.mark.parametrize(
    ("x_shape", "attributes"),
    [
        ((1, 24, 3, 5), {"group": 2}),
        ((1, 24, 9, 9), {"group": 2, "strides": (2, 2)}),
        ((1, 24, 9, 9), {"group": 2, "pads": (1, 0, 0, 0)}),
        ((1, 12, 9, 9), {"group": 1}),
        ((1, 9, 9, 24), {"group": 2, "x_layout": "nhwc", "y_layout": "nhwc"}),
    ],
)
def test_other_points_keep_the_product_of_panels(
    x_shape: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    """Fewer pixels than a vector, pixels left out or added, one group, and channels side by side."""
    x, w = normal(*x_shape), normal(20, 12, 1, 1)
    shape = (1, 20, *x_shape[2:])
    if attributes.get("x_layout") == "nhwc":
        shape = (1, 9, 9, 20)
    assert kernel_of("FusedConv", [x, w], attributes, shape).startswith("conv_")


@pytest.mark.parametrize("isa", [AVX512, AVX2, NEON, X86_64], ids=lambda isa: isa.name)
@pytest.mark.parametrize(("outs", "n_pixels"), [(48, 784), (12, 784), (192, 49), (17, 196), (1, 100)])
def test_a_tile_leaves_registers_for_what_it_reads(outs: int, n_pixels: int, isa: Isa) -> None:
    """Sums, pixels and a weight: a tile of more spills sums to memory in its innermost loop."""
    rows = tile_rows(isa, outs, n_pixels)
    vectors = tile_vectors(isa, rows)
    assert (rows + 1) * vectors + 1 <= isa.registers
    assert rows <= outs
