"""Convolutions in groups of few channels through the compiler, against torch in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.conv.test_lower_conv import laid_out, normal, reference
from tests.compiler.rules.run_node import kernel_of, run_node

pytest.importorskip("torch", reason="torch is the reference")

ISAS = [AVX2, X86_64, to_portable(AVX512)]
SAME = {"pads": (1, 1, 1, 1)}
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 48, 13, 11), (48, 2, 3, 3), {"group": 24, **SAME}),
    ((1, 20, 9, 17), (20, 4, 3, 3), {"group": 5, "strides": (2, 2), **SAME}),
    ((1, 24, 30, 9), (24, 8, 3, 3), {"group": 3, "dilations": (2, 2), "pads": (2, 0, 1, 3)}),
    ((2, 64, 7, 7), (64, 16, 3, 3), {"group": 4, **SAME}),
    ((1, 64, 6, 5), (96, 32, 3, 3), {"group": 2, "strides": (1, 2), **SAME}),
    ((1, 18, 40), (18, 2, 5), {"group": 9, "pads": (2, 1)}),
    ((1, 32, 4, 3), (32, 4, 1, 1), {"group": 8}),
    ((1, 16, 3, 3), (16, 4, 5, 5), {"group": 4, "pads": (4, 4, 4, 4)}),
    ((1, 22, 5, 8), (22, 2, 4, 7), {"group": 11, "strides": (3, 1), "pads": (0, 3, 2, 6)}),
    ((1, 16, 5, 31), (16, 8, 3, 7), {"group": 2, "strides": (1, 2), "pads": (1, 3, 1, 3)}),
    ((1, 16, 5, 37), (16, 4, 3, 5), {"group": 4, "strides": (2, 2), "dilations": (1, 2), "pads": (1, 2) * 2}),
    ((1, 16, 70, 66), (16, 8, 3, 3), {"group": 2, **SAME}),
    ((1, 32, 1, 2), (32, 2, 2, 2), {"group": 16, "pads": (0, 0, 1, 0)}),
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize(
    ("isa", "x_layout", "y_layout"),
    [
        *((isa, layout, layout) for isa in ISAS for layout in ("nchw", "nhwc")),
        (AVX2, "nchw", "nhwc"),
        (AVX2, "nhwc", "nchw"),
    ],
    ids=lambda value: value.name if isinstance(value, Isa) else value,
)
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), SHAPES)
def test_every_window_layout_and_epilogue_equals_torchs(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    isa: Isa,
    x_layout: str,
    y_layout: str,
    cache: Path,
) -> None:
    """Blocks that overlap, tiles past a row's end, bands, strides, dilations, and pads of every side."""
    x, w, b = normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[0], seed=2)
    plain = reference(x, w, b, attributes)
    residual = normal(*plain.shape, seed=3)
    want = laid_out(np.maximum(plain + residual, 0), y_layout)
    given = [laid_out(x, x_layout), w, b, laid_out(residual, y_layout)]
    more = {**attributes, "x_layout": x_layout, "y_layout": y_layout, "activation": "relu"}
    assert "grouped" in kernel_of("FusedConv", given, more, want.shape)
    types = [TensorType("float32", want.shape)]
    (got,) = run_node("FusedConv", given, more, types=types, isa=isa, constants=(1, 2), cache=cache)
    # A sum of K products of normal numbers: the rounding of K additions of size sqrt(K).
    K = int(np.prod(w_shape[1:]))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * K**0.5 * 4)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("channels", [2, 4, 8, 16])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_nan_and_infinity_reach_only_their_group_and_windows(
    layout: str, channels: int, isa: Isa, cache: Path
) -> None:
    """Groups share vectors: no lane may take part in what another one sums."""
    x, w = normal(1, 48, 8, 9), normal(48, channels, 3, 3, seed=1)
    x[0, 5, 3, 3], x[0, 17, 7, 8], x[0, 40, 0, 4] = np.nan, np.inf, -np.inf
    attributes = {"group": 48 // channels, **SAME}
    want = laid_out(reference(x, w, None, attributes), layout)
    more = {**attributes, "x_layout": layout, "y_layout": layout}
    types = [TensorType("float32", want.shape)]
    (got,) = run_node(
        "FusedConv", [laid_out(x, layout), w], more, types=types, isa=isa, constants=[1], cache=cache
    )
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(want))
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "group"),
    [((1, 12, 9, 9), (12, 2, 3, 3), 6), ((1, 24, 9, 9), (24, 3, 3, 3), 8), ((1, 16, 9, 9), (32, 2, 3, 3), 8)],
)
def test_other_groups_keep_the_product_of_panels(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], group: int
) -> None:
    """Fewer channels than a panel, groups that fill no vector, and groups that widen."""
    given = [normal(*x_shape), normal(*w_shape)]
    assert kernel_of("FusedConv", given, {"group": group, **SAME}, (1, w_shape[0], 9, 9)).startswith("conv_")
