"""Vector mathematics against float64, on every width and with all special values."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.kernels.emit import vmath
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value, vector
from pliant.kernels.runtime.jit import Library
from tests.kernels import reference
from tests.kernels.kernel_call import address, call


class _Args(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("y", ctypes.c_void_p))


def _vector_ir(isa: Isa, name: str, function: Callable[[Function, Value], Value], element: str) -> str:
    module = Module(isa)
    with module.kernel(name) as f:
        source, out = f.fields(f.params[0], _Args, "x", "y")
        with f.each(f.params[1], f.params[2], f.lanes) as i:
            value = f.load(f.at(source, i, element), vector(f.lanes, element))
            f.store(function(f, value), f.at(out, i))
    return module.text()


def _apply(library: Library, function: Callable[[Function, Value], Value], x: np.ndarray) -> np.ndarray:
    """`function` of a float32 or uint16 array, by a kernel of its own."""
    element = "float" if x.dtype == np.float32 else "i16"
    kernel = address(library, "vmath", _vector_ir, "vmath", function, element)
    n = -(-len(x) // library.isa.lanes) * library.isa.lanes
    padded = np.zeros(n, x.dtype)
    padded[: len(x)] = x
    out = np.empty(n, np.float32)
    call(kernel, _Args(padded.ctypes.data, out.ctypes.data), n)
    return out[: len(x)]


def _everywhere(low: float, high: float) -> np.ndarray:
    """Numbers of all sizes in low..high: evenly spread, and down to subnormal around zero."""
    small = np.geomspace(1e-42, 1, 20000)
    x = np.concatenate([np.linspace(low, high, 100000), small, -small, [0.0, -0.0]])
    return x[(x >= low) & (x <= high)].astype(np.float32)


def test_exp_is_within_its_relative_bound(library: Library) -> None:
    """Minimax remainder 1e-8, Cody-Waite reduction 1e-8, and about two roundings of 6e-8 each.

    Past 88.37 the exponent stays at 127 and the remainder grows to 0.69, outside the polynomial's range.
    """
    x = _everywhere(-87.3, 88.7)
    y, expected = _apply(library, vmath.exp, x), np.exp(x.astype(np.float64))
    assert (abs(y - expected) <= np.where(x < 88.3, 1.5e-7, 3e-7) * expected).all()


def test_the_exponentials_of_softmax_are_within_2e_7_relative(library: Library) -> None:
    """The same bound without the upper half."""
    x = _everywhere(-87.3, 0.0)
    expected = np.exp(x.astype(np.float64))
    assert (abs(_apply(library, vmath.exp_nonpositive, x) - expected) <= 2e-7 * expected).all()
    x = _everywhere(-125.9, 0.0)
    expected = np.exp2(x.astype(np.float64))
    assert (abs(_apply(library, vmath.exp2_nonpositive, x) - expected) <= 2e-7 * expected).all()


def test_one_and_a_power_of_two_is_within_2e_7_relative(library: Library) -> None:
    """What sigmoid divides by: one more rounding than the power has."""
    x = _everywhere(-126.0, 126.0)
    expected = 1 + np.exp2(x.astype(np.float64))
    assert (abs(_apply(library, vmath.one_and_exp2, x) - expected) <= 2e-7 * expected).all()
    assert np.isnan(_apply(library, vmath.one_and_exp2, np.array([np.nan], np.float32))).all()


def test_exp_saturates_and_keeps_nan(library: Library) -> None:
    """Softmax meets -inf from masks; a NaN that became a number would hide a broken weight."""
    x = np.array([np.nan, np.inf, -np.inf, 89, 1e30, -88, -104, -1e30], np.float32)
    expected = [np.nan, np.inf, 0, np.inf, np.inf, 0, 0, 0]
    np.testing.assert_array_equal(_apply(library, vmath.exp, x), np.float32(expected))
    low = np.array([np.nan, -np.inf, -1e30, -200, 0, -0.0], np.float32)
    for function in (vmath.exp_nonpositive, vmath.exp2_nonpositive):
        np.testing.assert_array_equal(_apply(library, function, low), np.float32([np.nan, 0, 0, 0, 1, 1]))


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "relu", "tanh"])
def test_activations_are_within_1e_6_absolute(library: Library, name: str) -> None:
    """The issue's bound; beyond 15 a gelu equals x, whose own rounding is 6e-8 of it."""
    x = _everywhere(-60.0, 60.0)
    y = _apply(library, vmath.ACTIVATIONS[name], x)
    expected = reference.activation(x, name)
    assert (abs(y - expected) <= 1e-6 * np.maximum(1, abs(expected))).all()


def test_tanh_is_relatively_accurate_near_zero_and_never_beyond_one(library: Library) -> None:
    """Small inputs must not be swallowed by an absolute bound; |tanh| > 1 breaks what follows."""
    x = _everywhere(-30.0, 30.0)
    y, expected = _apply(library, vmath.tanh, x), np.tanh(x.astype(np.float64))
    normal = abs(expected) > 1.2e-38
    assert (abs(y - expected)[normal] <= 4e-7 * abs(expected)[normal]).all()
    assert abs(y).max() <= 1


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "relu", "tanh"])
def test_activations_keep_nan_and_take_infinities_to_their_limits(library: Library, name: str) -> None:
    """One overflow upstream must not turn into NaN, nor a NaN into a number."""
    x = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0], np.float32)
    y = _apply(library, vmath.ACTIVATIONS[name], x)
    expected = np.float32([np.nan, 1, -1, 1, -1, 0] if name == "tanh" else [np.nan, np.inf, 0, 3e38, 0, 0])
    np.testing.assert_allclose(y, expected, rtol=1e-7, atol=1e-7)


def test_half_floats_of_every_pattern_are_exact(library: Library) -> None:
    """Weights at full fidelity are half floats; all 65536 are checked, subnormals and NaN included."""
    bits = np.arange(65536, dtype=np.uint16)
    y = _apply(library, vmath.half_to_float, bits)
    with np.errstate(invalid="ignore"):  # Arm says so of a signalling NaN
        expected = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(y, expected)


def test_bfloats_of_every_pattern_are_exact(library: Library) -> None:
    """As for half floats."""
    bits = np.arange(65536, dtype=np.uint16)
    y = _apply(library, vmath.bfloat_to_float, bits)
    np.testing.assert_array_equal(y.view(np.uint32), bits.astype(np.uint32) << 16)


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_relu_is_exact_for_any_floats(library: Library, numbers: list[float]) -> None:
    """Whatever hypothesis finds: relu rounds nothing."""
    x = np.array(numbers, np.float32)
    np.testing.assert_array_equal(_apply(library, vmath.relu, x), np.where(x < 0, np.float32(0), x))
