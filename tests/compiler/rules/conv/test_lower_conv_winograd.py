"""Winograd's convolution through the compiler, against torch in float64, and how its error compares."""

from pathlib import Path

import numpy as np
import pytest

from pliant.ir.graph import TensorType
from pliant.kernels.conv.winograd_matrices import input_matrix, output_matrix, weight_matrix
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from tests.compiler.rules.conv.test_lower_conv import laid_out, normal, reference
from tests.compiler.rules.run_node import run_node

ISAS = [AVX2, X86_64, to_portable(AVX512)]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def run(
    x: np.ndarray, w: np.ndarray, b: np.ndarray, residual: np.ndarray | None, pads: tuple[int, ...],
    shape: tuple[int, ...], isa: Isa, cache: Path, algorithm: str = "winograd",
) -> np.ndarray:  # fmt: skip
    more = {"x_layout": "nhwc", "y_layout": "nhwc", "activation": "relu", "pads": pads}
    types = [TensorType("float32", shape)]
    given = [x, w, b, residual] if residual is not None else [x, w, b]
    attributes = {**more, "algorithm": algorithm}
    return run_node("FusedConv", given, attributes, types=types, isa=isa, constants=[1, 2], cache=cache)[0]


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize(
    ("x_shape", "outs", "pads"),
    [
        ((1, 32, 12, 12), 32, (1, 1, 1, 1)),
        ((2, 64, 13, 15), 48, (1, 1, 1, 1)),
        ((1, 304, 17, 9), 32, (0, 2, 1, 0)),
        ((1, 16, 3, 3), 16, (0, 0, 0, 0)),
        ((1, 16, 40, 41), 16, (2, 2, 2, 2)),
    ],
)
def test_tiles_cover_every_size_and_border(
    x_shape: tuple[int, ...], outs: int, pads: tuple[int, ...], has_residual: bool, isa: Isa, cache: Path
) -> None:
    """Images that are no multiple of 4, depths that are no multiple of a block, batches, uneven pads."""
    x, w, b = normal(*x_shape), normal(outs, x_shape[1], 3, 3, seed=1), normal(outs, seed=2)
    plain = reference(x, w, b, {"pads": pads})
    residual = normal(*plain.shape, seed=3) if has_residual else None
    want = laid_out(np.maximum(plain + (0 if residual is None else residual), 0), "nhwc")
    added = None if residual is None else laid_out(residual, "nhwc")
    got = run(laid_out(x, "nhwc"), w, b, added, pads, want.shape, isa, cache)
    # K roundings of sums up to sqrt(K): 6e-8 sqrt(K) sqrt(K) / 2; six times that, twice for Winograd.
    K = 9 * x_shape[1]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=3.6e-7 * K)


def test_its_error_is_near_that_of_plain_sums(cache: Path) -> None:
    """The promise of the points chosen: no more than three times the root mean square of plain sums'."""
    x, w, b = np.maximum(normal(1, 256, 16, 16), 0), normal(32, 256, 3, 3, seed=1), normal(32, seed=2)
    pads = (1, 1, 1, 1)
    want = laid_out(np.maximum(reference(x, w, b, {"pads": pads}), 0), "nhwc")
    found = {}
    for algorithm in ("winograd", ""):
        got = run(laid_out(x, "nhwc"), w, b, None, pads, want.shape, AVX2, cache, algorithm)
        found[algorithm] = float(np.sqrt(np.mean((got - want) ** 2)))
    assert found["winograd"] < 3 * found[""]


def test_its_matrices_convolve() -> None:
    """A^T [(G g) * (B^T d)] is the correlation of d and g, to the last digits of float64."""
    random = np.random.default_rng(0)
    d, g = random.standard_normal(6), random.standard_normal(3)
    got = output_matrix() @ ((weight_matrix() @ g) * (input_matrix() @ d))
    np.testing.assert_allclose(got, np.correlate(d, g, "valid"), atol=1e-13)
