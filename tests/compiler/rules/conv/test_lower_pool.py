"""Pooling through the compiler, against torch in float64 and onnx's reference implementation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.run_node import answer_of_onnxruntime, expected, run_node, type_of

ISAS = [AVX2, X86_64, to_portable(AVX512)]

WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 112, 30), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 37, 14, 15), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((1, 5, 9, 40), {"kernel_shape": [3, 2], "strides": [1, 1], "pads": [1, 0, 0, 1]}),
    ((1, 2, 11, 29), {"kernel_shape": [5, 5], "strides": [3, 3], "pads": [2, 2, 2, 2]}),
    ((1, 4, 21), {"kernel_shape": [3], "strides": [2]}),
    ((1, 2, 5, 6, 20), {"kernel_shape": [2, 3, 3], "strides": [1, 2, 1], "pads": [1, 1, 1, 0, 1, 1]}),
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def last(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(a, 1, -1))


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
def test_pooling_equals_onnxs_reference_in_both_layouts(
    op: str, shape: tuple[int, ...], attributes: dict[str, Any], isa: Isa, cache: Path
) -> None:
    """Rows in vectors, borders one by one, channels in vectors: all must be the same numbers."""
    x = normal(*shape)
    (want,) = expected(op, [x], attributes)
    types = [TensorType("float32", want.shape)]
    (got,) = run_node(op, [x], attributes, types=types, isa=isa, cache=cache)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    types = [TensorType("float32", last(want).shape)]
    (got,) = run_node(op, [last(x)], {**attributes, "layout": "nhwc"}, types=types, isa=isa, cache=cache)
    np.testing.assert_allclose(got, last(want), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("stride", [1, 2])
def test_rows_of_any_width_are_pooled_to_their_end(op: str, stride: int, isa: Isa, cache: Path) -> None:
    """A row is several vectors together, some alone, one that overlaps, and single places at its edges."""
    for width in (9, 20, 37, 150, 163):
        x = np.random.default_rng(width).standard_normal((1, 2, 3, width)).astype(np.float32)
        attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, stride]}
        (want,) = expected(op, [x], attributes)
        types = [TensorType("float32", want.shape)]
        (y,) = run_node(op, [x], attributes, types=types, isa=isa, cache=cache)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)  # nine float32 terms in another order


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("kernel", [2, 3, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_windows_beyond_the_image_are_as_in_onnxruntime(
    op: str, kernel: int, stride: int, ceil_mode: int, cache: Path
) -> None:
    """Planes of a few columns, of more rows than lie in scratch, dilated, and windows beyond pads."""
    pads = [kernel // 2, (kernel - 1) // 2, (kernel - 1) // 2, kernel // 2]
    for shape, dilation in (((2, 3, 7, 7), 1), ((1, 2, 23, 3), 1), ((1, 2, 30, 41), 2), ((1, 1, 19, 64), 1)):
        if (kernel - 1) * dilation >= min(shape[2:]) + kernel - 1:
            continue
        for counts_pads in (0, 1) if op == "AveragePool" else (0,):
            attributes: dict[str, Any] = {
                "kernel_shape": [kernel] * 2,
                "strides": [stride] * 2,
                "pads": pads,
                "dilations": [dilation] * 2,
                "ceil_mode": ceil_mode,
            }
            attributes |= {"count_include_pad": 1} if counts_pads else {}
            x = normal(*shape)
            want = answer_of_onnxruntime(op, [x], attributes, opset=19)
            (got,) = run_node(op, [x], attributes, types=[type_of(want)], isa=AVX2, cache=cache)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(1, 70, 7, 7), (2, 3, 1, 5), (1, 4, 33), (2, 3, 2, 3, 4)])
def test_global_pooling_equals_numpys_reduction(
    op: str, shape: tuple[int, ...], isa: Isa, cache: Path
) -> None:
    """The window is the whole image, of any rank."""
    x = normal(*shape)
    axes = tuple(range(2, x.ndim))
    want = (np.mean if op == "GlobalAveragePool" else np.max)(x, axis=axes, keepdims=True)
    (got,) = run_node(op, [x], types=[type_of(want)], isa=isa, cache=cache)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    types = [TensorType("float32", last(want).shape)]
    (got,) = run_node(op, [last(x)], {"layout": "nhwc"}, types=types, isa=isa, cache=cache)
    np.testing.assert_allclose(got, last(want), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3, 7])
def test_the_p_norm_takes_any_whole_power(p: int, cache: Path) -> None:
    """The root beyond the square is found by iteration, which must end for small and large sums."""
    x = normal(1, 3, 8, 9) * np.array([1e-3, 1, 1e3], np.float32).reshape(1, 3, 1, 1)
    want = np.sum(np.abs(x.astype(np.float64)) ** p, axis=(2, 3), keepdims=True) ** (1 / p)
    types = [TensorType("float32", want.shape)]
    (got,) = run_node("GlobalLpPool", [x], {"p": p}, types=types, isa=AVX2, cache=cache)
    np.testing.assert_allclose(got, want, rtol=2e-5)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_the_p_norm_keeps_nan_infinity_and_overflow(p: int, layout: str, cache: Path) -> None:
    """No root of such a sum is finite, at any power; other windows are as before."""
    x = normal(1, 5, 8, 9)
    x[0, 0, 2, 3], x[0, 1, 4, 4], x[0, 2, 7, 0], x[0, 3, 1, 1] = np.nan, np.inf, -np.inf, 3e38
    windows = np.lib.stride_tricks.sliding_window_view(np.abs(x.astype(np.float64)), (2, 2), axis=(2, 3))
    sums = np.sum(windows**p, axis=(4, 5))
    want = np.where(sums < np.finfo(np.float32).max, sums ** (1 / p), sums + np.inf).astype(np.float32)
    assert np.isnan(want).sum() == 4
    attributes: dict[str, Any] = {"p": p, "kernel_shape": [2, 2]}
    if layout == "nhwc":
        x, want, attributes = last(x), last(want), {**attributes, "layout": "nhwc"}
    types = [TensorType("float32", want.shape)]
    (got,) = run_node("LpPool", [x], attributes, types=types, isa=AVX2, cache=cache)
    np.testing.assert_allclose(got, want, rtol=2e-5)


@pytest.mark.parametrize("dtype", ["float64", "int8", "uint8"])
def test_a_maximum_exists_of_every_ordered_type(dtype: str, cache: Path) -> None:
    """Bytes compare by their own sign, and the start value must not win."""
    x = (np.random.default_rng(0).standard_normal((1, 2, 9, 9)) * 100).astype(np.int16).astype(dtype)
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    padded = np.full((1, 2, 11, 11), -np.inf)
    padded[:, :, 1:-1, 1:-1] = x
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    want = windows.max(axis=(4, 5)).astype(dtype)
    (got,) = run_node("MaxPool", [x], attributes, types=[type_of(want)], isa=AVX2, cache=cache)
    np.testing.assert_array_equal(got, want)


def test_a_nan_stays_the_maximum_of_its_windows(cache: Path) -> None:
    """As in torch and numpy; a comparison alone would lose it."""
    x = normal(1, 1, 12, 40)
    x[0, 0, 5, 17] = np.nan
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    want = windows.max(axis=(4, 5))
    assert np.isnan(want).sum() == 9
    (got,) = run_node("MaxPool", [x], {"kernel_shape": (3, 3)}, types=[type_of(want)], isa=AVX2, cache=cache)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("kernel", [(1, 1), (1, 2), (2, 3), (3, 1), (3, 3), (5, 4), (7, 7), (8, 3)])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [12, 40])
def test_every_tap_of_a_window_keeps_a_nan_and_an_infinity(
    kernel: tuple[int, int], stride: int, size: int, isa: Isa, cache: Path
) -> None:
    """Rows and columns are joined in another order for each number of taps; a plane for each place."""
    n = kernel[0] * kernel[1]
    x = np.random.default_rng(0).integers(-9, 10, (1, 3 * n, size, size)).astype(np.float32)
    rows, columns = np.divmod(np.arange(n), kernel[1])
    for i, value in enumerate((np.nan, np.inf, -np.inf)):
        x[0, i * n + np.arange(n), stride + rows, stride + columns] = value
    x[0, np.arange(n), stride, stride + kernel[1] - 1] = np.nan
    attributes = {"kernel_shape": kernel, "strides": (stride, stride), "count_include_pad": 0}
    for op in ("MaxPool", "AveragePool"):
        want = pooled(op, x, attributes)
        given = {k: v for k, v in attributes.items() if k != "count_include_pad" or op == "AveragePool"}
        (got,) = run_node(op, [x], given, types=[type_of(want)], isa=isa, cache=cache)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)  # small integers, whose sums are exact


def test_indices_say_where_each_maximum_stands(cache: Path) -> None:
    """Of equal values the first; indices count through batch and channels."""
    x = np.random.default_rng(0).integers(0, 4, (2, 3, 8, 8)).astype(np.float32)
    attributes = {"kernel_shape": (2, 2), "strides": (2, 2)}
    types = [TensorType("float32", (2, 3, 4, 4)), TensorType("int64", (2, 3, 4, 4))]
    values, indices = run_node("MaxPool", [x], attributes, types=types, isa=AVX2, cache=cache)
    want = expected("MaxPool", [x], attributes, n_outputs=2)
    np.testing.assert_array_equal(values, want[0])
    np.testing.assert_array_equal(x.reshape(-1)[indices], values)
    np.testing.assert_array_equal(indices, want[1])


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((1, 37, 7, 7), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ((5, 7, 14, 13), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ((2, 16, 9, 5), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 0, 1]}),
        ((1, 18, 1, 2), {"kernel_shape": [1, 2]}),
        ((1, 21, 13), {"kernel_shape": [3], "strides": [3], "pads": [0, 2]}),
        ((3, 6, 3, 4, 5), {"kernel_shape": [2, 3, 3], "strides": [1, 1, 2], "pads": [1, 1, 1, 0, 1, 1]}),
    ],
)
def test_small_planes_are_pooled_together(
    op: str, shape: tuple[int, ...], attributes: dict[str, Any], isa: Isa, cache: Path
) -> None:
    """A plane for each lane: the last ones overlap, and no plane takes part in another's windows."""
    x = normal(*shape)
    planes = x.reshape(-1, *shape[2:])
    planes[3].flat[0], planes[5].flat[-1], planes[-1].flat[0] = np.nan, np.inf, -np.inf
    for counts_pads in (0, 1) if op == "AveragePool" else (0,):
        given = {**attributes, "count_include_pad": counts_pads} if op == "AveragePool" else attributes
        want = pooled(op, x, given)
        (got,) = run_node(op, [x], given, types=[type_of(want)], isa=isa, cache=cache)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def pooled(op: str, x: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    """The reduction of every window in float64; a NaN stays one, and pads count in an average where asked."""
    rank = x.ndim - 2
    pads = attributes.get("pads", [0] * (2 * rank))
    sides = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    outside = {"MaxPool": -np.inf, "AveragePool": 0.0, "LpPool": 0.0}[op]
    axes, over = tuple(range(2, x.ndim)), tuple(range(-rank, 0))

    def windows(a: np.ndarray) -> np.ndarray:
        found = np.lib.stride_tricks.sliding_window_view(a, attributes["kernel_shape"], axis=axes)
        steps = (slice(None, None, n) for n in attributes.get("strides", [1] * rank))
        return found[(slice(None), slice(None), *steps)]

    values = windows(np.pad(x.astype(np.float64), sides, constant_values=outside))
    with np.errstate(invalid="ignore"):
        if op == "MaxPool":
            return values.max(axis=over).astype(np.float32)
        if op == "LpPool":
            return np.sqrt((values**2).sum(axis=over)).astype(np.float32)
        inside = 1.0 if attributes["count_include_pad"] else 0.0
        counts = windows(np.pad(np.ones(x.shape), sides, constant_values=inside)).sum(axis=over)
        return (values.sum(axis=over) / counts).astype(np.float32)
