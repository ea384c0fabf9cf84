"""Softmax and the normalisations through a session, against onnx's reference implementation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pliant.errors import GraphError
from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.run_node import expected, run_node

ISAS = [to_portable(isa) for isa in (AVX512, AVX2, X86_64)]
EVERY_ISA = pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
HOST = to_portable(AVX2)


def _floats(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _check(
    op: str,
    inputs: list[np.ndarray],
    attributes: Mapping[str, Any] | None = None,
    *,
    n_outputs: int = 1,
    isa: Isa = HOST,
    tolerance: float = 4e-6,
) -> None:
    """Values of size 1 to 5 after a few roundings of 6e-8, unless a half float is the last of them."""
    wanted = expected(op, inputs, attributes, n_outputs=n_outputs)
    types = [TensorType(y.dtype.name, y.shape) for y in wanted]
    for y, w in zip(run_node(op, inputs, attributes, types=types, isa=isa), wanted, strict=True):
        np.testing.assert_allclose(y, w, rtol=tolerance, atol=tolerance)


@EVERY_ISA
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_along_every_axis(op: str, isa: Isa) -> None:
    """The last axis of float32 has a kernel of its own; the others are reductions and maps."""
    for axis in (-1, 0, 1):
        _check(op, [_floats(3, 19, 21) * 5], {"axis": axis}, isa=isa)


def test_softmax_in_other_precisions() -> None:
    """float64 to its own digits; half floats computed in float32."""
    _check("Softmax", [_floats(4, 33, dtype="float64")], tolerance=1e-12)
    _check("Softmax", [_floats(4, 33, dtype="float16")], tolerance=1e-3)


@EVERY_ISA
def test_layer_norm_with_and_without_its_moments(isa: Isa) -> None:
    """Only the output: one kernel. Mean and inverse deviation too: reductions and a map."""
    x, scale, bias = _floats(2, 5, 37), _floats(37, seed=1), _floats(37, seed=2)
    _check("LayerNormalization", [x, scale, bias], isa=isa)
    _check("LayerNormalization", [x, scale], isa=isa)
    _check("LayerNormalization", [x, scale, bias], n_outputs=3, isa=isa)


def test_layer_norm_over_several_axes() -> None:
    """Normalised together; a scale may cover them all or be broadcast."""
    x = _floats(4, 5, 6)
    _check("LayerNormalization", [x, _floats(5, 6), _floats(5, 6, seed=1)], {"axis": 1})
    _check("LayerNormalization", [x, _floats(6), _floats(6, seed=1)], {"axis": 1})


def test_the_norms_of_images() -> None:
    """Statistics per instance and channel, per group, over the batch, and those of training."""
    x, scale, bias = _floats(2, 6, 5, 7), _floats(6, seed=1), _floats(6, seed=2)
    _check("InstanceNormalization", [x, scale, bias])
    _check("MeanVarianceNormalization", [x])
    _check("BatchNormalization", [x, scale, bias, _floats(6, seed=3), _floats(6, seed=4) ** 2])


@pytest.mark.parametrize("size", [1, 3, 4])
def test_responses_are_normalised_over_neighbouring_channels(size: int) -> None:
    """By numpy: onnx's reference visits as many channels as there are images."""
    x = _floats(2, 6, 5, 7)
    total = np.zeros(x.shape)
    for c in range(6):
        window = x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].astype(np.float64)
        total[:, c] = (window**2).sum(1)
    wanted = x / (1.5 + 0.5 / size * total) ** 0.6
    attributes = {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5}
    (y,) = run_node("LRN", [x], attributes, types=[TensorType("float32", x.shape)], isa=HOST)
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


def test_group_norm_matches_its_definition() -> None:
    """onnx has no reference of it: mean and variance of a group by numpy."""
    x, scale, bias = _floats(2, 6, 5, 7), _floats(6, seed=1), _floats(6, seed=2)
    grouped = x.astype(np.float64).reshape(2, 3, -1)
    normal = grouped - grouped.mean(-1, keepdims=True)
    normal /= np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    wanted = normal.reshape(x.shape) * scale[:, None, None] + bias[:, None, None]
    types = [TensorType("float32", x.shape)]
    (y,) = run_node("GroupNormalization", [x, scale, bias], {"num_groups": 3}, types=types, isa=HOST)
    np.testing.assert_allclose(y, wanted, rtol=4e-6, atol=4e-6)


def test_rms_and_lp_norms() -> None:
    """No mean is subtracted; a row of zeros has no direction and stays zero."""
    x = _floats(3, 4, 50)
    _check("RMSNormalization", [x, _floats(50, seed=1)])
    _check("RMSNormalization", [x, _floats(4, 50, seed=1)], {"axis": 1, "epsilon": 0.1})
    _check("RMSNormalization", [x, _floats(50, seed=1)], {"axis": 1})  # a scale that is broadcast
    x = _floats(4, 9)
    x[1] = 0
    for p in (1, 2):
        wanted = x / np.maximum(np.linalg.norm(x, p, axis=1, keepdims=True), 1e-30)
        types = [TensorType("float32", x.shape)]
        (y,) = run_node("LpNormalization", [x], {"p": p, "axis": 1}, types=types, isa=HOST)
        np.testing.assert_allclose(y, wanted, rtol=2e-6)


def test_a_large_mean_costs_no_accuracy() -> None:
    """The variance is of centred values: sums of squares would lose all digits at mean 1000."""
    x = _floats(2, 3, 400) + 1000
    one, zero = np.ones(3, np.float32), np.zeros(3, np.float32)
    types = [TensorType("float32", x.shape)]
    (y,) = run_node("InstanceNormalization", [x, one, zero], types=types, isa=HOST)
    centred = x.astype(np.float64) - x.astype(np.float64).mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, wanted, atol=3e-4)  # the mean is rounded to 3e-5


def test_training_is_refused() -> None:
    """Running statistics would be wrong without a word."""
    x, c = _floats(2, 3, 4), [_floats(3)] * 4
    with pytest.raises(GraphError, match="training mode"):
        run_node(
            "BatchNormalization",
            [x, *c],
            {"training_mode": 1},
            types=[TensorType("float32", x.shape)],
            isa=HOST,
        )
