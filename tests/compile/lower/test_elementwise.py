"""Element-wise operators through a session, against onnx's reference implementation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pliant.ir.graph import TensorType
from pliant.kernels.isa import AVX2, AVX512, X86_64, Isa, portable
from tests.compile.lower.running import expected, run_node

ISAS = [portable(isa) for isa in (AVX512, AVX2, X86_64)]
EVERY_ISA = pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
HOST = portable(AVX2)


def _floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _check(
    op: str,
    inputs: list[np.ndarray | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    isa: Isa = HOST,
    rtol: float = 2e-6,
    atol: float = 1e-6,
) -> None:
    """pliant's answer is the reference's, in dtype, shape and value."""
    (wanted,) = expected(op, inputs, attributes)
    (y,) = run_node(op, inputs, attributes, types=[TensorType(wanted.dtype.name, wanted.shape)], isa=isa)
    np.testing.assert_allclose(
        y.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol if y.dtype.kind == "f" else 0
    )


@EVERY_ISA
@pytest.mark.parametrize("op", ["Abs", "Relu", "Exp", "Tanh", "Sigmoid", "Erf", "Softplus", "Floor", "Round"])
def test_one_operand(op: str, isa: Isa) -> None:
    """Sizes on both sides of a vector, so that whole vectors and the rest are both met."""
    for shape in ((), (1,), (3, 5), (4, 16), (3, 1000)):
        _check(op, [_floats(*shape) * 4], isa=isa)


SHAPES = [
    ((4, 33), (4, 33)),
    ((4, 33), (33,)),
    ((4, 33), (4, 1)),
    ((4, 33), ()),
    ((2, 3, 5, 7), (3, 1, 7)),
    ((2, 1, 5, 1), (1, 3, 1, 7)),
    ((1, 1), (3,)),
    ((0, 3), (3,)),
]


@EVERY_ISA
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_two_operands_broadcast(a: tuple[int, ...], b: tuple[int, ...], isa: Isa) -> None:
    """Every way in which two shapes can meet, from either side."""
    x, y = _floats(*a), _floats(*b, seed=1)
    _check("Sub", [x, y], isa=isa)
    _check("Sub", [y, x], isa=isa)


def test_a_large_tensor_is_shared_by_threads() -> None:
    """More than one unit, and a last one that is not whole."""
    x = _floats(7, 12345)
    _check("Mul", [x, _floats(12345, seed=1)])
    _check("Add", [x, x])
