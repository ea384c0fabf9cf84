"""Products with integer and half-precision weights, against numpy in float64 on the same weights."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable
from pliant.kernels.product.scaled_block import ELEMENTS, WeightElement
from tests.compiler.rules.run_node import TensorType, run_node

ISAS = [AVX2, X86_64, to_portable(AVX512)]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


def _check(
    rows: tuple[int, ...],
    depth: int,
    columns: int,
    element: WeightElement,
    *,
    blocks: int = 1,
    is_turned: bool = False,
    isa: Isa = AVX2,
    has_more: bool = False,
    cache: Path | None = None,
) -> None:
    """(a @ (codes - zeros) * scales), in whatever form the codes are packed, is what numpy says."""
    random = np.random.default_rng(0)
    shape = (columns, depth) if is_turned else (depth, columns)
    zeros = None
    if element == "int8":
        codes: np.ndarray = random.integers(-128, 128, shape).astype(np.int8)
    elif element == "int16":
        codes = random.integers(0, 256, shape).astype(np.uint8)
        zeros = random.integers(-9, 256, (blocks, columns)).astype(np.int16)
    else:
        dtype = np.float16 if element == "float16" else ml_dtypes.bfloat16
        codes = (random.standard_normal(shape) * 50).astype(dtype)
    scales = (random.random((blocks, columns)) / 100).astype(np.float32)
    a = random.standard_normal((*rows, depth)).astype(np.float32)
    steps = (1, depth) if is_turned else (columns, 1)
    attributes: dict[str, Any] = {"b_view": (0, depth, columns, *steps), "element": element}
    less = 0 if zeros is None else np.repeat(zeros, depth // blocks, 0)
    matrix = (codes.T if is_turned else codes).astype(np.float64) - less
    wanted = a.astype(np.float64) @ (matrix * np.repeat(scales, depth // blocks, 0))
    inputs = [a, codes, scales, zeros]
    if has_more:
        bias, residual = (random.standard_normal(s).astype(np.float32) for s in ((columns,), wanted.shape))
        inputs += [bias, residual]
        wanted = wanted + bias + residual
    while inputs[-1] is None:
        inputs.pop()
    types = [TensorType("float32", wanted.shape)]
    known = [i for i in (1, 2, 3, 4) if i < len(inputs)]
    (got,) = run_node("ScaledMatMul", inputs, attributes, types=types, isa=isa, constants=known, cache=cache)
    # Terms are of a standard deviation of about 0.4; a sum of K of them errs by some sqrt(K) ulps of one.
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=4e-6 * depth**0.5)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("element", ELEMENTS)
def test_every_element_on_every_isa(element: WeightElement, isa: Isa, cache: Path) -> None:
    """Blocks of rows with scales of their own, columns that fill no group, more rows than a tile has."""
    _check((13,), 96, 83, element, blocks=3, isa=isa, cache=cache)


@settings(max_examples=25)
@given(
    rows=st.integers(1, 20),
    depth=st.integers(1, 60),
    columns=st.integers(1, 50),
    element=st.sampled_from(ELEMENTS),
    blocks=st.integers(1, 4),
    is_turned=st.booleans(),
    has_more=st.booleans(),
)
def test_any_shape(
    rows: int, depth: int, columns: int, element: WeightElement, blocks: int, is_turned: bool, has_more: bool
) -> None:
    """Nothing beyond the matrix is read into the result, in either orientation."""
    _check((rows,), depth * blocks, columns, element, blocks=blocks, is_turned=is_turned, has_more=has_more)


def test_deep_products_in_several_blocks(cache: Path) -> None:
    """K beyond what scratch holds, scales for parts that end within the kernel's blocks; a batch of rows."""
    _check((2, 75), 4500, 37, "int8", blocks=9, has_more=True, cache=cache)
