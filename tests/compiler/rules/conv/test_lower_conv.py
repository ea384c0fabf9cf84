"""Convolutions through the compiler, against torch in float64: tails, borders, groups, layouts, epilogues."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.run_node import run_node

torch = pytest.importorskip("torch", reason="torch is the reference")

ISAS = [AVX2, X86_64, to_portable(AVX512)]

SAME = {"pads": (1, 1, 1, 1)}
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 5, 5), (4, 3, 3, 3), SAME),
    ((2, 16, 7, 9), (32, 16, 3, 3), SAME),
    ((1, 64, 14, 14), (64, 64, 1, 1), {}),
    ((1, 64, 13, 11), (24, 64, 1, 1), {"strides": (2, 2)}),
    ((1, 3, 30, 31), (20, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
    ((2, 8, 10, 10), (12, 4, 3, 3), {"group": 2, "dilations": (2, 2), "pads": (2, 0, 1, 2)}),
    ((1, 6, 10, 10), (6, 1, 3, 3), {"group": 6, **SAME}),
    ((2, 37, 13, 15), (37, 1, 3, 3), {"group": 37, "strides": (2, 2), **SAME}),
    ((1, 24, 33), (24, 1, 9), {"group": 24, "pads": (4, 4)}),
    ((2, 5, 17), (7, 5, 4), {"strides": (3,), "pads": (1, 2)}),
    ((1, 4, 5, 6, 7), (5, 4, 2, 3, 3), {"strides": (2, 1, 2), "pads": (1, 1, 1, 0, 1, 1)}),
    ((1, 300, 7, 7), (130, 300, 3, 3), SAME),
    ((1, 20, 2, 2), (5, 20, 5, 5), {"pads": (4, 4, 4, 4), "dilations": (2, 1)}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def reference(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None, attributes: Mapping[str, Any]
) -> np.ndarray:
    """Convolution in float64, channels first."""
    rank = x.ndim - 2
    pads = attributes.get("pads", (0,) * (2 * rank))
    sides = [n for i in reversed(range(rank)) for n in (pads[i], pads[rank + i])]
    padded = torch.nn.functional.pad(torch.from_numpy(x).double(), sides)
    y = getattr(torch.nn.functional, f"conv{rank}d")(
        padded,
        torch.from_numpy(w).double(),
        None if b is None else torch.from_numpy(b).double(),
        attributes.get("strides", 1),
        0,
        attributes.get("dilations", 1),
        attributes.get("group", 1),
    )
    return np.asarray(y.numpy())


def laid_out(a: np.ndarray, layout: str) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(a, 1, -1)) if layout == "nhwc" else a


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("channels", "outs", "groups"),
    [(8, 8, 4), (12, 24, 12), (9, 6, 3), (40, 40, 5), (6, 42, 6), (20, 20, 20)],
)
def test_small_groups_with_constant_weights_equal_torchs(
    channels: int, outs: int, groups: int, layout: str, cache: Path
) -> None:
    """They are merged until they fill a panel: what lies between their weights must count for nothing."""
    x, w, b = normal(2, channels, 7, 6), normal(outs, channels // groups, 3, 3, seed=1), normal(outs, seed=2)
    attributes = {"group": groups, **SAME}
    want = reference(x, w, b, attributes)
    types = [TensorType("float32", laid_out(want, layout).shape)]
    given = [laid_out(x, layout), w, b]
    layouts = {**attributes, "x_layout": layout, "y_layout": layout}
    (got,) = run_node("FusedConv", given, layouts, types=types, isa=AVX2, cache=cache, constants=(1, 2))
    np.testing.assert_allclose(got, laid_out(want, layout), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), SHAPES)
def test_a_convolution_equals_torchs(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], isa: Isa, cache: Path
) -> None:
    """Every border, stride, dilation, group and tail, with weights that come with the feeds."""
    x, w, b = normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[0], seed=2)
    want = reference(x, w, b, attributes)
    (got,) = run_node(
        "Conv", [x, w, b], attributes, types=[TensorType("float32", want.shape)], isa=isa, cache=cache
    )
    # A sum of K products of normal numbers: the rounding of K additions of size sqrt(K).
    K = int(np.prod(w_shape[1:]))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * K**0.5 * 4)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("x_layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("y_layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), SHAPES[1:11])
def test_layouts_and_the_residual_change_where_numbers_lie_not_what_they_are(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    x_layout: str,
    y_layout: str,
    isa: Isa,
    cache: Path,
) -> None:
    """Schedules choose layouts freely: all four pairs must agree, with packed weights and a full epilogue."""
    x, w = normal(*x_shape), normal(*w_shape, seed=1)
    plain = reference(x, w, None, attributes)
    residual = normal(*plain.shape, seed=3)
    want = laid_out(np.maximum(plain + residual, 0), y_layout)
    more = {"x_layout": x_layout, "y_layout": y_layout, "activation": "relu"}
    (got,) = run_node(
        "FusedConv",
        [laid_out(x, x_layout), w, None, laid_out(residual, y_layout)],
        {**attributes, **more},
        types=[TensorType("float32", want.shape)],
        isa=isa,
        constants=[1],
        cache=cache,
    )
    K = int(np.prod(w_shape[1:]))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * K**0.5 * 4)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_nan_and_infinity_reach_only_what_sees_them(layout: str, cache: Path) -> None:
    """Zeros in pads and behind the depth must not meet the numbers of other pixels."""
    x, w = normal(1, 5, 8, 8), normal(18, 5, 3, 3, seed=1)
    x[0, 2, 3, 3], x[0, 0, 7, 7] = np.nan, np.inf
    want = laid_out(reference(x, w, None, SAME), layout)
    (got,) = run_node(
        "FusedConv",
        [laid_out(x, layout), w],
        {**SAME, "x_layout": layout, "y_layout": layout},
        types=[TensorType("float32", want.shape)],
        isa=AVX2,
        constants=[1],
        cache=cache,
    )
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.parametrize("isa", [AVX2, X86_64], ids=lambda isa: isa.name)
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("clip", 0.0, 6.0),
        ("leaky", 0.1, 0.0),
        ("hard_sigmoid", 1 / 6, 0.5),
        ("hard_swish", 1 / 6, 0.5),
        ("sigmoid", 0.0, 0.0),
        ("silu", 0.0, 0.0),
        ("tanh", 0.0, 0.0),
        ("gelu", 0.0, 0.0),
    ],
)
def test_an_activation_follows_the_sum(name: str, low: float, high: float, isa: Isa, cache: Path) -> None:
    """Each activation of the epilogue, in vectors and at the tail."""
    functional = torch.nn.functional
    functions = {
        "clip": lambda v: v.clamp(low, high),
        "leaky": lambda v: functional.leaky_relu(v, low),
        "hard_sigmoid": functional.hardsigmoid,
        "hard_swish": functional.hardswish,
        "sigmoid": torch.sigmoid,
        "silu": functional.silu,
        "tanh": torch.tanh,
        "gelu": functional.gelu,
    }
    x, w = normal(1, 4, 5, 7), normal(18, 4, 1, 1, seed=1)
    plain = reference(x, w, None, {})
    want = functions[name](torch.from_numpy(plain)).numpy()
    for layout in ("nchw", "nhwc"):
        more = {"x_layout": layout, "y_layout": layout, "activation": name, "low": low, "high": high}
        expected = laid_out(want, layout)
        (got,) = run_node(
            "FusedConv",
            [laid_out(x, layout), w],
            more,
            types=[TensorType("float32", expected.shape)],
            isa=isa,
            constants=[1],
            cache=cache,
        )
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("name", ["sigmoid", "silu"])
def test_sigmoids_keep_nan_and_reach_their_limits(name: str, cache: Path) -> None:
    """Over all that float32 holds: a product with 0 or infinity would give another NaN."""
    ends = [np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0, 88.0, -88.0]
    x = np.concatenate([ends, np.linspace(-100, 100, 4000)]).astype(np.float32).reshape(1, -1, 8)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        gate = 1 / (1 + np.exp(-wide))
        want = gate if name == "sigmoid" else np.where(wide == -np.inf, 0.0, wide * gate)
    attributes = {"group": 8, "x_layout": "nhwc", "y_layout": "nhwc", "activation": name}
    types = [TensorType("float32", x.shape)]
    w = np.ones((8, 1, 1), np.float32)
    (got,) = run_node("FusedConv", [x, w], attributes, types=types, isa=AVX2, constants=[1], cache=cache)
    np.testing.assert_allclose(got, want, rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (1, 3, 4, 4)])
def test_an_empty_batch_and_a_window_larger_than_the_image_are_answered(
    shape: tuple[int, ...], cache: Path
) -> None:
    """Zero units run nothing, and padding alone may fill a window."""
    x, w = normal(*shape), normal(2, 3, 6, 6, seed=1)
    attributes = {"pads": (3, 3, 3, 3)}
    want = np.zeros((0, 2, 5, 5)) if not shape[0] else reference(x, w, None, attributes)
    (got,) = run_node(
        "Conv", [x, w], attributes, types=[TensorType("float32", want.shape)], isa=AVX2, cache=cache
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
