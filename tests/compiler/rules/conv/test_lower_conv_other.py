"""Transposed and deformable convolutions through the compiler, against torch and onnx's reference."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2, X86_64, Isa
from tests.compiler.rules.run_node import expected, run_node

torch = pytest.importorskip("torch", reason="torch is the reference")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("isa", [AVX2, X86_64], ids=lambda isa: isa.name)
@pytest.mark.parametrize("constants", [(), (1, 2)], ids=["fed", "constant"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((2, 6, 5, 7), (6, 4, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}),
        ((1, 6, 4, 4), (6, 2, 2, 3), {"group": 3, "dilations": (2, 1)}),
        ((1, 5, 9), (5, 3, 4), {"strides": (3,), "pads": (2, 1)}),
        ((1, 2, 3, 4, 2), (2, 3, 2, 2, 2), {"strides": (1, 2, 1)}),
        ((1, 40, 6, 6), (40, 33, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ],
)
def test_a_transposed_convolution_is_the_gradient_of_a_plain_one(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    constants: tuple[int, ...],
    isa: Isa,
    cache: Path,
) -> None:
    """Strides leave holes, pads cut the result, groups keep channels apart."""
    rank, groups = len(w_shape) - 2, attributes.get("group", 1)
    x, w, b = normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[1] * groups, seed=2)
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
    want = filled[(slice(None), slice(None), *cut)]
    types = [TensorType("float32", want.shape)]
    (got,) = run_node(
        "ConvTranspose", [x, w, b], attributes, types=types, isa=isa, constants=constants, cache=cache
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)


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
