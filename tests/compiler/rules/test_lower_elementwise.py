"""Element-wise operators through a session, against onnx's reference implementation."""

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


_SAME = (
    "Celu",
    "Elu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "Selu",
    "Shrink",
    "Softsign",
    "Swish",
)
ATTRIBUTES = [
    ("Celu", {"alpha": 2.0}),
    ("Elu", {"alpha": 1.5}),
    ("Gelu", {"approximate": "tanh"}),
    ("Gelu", {}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("LeakyRelu", {"alpha": 0.1}),
    ("Selu", {"alpha": 2.0, "gamma": 3.0}),
    ("Shrink", {"lambd": 1.5, "bias": 1.5}),
    ("Swish", {"alpha": 0.5}),
    ("ThresholdedRelu", {"alpha": 2.0}),
    *((op, {}) for op in _SAME),
]


@pytest.mark.parametrize(("op", "attributes"), ATTRIBUTES)
def test_every_activation_has_its_parameters(op: str, attributes: dict[str, Any]) -> None:
    """Other than the defaults, and the defaults."""
    _check(op, [_floats(3, 50) * 3], attributes)


@pytest.mark.parametrize("exponent", [0.5, -1.0, 1.0, 2.0, 3.0, 2.5])
def test_constant_powers_take_shortcuts(exponent: float) -> None:
    """A square is a product; the answer is that of the power."""
    x, e = np.abs(_floats(4, 21)) + 0.1, np.array(exponent, np.float32)
    types = [TensorType("float32", x.shape)]
    (y,) = run_node("Pow", [x, e], types=types, isa=HOST, constants=(1,))
    np.testing.assert_allclose(y, x.astype(np.float64) ** exponent, rtol=1e-6)
    _check("Pow", [x, e])


def test_bounds_of_clip_may_be_absent() -> None:
    """Either, both or none; a NaN stays what it is."""
    x = np.concatenate([_floats(20) * 3, [np.nan]]).astype(np.float32)
    low, high = np.array(-1, np.float32), np.array(1.5, np.float32)
    for inputs in ([x, low, high], [x, None, high], [x, low], [x]):
        _check("Clip", inputs)


def test_operators_of_many_operands() -> None:
    """Sums, means and extremes of several tensors, each broadcast on its own."""
    inputs = [_floats(4, 3, 5), _floats(3, 1, seed=1), _floats(5, seed=2)]  # as the reference can
    for op in ("Sum", "Mean", "Max", "Min"):
        _check(op, [*inputs])


def test_a_choice_and_a_comparison() -> None:
    """Booleans are bytes in memory, whatever made them."""
    condition = _floats(6, 1) > 0
    _check("Where", [condition, _floats(6, 7), _floats(7, seed=1)])
    for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        x = np.round(_floats(5, 9) * 2)
        _check(op, [x, np.round(_floats(9, seed=1) * 2)])


@EVERY_ISA
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint32", "int64"])
def test_arithmetic_in_other_dtypes(dtype: str, isa: Isa) -> None:
    """Half floats are rounded once; integers wrap around."""
    x, y = (np.round(np.abs(_floats(3, 17, seed=i)) * 5 + 1).astype(dtype) for i in (0, 1))
    for op in ("Add", "Mul", "Div"):
        _check(op, [x, y], isa=isa, rtol=1e-3 if dtype == "float16" else 1e-12)


def test_too_many_operands_are_refused() -> None:
    """The limit is said, with the node."""
    inputs = [_floats(2)] * 17
    with pytest.raises(GraphError, match="reads 17 tensors"):
        run_node("Sum", inputs, types=[TensorType("float32", (2,))], isa=HOST)
